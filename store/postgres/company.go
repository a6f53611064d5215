package postgres

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/store"
)

// Where nearly all transactions find a settled record, and several look at a time, they look
// together first, with the statements that Read shares: a replay then costs a part of a
// statement, and no connection of the service's. One that is new takes a round trip more.

const (
	fewLook      = 4    // transactions that look by themselves
	ofShare      = 1024 // what company.share is out of
	mostlyReplay = ofShare / 8 * 7
	lookPatience = time.Second // of a look in company; after it the transaction looks by itself
)

// company tells whether transactions look together.
type company struct {
	looking atomic.Int64 // transactions that have not entered yet
	share   atomic.Int64 // of those that found a settled record, over the last 32 or so
}

// saw notes whether a transaction found a settled record.
func (c *company) saw(replay bool) {
	old, now := c.share.Load(), int64(0)
	if replay {
		now = ofShare
	}
	c.share.Store(old + (now-old)/32) // a lost update does not matter
}

func (c *company) pays() bool { return c.looking.Load() > fewLook && c.share.Load() >= mostlyReplay }

// lookTogether looks for a settled record if that pays. What else there is, or goes wrong, is the
// transaction's to find out.
func (s *Store) lookTogether(ctx context.Context, req *store.ClaimRequest) (rec store.Record, found bool, err error) {
	if !s.company.pays() {
		return rec, false, nil
	}
	looking, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	if rec, err = s.Read(looking, req.ID); err != nil {
		s.company.share.Store(0)
		return store.Record{}, false, nil
	}
	if !rec.State.Settled() {
		return store.Record{}, false, nil
	}
	s.company.saw(true)
	rec, err = replayed(req, rec)
	return rec, true, err
}
