// Package memory is the reference store: records live as long as the process.
// It is for tests, for development, and for services whose operations need no
// memory beyond their own life.
package memory

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/stet-go/stet"
)

// DefaultMaxRecords is how many records a store holds unless told otherwise.
const DefaultMaxRecords = 1_000_000

// Options configure a Store. The zero value is usable.
type Options struct {
	// MaxRecords bounds how many records are held. At the limit new claims
	// are refused, and nothing is executed. Default DefaultMaxRecords.
	MaxRecords int
	// Clock is the store's clock. Default time.Now.
	Clock func() time.Time
}

// Store is a stet.Store, stet.Watcher and stet.Sweeper in memory.
type Store struct {
	o Options

	mu     sync.Mutex
	m      map[stet.ID]*entry
	order  []*entry // for sweeping; entry.at is the index
	cursor int
	fence  int64 // of the last claim of any key: it outlives every record
}

// entry is a record with what only this store needs.
type entry struct {
	stet.Record
	leaseEnd time.Time
	at       int
	changed  chan struct{} // closed when the record stops running; nil if nobody watches
}

// New returns an empty store. It panics if o.MaxRecords is negative.
func New(o Options) *Store {
	if o.MaxRecords < 0 {
		panic(fmt.Sprintf("memory: Options.MaxRecords is negative: %d", o.MaxRecords))
	}
	if o.MaxRecords == 0 {
		o.MaxRecords = DefaultMaxRecords
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	return &Store{o: o, m: make(map[stet.ID]*entry)}
}

// Claim implements stet.Store.
func (s *Store) Claim(ctx context.Context, req stet.ClaimRequest) (stet.Record, error) {
	if err := ctx.Err(); err != nil {
		return stet.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.o.Clock()
	e := s.current(req.ID, now)
	switch {
	case e == nil:
		if len(s.m) >= s.o.MaxRecords {
			return stet.Record{}, fmt.Errorf("memory: %d records are held, the limit of Options.MaxRecords", len(s.m))
		}
		e = &entry{at: len(s.order), Record: stet.Record{ID: req.ID, Scope: req.Scope, Fingerprint: req.Fingerprint}}
		s.m[req.ID] = e
		s.order = append(s.order, e)
		s.grant(e, req, now)
	case e.Fingerprint != req.Fingerprint:
		return e.read(now), stet.ErrMismatch
	case e.State == stet.Running && e.Owner != req.Owner && !now.Before(e.leaseEnd):
		s.park(e, now)
	case e.State == stet.Retryable && e.Owner != req.Owner:
		s.grant(e, req, now)
	}
	return e.read(now), nil
}

// grant makes e run under req. The caller holds s.mu.
func (s *Store) grant(e *entry, req stet.ClaimRequest, now time.Time) {
	s.to(e, stet.VerbClaim)
	s.fence++
	e.Fence = s.fence
	e.Owner = req.Owner
	e.Attempt++
	e.ClaimedAt = now
	e.leaseEnd = now.Add(req.Lease)
	e.SettledAt, e.ExpiresAt, e.ForgetAt = time.Time{}, time.Time{}, time.Time{}
}

// park makes a dead run's record unknown. The caller holds s.mu.
func (s *Store) park(e *entry, now time.Time) {
	s.to(e, stet.VerbPark)
	e.SettledAt = now
}

// to takes e along an arrow of the state machine, which callers have checked
// to be there. The caller holds s.mu.
func (s *Store) to(e *entry, verb stet.Verb) {
	next, ok := e.State.Next(verb)
	if !ok {
		panic(fmt.Sprintf("memory: no way to %v from %v", verb, e.State))
	}
	e.State = next
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

// current returns the record of id, or nil if there is none or it is past its
// ForgetAt. The caller holds s.mu.
func (s *Store) current(id stet.ID, now time.Time) *entry {
	e := s.m[id]
	if e == nil {
		return nil
	}
	if !e.ForgetAt.IsZero() && !now.Before(e.ForgetAt) {
		s.remove(e)
		return nil
	}
	if !e.ExpiresAt.IsZero() && !now.Before(e.ExpiresAt) {
		e.Result, e.Gone = nil, true
	}
	return e
}

// remove forgets e. The caller holds s.mu.
func (s *Store) remove(e *entry) {
	delete(s.m, e.ID)
	last := len(s.order) - 1
	s.order[e.at] = s.order[last]
	s.order[e.at].at = e.at
	s.order[last] = nil
	s.order = s.order[:last]
}

// read returns the record as it is at now. The caller holds s.mu.
func (e *entry) read(now time.Time) stet.Record {
	r := e.Record
	if r.State == stet.Running {
		r.LeaseLeft = e.leaseEnd.Sub(now)
	}
	return r
}

// Read implements stet.Store.
func (s *Store) Read(ctx context.Context, id stet.ID) (stet.Record, error) {
	if err := ctx.Err(); err != nil {
		return stet.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.o.Clock()
	e := s.current(id, now)
	if e == nil {
		return stet.Record{ID: id}, nil
	}
	return e.read(now), nil
}

// Extend implements stet.Store.
func (s *Store) Extend(ctx context.Context, claims []stet.Claim, lease time.Duration) (lost []stet.Claim, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.o.Clock()
	for _, c := range claims {
		e := s.current(c.ID, now)
		if e == nil || e.Fence != c.Fence || e.State != stet.Running {
			lost = append(lost, c)
			continue
		}
		e.leaseEnd = now.Add(lease)
	}
	return lost, nil
}

// Settle implements stet.Store.
func (s *Store) Settle(ctx context.Context, c stet.Claim, out stet.Outcome, keep stet.Retention) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	verb := stet.VerbComplete
	if out.State == stet.Failed {
		verb = stet.VerbFail
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.o.Clock()
	e := s.current(c.ID, now)
	if e == nil || e.Fence != c.Fence {
		return stet.ErrFenced
	}
	if e.State == out.State && (e.Gone || !out.Gone && bytes.Equal(e.Result, out.Result)) {
		return nil // the reply to the first time was lost
	}
	if _, ok := e.State.Next(verb); !ok {
		return stet.ErrFenced
	}
	s.to(e, verb)
	e.Result, e.Gone = out.Result, out.Gone
	e.SettledAt, e.ExpiresAt, e.ForgetAt = now, now.Add(keep.Result), now.Add(keep.Tombstone)
	return nil
}

// Release implements stet.Store.
func (s *Store) Release(ctx context.Context, c stet.Claim, keep stet.Retention) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.o.Clock()
	e := s.current(c.ID, now)
	if e == nil || e.Fence != c.Fence {
		return stet.ErrFenced
	}
	if e.State == stet.Retryable {
		return nil // the reply to the first time was lost
	}
	if _, ok := e.State.Next(stet.VerbRelease); !ok {
		return stet.ErrFenced
	}
	s.to(e, stet.VerbRelease)
	e.SettledAt, e.ForgetAt = now, now.Add(keep.Result)
	return nil
}

// Watch implements stet.Watcher.
func (s *Store) Watch(ctx context.Context, id stet.ID, fence int64) error {
	for {
		s.mu.Lock()
		now := s.o.Clock()
		e := s.current(id, now)
		if e == nil || e.State != stet.Running || e.Fence != fence || !now.Before(e.leaseEnd) {
			s.mu.Unlock()
			return nil
		}
		if e.changed == nil {
			e.changed = make(chan struct{})
		}
		changed, left := e.changed, e.leaseEnd.Sub(now)
		s.mu.Unlock()

		lapse := time.NewTimer(left) // looked at again then: a heartbeat may have come
		select {
		case <-changed:
		case <-lapse.C:
		case <-ctx.Done():
		}
		lapse.Stop()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// Sweep implements stet.Sweeper. It goes round the records, limit at a time.
func (s *Store) Sweep(ctx context.Context, limit int) (stet.Swept, error) {
	var swept stet.Swept
	if err := ctx.Err(); err != nil {
		return swept, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.o.Clock()
	for range limit {
		if s.cursor >= len(s.order) {
			s.cursor = 0
			return swept, nil
		}
		e := s.order[s.cursor]
		wasGone := e.Gone
		if s.current(e.ID, now) == nil {
			swept.Purged++ // the last record has taken its place
			continue
		}
		if e.Gone && !wasGone {
			swept.Expired++
		}
		if e.State == stet.Running && !now.Before(e.leaseEnd) {
			s.park(e, now)
			swept.Parked++
		}
		s.cursor++
	}
	swept.More = true
	return swept, nil
}

// Len returns how many records are held.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.m)
}
