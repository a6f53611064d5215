package dynamodb

import (
	"fmt"
	"time"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/smithy-go/middleware"

	"github.com/stet-go/stet/store"
)

// millis is a time of the store: milliseconds since 1970.
type millis = int64

// span is d in milliseconds, rounded up: nothing ends before its time.
func span(d time.Duration) millis {
	n := d.Milliseconds()
	if d%time.Millisecond > 0 {
		n++
	}
	return max(n, 0)
}

// now returns the time, or an error if the host's clock is known to be wrong.
func (s *Store) now() (time.Time, error) {
	if why := s.wrong.Load(); why != nil {
		return time.Time{}, fmt.Errorf("dynamodb: %w: %s; set the clock, or Options.MaxSkew", store.ErrNotDone, *why)
	}
	return s.clock(), nil
}

// checkClock compares the host's clock with the Date of a response, whose request was sent at that
// time. DynamoDB made the response between then and now; Date has whole seconds.
func (s *Store) checkClock(of middleware.Metadata, sent time.Time) {
	date, ok := awsmiddleware.GetServerTime(of)
	if !ok {
		return
	}
	received := s.clock()
	if sent.After(date.Add(time.Second+s.skew)) || received.Before(date.Add(-s.skew)) {
		why := fmt.Sprintf("the host's clock said %s when DynamoDB's said %s, which is more than %v apart",
			received.UTC().Format(time.RFC3339), date.UTC().Format(time.RFC3339), s.skew)
		s.wrong.Store(&why)
		return
	}
	if s.wrong.Load() != nil {
		s.wrong.Store(nil)
	}
}
