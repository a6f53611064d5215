package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
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

// distrusted returns an error if the reply to a claim has shown that the clock was wrong when it was made. The
// claim may have replaced a record that is not forgotten.
func (s *Store) distrusted() error {
	if why := s.wrong.Load(); why != nil {
		return fmt.Errorf("dynamodb: the claim is not used: %s; set the clock, or Options.MaxSkew", *why)
	}
	return nil
}

// timeNow is now, after a response if the clock was wrong.
func (s *Store) timeNow(ctx context.Context) (time.Time, error) {
	if s.wrong.Load() != nil {
		_, _ = s.load(ctx, store.ID{}) // its error, if there is one, is that of the clock
	}
	return s.now()
}

// checkClock is compare for a response.
func (s *Store) checkClock(of middleware.Metadata, sent time.Time) {
	if date, ok := awsmiddleware.GetServerTime(of); ok {
		s.compare(date, sent)
	}
}

// checkRefusal is compare for a response that is an error.
func (s *Store) checkRefusal(err error, sent time.Time) {
	var response *awshttp.ResponseError
	if !errors.As(err, &response) || response.Response == nil {
		return
	}
	if date, err := http.ParseTime(response.Response.Header.Get("Date")); err == nil {
		s.compare(date, sent)
	}
}

// compare compares the host's clock with the Date of a response, whose request was sent at that
// time. DynamoDB made the response between then and now; Date has whole seconds.
func (s *Store) compare(date, sent time.Time) {
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
