package postgres

import (
	"context"
	"time"

	"github.com/stet-go/stet/store"
)

// A transaction finds a settled record with its first statement. Until that can be sent
// a replay would wait: for a connection of the service's, all of which may be busy with
// transactions that take long. So the record is looked up on one of the store's own
// meanwhile.

// poolPatience is how long a transaction waits for a connection before it looks.
const poolPatience = 50 * time.Millisecond

// meanwhile is a look for a settled record.
type meanwhile struct {
	timer *time.Timer
	done  chan struct{}
	rec   store.Record
	found bool
}

// lookMeanwhile looks for a settled record of id after that time, and calls found if there
// is one.
func (s *Store) lookMeanwhile(id store.ID, after time.Duration, found func()) *meanwhile {
	m := &meanwhile{done: make(chan struct{})}
	m.timer = time.AfterFunc(after, func() {
		defer close(m.done)
		ctx, cancel := context.WithTimeout(s.background, s.commitTimeout)
		defer cancel()
		if rec, err := s.Read(ctx, id); err == nil && rec.State.Settled() {
			m.rec, m.found = rec, true
			found()
		}
	})
	return m
}

// wait returns what was found, when it has looked, or nothing when ctx ends.
func (m *meanwhile) wait(ctx context.Context) (rec store.Record, found bool) {
	select {
	case <-m.done:
		return m.rec, m.found
	case <-ctx.Done():
		return rec, false
	}
}

// acquire gets a connection of the pool, unless a settled record is found meanwhile.
func (t *transaction) acquire(ctx context.Context) (rec store.Record, found bool, err error) {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	look := t.s.lookMeanwhile(t.req.ID, t.s.poolPatience, cancel)
	if t.conn, err = t.s.pool.Acquire(waiting); err == nil || look.timer.Stop() {
		look.timer.Stop()
		return rec, false, err
	}
	if rec, found = look.wait(ctx); found {
		rec, err = replayed(t.req, rec)
	}
	return rec, found, err
}

// replayed is the answer to a request whose record is settled.
func replayed(req *store.ClaimRequest, rec store.Record) (store.Record, error) {
	if rec.Fingerprint != req.Fingerprint {
		return rec, store.ErrMismatch
	}
	return rec, nil
}
