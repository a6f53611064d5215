// Package cache stores settled outcomes in the memory of the process, in front of any store, so
// that a replay needs no round trip. Settled outcomes never change, so every promise of the
// store still holds: the cache compares fingerprints, never stores a tombstone, and never
// returns an outcome after its ExpiresAt on the store's clock.
//
// The cache reads the store's clock off the claims that the store grants through it. Before the
// first one it stores nothing.
//
//	store, err := cache.New(redisStore, cache.Options{})
//	engine, err := stet.New(store, stet.Options{})
package cache

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/stet-go/stet/store"
)

const (
	defaultMaxBytes = 64 << 20
	defaultMaxAge   = time.Minute

	overhead = 512              // bytes of an outcome besides its result
	margin   = time.Second      // that an outcome is dropped before it expires
	drift    = 1000             // the clocks' rates differ by less than 1/drift
	stale    = 10 * time.Minute // after a reading, until it is not used
	fresh    = time.Second      // after a reading of the store's clock, until it is read again
)

// Options configure a Store. The zero value is usable.
type Options struct {
	// MaxBytes is about the largest amount of memory: results, and 512 bytes for each. A result
	// larger than an eighth of it is not stored. Default 64 MiB.
	MaxBytes int64
	// MaxAge is how long an outcome is returned without asking the store. An Expire by another
	// process (see store.Browser) may have no effect here for that time. Default 1 min.
	MaxAge time.Duration
}

// cached is a store.Store in front of another one.
type cached struct {
	store.Store
	o       Options
	records *otter.Cache[store.ID, entry]
	clock   atomic.Pointer[reading]
	expired atomic.Int64 // calls of Expire that have returned
}

// browsed is a cached of a store.Browser.
type browsed struct {
	*cached
	store.Browser
}

// txStore adds transactions of type Tx to a cached.
type txStore[Tx any] struct {
	store.Store
	cache *cached
	tx    store.TxStore[Tx]
}

// entry is an outcome that may be returned until a time on this process's clock.
type entry struct {
	rec   store.Record
	until time.Time
}

// reading is a time that the store's clock showed during a call of this process.
type reading struct {
	store       time.Time
	begun, done time.Time     // when the call was made and returned
	slack       time.Duration // by how much the store's clock may be ahead of store at begun
}

// least is the earliest time that the store's clock can show at a time after the reading.
func (r *reading) least(at time.Time) time.Time {
	age := at.Sub(r.done)
	return r.store.Add(age - age/drift)
}

// New returns a store that caches the settled outcomes of s. store.As finds the other abilities
// of s through it. It is safe for concurrent use. For a store with transactions use NewTx.
func New(s store.Store, o Options) (store.Store, error) {
	_, top, err := newStore(s, o)
	return top, err
}

// NewTx is New for a store with transactions.
func NewTx[Tx any](s store.TxStore[Tx], o Options) (store.TxStore[Tx], error) {
	c, top, err := newStore(s, o)
	if err != nil {
		return nil, err
	}
	tx := &txStore[Tx]{top, c, s}
	if w, ok := store.As[store.WorkTxStore[Tx]](s); ok {
		return &workTxStore[Tx]{tx, work{c, w}, w}, nil
	}
	return tx, nil
}

// newStore returns a cache of s, and the store around it with the other abilities of s.
func newStore(s store.Store, o Options) (c *cached, top store.Store, err error) {
	if s == nil {
		return nil, nil, errors.New("cache: New and NewTx need a store")
	}
	if o.MaxBytes < 0 || o.MaxAge < 0 {
		return nil, nil, fmt.Errorf("cache: Options.MaxBytes (%d) and MaxAge (%v) must not be negative", o.MaxBytes, o.MaxAge)
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultMaxBytes
	}
	if o.MaxAge == 0 {
		o.MaxAge = defaultMaxAge
	}
	records, err := otter.New(&otter.Options[store.ID, entry]{
		MaximumWeight: uint64(o.MaxBytes),
		Weigher:       func(_ store.ID, e entry) uint32 { return uint32(min(e.rec.Result.Size(), 1<<31)) + overhead },
	})
	if err != nil {
		return nil, nil, fmt.Errorf("cache: %w", err)
	}
	c = &cached{Store: s, o: o, records: records}
	top = c
	if b, ok := store.As[store.Browser](s); ok {
		top = &browsed{c, b}
	}
	if w, ok := store.As[store.WorkStore](s); ok {
		top = &workStore{top, work{c, w}}
	}
	return c, top, nil
}

// Claim implements store.Store.
func (s *cached) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	if rec, ok, err := s.settled(ctx, req); ok {
		return rec, err
	}
	begun, expired := time.Now(), s.expired.Load()
	rec, err := s.Store.Claim(ctx, req)
	if err == nil && rec.State == store.Running && rec.Owner == req.Owner {
		s.granted(rec, req.Lease, begun)
	}
	if err == nil { // a record that comes with an error may not be durable
		s.add(rec, expired)
	}
	return rec, err
}

// Read implements store.Store.
func (s *cached) Read(ctx context.Context, id store.ID) (store.Record, error) {
	if rec, ok := s.get(ctx, id); ok {
		return rec, nil
	}
	expired := s.expired.Load()
	rec, err := s.Store.Read(ctx, id)
	if err == nil {
		s.add(rec, expired)
	}
	return rec, err
}

// settled returns the record of req if it is cached. Its error is of another fingerprint.
func (s *cached) settled(ctx context.Context, req store.ClaimRequest) (rec store.Record, ok bool, err error) {
	if rec, ok = s.get(ctx, req.ID); ok && rec.Fingerprint != req.Fingerprint {
		err = store.ErrMismatch
	}
	return rec, ok, err
}

// get returns the cached record of id. With an ended context it returns none, so that the store
// returns the error.
func (s *cached) get(ctx context.Context, id store.ID) (rec store.Record, ok bool) {
	e, ok := s.records.GetIfPresent(id)
	return e.rec, ok && ctx.Err() == nil && time.Now().Before(e.until)
}

// add caches a record if it is settled and does not expire soon. expired is the number of calls
// of Expire that had returned before the record was read.
func (s *cached) add(rec store.Record, expired int64) {
	r := s.clock.Load()
	if r == nil || !rec.State.Settled() || rec.Gone || int64(rec.Result.Size()) > s.o.MaxBytes/8 {
		return
	}
	now := time.Now()
	age := now.Sub(r.begun)
	left := rec.ExpiresAt.Sub(r.store.Add(age)) - margin - age/drift - r.slack
	if left <= 0 || age > stale {
		return
	}
	rec.Work, rec.Notes, rec.Outbox, rec.Cancelling = nil, store.Notes{}, nil, false // Claim and Read do not return these
	s.records.Set(rec.ID, entry{rec, now.Add(min(left, s.o.MaxAge))})
	if s.expired.Load() != expired { // the record may be from before an Expire
		s.records.Invalidate(rec.ID)
	}
}

// granted reads the store's clock off a claim that a call made at begun returned. If the claim's
// first reply was lost, part of the lease has passed.
func (s *cached) granted(rec store.Record, lease time.Duration, begun time.Time) {
	s.read(rec.ClaimedAt, max(0, lease-rec.LeaseLeft), begun)
}

// read stores a reading: the store's clock showed at, and gone had passed since, when the call
// was made at begun. If at is earlier than the clock can have shown at begun, it is the time of
// an earlier call that this one repeats. How long ago that was is unknown, because leases are
// extended in the meantime, so the reading is dropped. The same may be true if at is later by less
// than the inaccuracy of the last reading: that inaccuracy is the new reading's slack.
func (s *cached) read(at time.Time, gone time.Duration, begun time.Time) {
	next := &reading{store: at.Add(gone), begun: begun, done: time.Now()}
	if r := s.clock.Load(); r != nil {
		if begun.Sub(r.begun) <= fresh || at.Before(r.least(begun)) {
			return
		}
		next.slack = r.done.Sub(r.begun) + begun.Sub(r.done)/drift
	}
	s.clock.Store(next)
}

// Unwrap implements store.Wrapper.
func (s *cached) Unwrap() store.Store { return s.Store }

// Expire implements store.Browser.
func (s *browsed) Expire(ctx context.Context, c store.Claim) error {
	err := s.Browser.Expire(ctx, c)
	s.expired.Add(1) // records read during the call may be from before it
	s.records.Invalidate(c.ID)
	return err
}

// Unwrap implements store.Wrapper.
func (s *txStore[Tx]) Unwrap() store.Store { return s.Store }

// RunTx implements store.TxStore.
func (s *txStore[Tx]) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(ctx context.Context, tx Tx, rec store.Record) (store.Settlement, error)) (store.Record, error) {
	if rec, ok, err := s.cache.settled(ctx, req); ok {
		return rec, err
	}
	begun, expired, ran := time.Now(), s.cache.expired.Load(), false
	rec, err := s.tx.RunTx(ctx, req, keep, func(ctx context.Context, tx Tx, rec store.Record) (store.Settlement, error) {
		ran = true
		return fn(ctx, tx, rec)
	})
	switch {
	case err == nil && rec.State.Settled() && ran && rec.Owner == req.Owner:
		s.cache.read(rec.SettledAt, 0, begun)
	case err == nil:
		s.cache.add(rec, expired)
	}
	return rec, err
}

// SettleTx implements store.TxStore.
func (s *txStore[Tx]) SettleTx(ctx context.Context, tx Tx, c store.Claim, out store.Settlement, keep store.Retention) error {
	return s.tx.SettleTx(ctx, tx, c, out, keep)
}
