package storetest_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/storetest"
)

// toy is a whole store, over a map: what store.Store says and no more. It is where to
// begin with a store of your own. Nothing is swept, so it grows permanently.
type toy struct {
	now  func() time.Time
	mu   sync.Mutex
	m    map[store.ID]*toyRecord
	last int64 // the newest fence of all keys: they grow over forgetting, too
}

type toyRecord struct {
	store.Record
	leaseEnd time.Time
}

// begin takes the lock, unless the caller has left. End it with s.mu.Unlock.
func (s *toy) begin(ctx context.Context) (now time.Time, err error) {
	if err := ctx.Err(); err != nil {
		return now, err
	}
	s.mu.Lock()
	return s.now(), nil
}

// find returns the current record; nil if there is none or it is past its ForgetAt.
func (s *toy) find(id store.ID, now time.Time) *toyRecord {
	r := s.m[id]
	if r == nil || !r.ForgetAt.IsZero() && !now.Before(r.ForgetAt) {
		delete(s.m, id)
		return nil
	}
	if r.State.Settled() && !now.Before(r.ExpiresAt) {
		r.Result, r.Gone = store.Result{}, true
	}
	return r
}

// held is find for the writes, which need the claim's fence.
func (s *toy) held(c store.Claim, now time.Time) (*toyRecord, error) {
	if r := s.find(c.ID, now); r != nil && r.Fence == c.Fence {
		return r, nil
	}
	return nil, store.ErrFenced
}

// step takes the arrow of the state machine, or says that there is none.
func (r *toyRecord) step(verb store.Verb) error {
	next, ok := r.State.Next(verb)
	if !ok {
		return store.ErrFenced
	}
	r.State = next
	return nil
}

// shown is the record as callers get it.
func (r *toyRecord) shown(now time.Time) store.Record {
	rec := r.Record
	if rec.State == store.Running {
		rec.LeaseLeft = r.leaseEnd.Sub(now)
	}
	return rec
}

func (s *toy) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return store.Record{}, err
	}
	defer s.mu.Unlock()
	r := s.find(req.ID, now)
	switch {
	case r == nil:
		r = new(toyRecord)
		s.m[req.ID] = r
	case r.Fingerprint != req.Fingerprint:
		return r.shown(now), store.ErrMismatch
	case r.Owner == req.Owner: // an earlier, identical call; an owner claims once
		return r.shown(now), nil
	case r.State == store.Running && !now.Before(r.leaseEnd):
		r.SettledAt = now
		err := r.step(store.VerbMarkUnknown)
		return r.shown(now), err
	}
	if r.step(store.VerbClaim) != nil { // not free: settled, or Running, or Unknown
		return r.shown(now), nil
	}
	s.last++
	r.Record = store.Record{ID: req.ID, Scope: req.Scope, Label: req.Label, State: r.State, Fingerprint: req.Fingerprint,
		Owner: req.Owner, Fence: s.last, Attempt: r.Attempt + 1, ClaimedAt: now}
	r.leaseEnd = now.Add(req.Lease)
	return r.shown(now), nil
}

func (s *toy) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) (lost []store.Claim, err error) {
	now, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	for _, c := range claims {
		if r, err := s.held(c, now); err != nil || r.State != store.Running {
			lost = append(lost, c)
		} else {
			r.leaseEnd = now.Add(lease)
		}
	}
	return lost, nil
}

func (s *toy) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	now, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	r, err := s.held(c, now)
	if err != nil {
		return err
	}
	if r.State == out.State && r.Gone == out.Gone && r.Result.Equal(out.Result) && now.Before(r.ExpiresAt) {
		return nil // the reply to an identical call was lost
	}
	verb := store.VerbComplete
	if out.State == store.Failed {
		verb = store.VerbFail
	}
	if err := r.step(verb); err != nil {
		return err
	}
	r.Result, r.Gone = out.Result, out.Gone
	r.SettledAt, r.ExpiresAt, r.ForgetAt = now, now.Add(keep.Result), now.Add(keep.Tombstone)
	return nil
}

func (s *toy) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	now, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	r, err := s.held(c, now)
	if err != nil || r.State == store.Retryable {
		return err
	}
	if err := r.step(store.VerbRelease); err != nil {
		return err
	}
	r.SettledAt, r.ForgetAt = now, now.Add(keep.Result)
	return nil
}

func (s *toy) Read(ctx context.Context, id store.ID) (store.Record, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return store.Record{}, err
	}
	defer s.mu.Unlock()
	if r := s.find(id, now); r != nil {
		return r.shown(now), nil
	}
	return store.Record{ID: id}, nil
}

// The documentation of package store is enough to write a store.
func TestToyStoreOverAMapConforms(t *testing.T) {
	clock := &fakeClock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	storetest.Run(t, storetest.Harness{
		New:     func(testing.TB) store.Store { return &toy{now: clock.Now, m: make(map[store.ID]*toyRecord)} },
		Advance: clock.Advance,
	})
}
