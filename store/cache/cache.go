// Package cache keeps the settled outcomes that a process has seen in its
// memory, in front of any store: a replay then costs no round trip. Settled
// outcomes never change, so every promise of the store still holds. Fingerprints
// are still compared, a tombstone is always asked of the store, and an outcome is
// never handed out past its ExpiresAt on the store's clock.
//
// The store's clock is known from the claims that it grants through the cache;
// until there was one, nothing is kept.
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
	"github.com/stet-go/stet"
)

const (
	defaultMaxBytes = 64 << 20
	defaultMaxAge   = time.Minute

	overhead = 512         // bytes that an outcome takes besides its result
	margin   = time.Second // that an outcome is dropped before it expires
	drift    = 1000        // the clocks' rates differ by less than one part in so many
	stale    = 10 * time.Minute
	fresh    = time.Second // for so long, a reading of the store's clock needs no other
)

// Options configure a Store. The zero value is usable.
type Options struct {
	// MaxBytes bounds the memory, about: results, and 512 bytes for each. A
	// result larger than an eighth of it is not kept. Default 64 MiB.
	MaxBytes int64
	// MaxAge bounds how long an outcome is handed out without asking the store.
	// So long may an Expire by another process (see stet.Browser) go unnoticed.
	// Default 1 min.
	MaxAge time.Duration
}

// store is a stet.Store in front of another one.
type store struct {
	stet.Store
	o       Options
	records *otter.Cache[stet.ID, entry]
	clock   atomic.Pointer[reading]
	expired atomic.Int64 // calls of Expire that have begun
}

// txStore is a store with transactions of type Tx.
type txStore[Tx any] struct {
	*store
	tx stet.TxStore[Tx]
}

var (
	_ stet.Watcher           = (*store)(nil)
	_ stet.Sweeper           = (*store)(nil)
	_ stet.Browser           = (*store)(nil)
	_ stet.TxStore[bool]     = (*txStore[bool])(nil)
	_ stet.WorkStore         = (*workStore)(nil)
	_ stet.WorkTxStore[bool] = (*workTxStore[bool])(nil)
)

// entry is an outcome that may be handed out until a time of this process.
type entry struct {
	rec   stet.Record
	until time.Time
}

// reading is a time of the store's clock, which it did not show before a time of
// this process.
type reading struct {
	store time.Time
	local time.Time
}

// New returns a store that keeps what it has seen settled in s. It is a
// stet.WorkStore if s is one. It is also a stet.Watcher, stet.Sweeper and
// stet.Browser, which it leaves to s: where s is no Watcher, Watch returns an error,
// upon which the engine polls; where it is no Sweeper, there is nothing to sweep;
// where it is no Browser, Browse and Expire are ErrInvalid. It is safe for concurrent
// use. For a store with transactions there is NewTx.
func New(s stet.Store, o Options) (stet.Store, error) {
	c, err := newStore(s, o)
	if err != nil {
		return nil, err
	}
	if w, ok := s.(stet.WorkStore); ok {
		return &workStore{c, work{c, w}}, nil
	}
	return c, nil
}

// NewTx is New for a store with transactions. It is a stet.WorkTxStore[Tx] if s is
// one.
func NewTx[Tx any](s stet.TxStore[Tx], o Options) (stet.TxStore[Tx], error) {
	c, err := newStore(s, o)
	if err != nil {
		return nil, err
	}
	tx := &txStore[Tx]{c, s}
	if w, ok := s.(stet.WorkTxStore[Tx]); ok {
		return &workTxStore[Tx]{tx, work{c, w}, w}, nil
	}
	return tx, nil
}

func newStore(s stet.Store, o Options) (*store, error) {
	if s == nil {
		return nil, errors.New("cache: New and NewTx need a store to stand in front of")
	}
	if o.MaxBytes < 0 || o.MaxAge < 0 {
		return nil, fmt.Errorf("cache: Options.MaxBytes (%d) and MaxAge (%v) must not be negative", o.MaxBytes, o.MaxAge)
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultMaxBytes
	}
	if o.MaxAge == 0 {
		o.MaxAge = defaultMaxAge
	}
	records, err := otter.New(&otter.Options[stet.ID, entry]{
		MaximumWeight: uint64(o.MaxBytes),
		Weigher:       func(_ stet.ID, e entry) uint32 { return uint32(min(len(e.rec.Result), 1<<31)) + overhead },
	})
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	return &store{Store: s, o: o, records: records}, nil
}

// Claim implements stet.Store.
func (s *store) Claim(ctx context.Context, req stet.ClaimRequest) (stet.Record, error) {
	if rec, ok, err := s.settled(ctx, req); ok {
		return rec, err
	}
	begun, expired := time.Now(), s.expired.Load()
	rec, err := s.Store.Claim(ctx, req)
	if err == nil && rec.State == stet.Running && rec.Owner == req.Owner {
		s.granted(rec, req.Lease, begun)
	}
	if err == nil || errors.Is(err, stet.ErrMismatch) {
		s.keep(rec, expired)
	}
	return rec, err
}

// Read implements stet.Store.
func (s *store) Read(ctx context.Context, id stet.ID) (stet.Record, error) {
	if rec, ok := s.lookUp(ctx, id); ok {
		return rec, nil
	}
	expired := s.expired.Load()
	rec, err := s.Store.Read(ctx, id)
	if err == nil {
		s.keep(rec, expired)
	}
	return rec, err
}

// settled answers a request whose operation is known to be settled.
func (s *store) settled(ctx context.Context, req stet.ClaimRequest) (rec stet.Record, ok bool, err error) {
	if rec, ok = s.lookUp(ctx, req.ID); ok && rec.Fingerprint != req.Fingerprint {
		err = stet.ErrMismatch
	}
	return rec, ok, err
}

// lookUp returns the settled record of id if it is at hand. A caller that has
// left gets what the store says to that.
func (s *store) lookUp(ctx context.Context, id stet.ID) (rec stet.Record, ok bool) {
	e, ok := s.records.GetIfPresent(id)
	return e.rec, ok && ctx.Err() == nil && time.Now().Before(e.until)
}

// keep keeps a record if it is settled and can be handed out for a while.
// expired is the count of Expires before the record was asked for.
func (s *store) keep(rec stet.Record, expired int64) {
	r := s.clock.Load()
	if r == nil || !rec.State.Settled() || rec.Gone || int64(len(rec.Result)) > s.o.MaxBytes/8 {
		return
	}
	now := time.Now()
	age := now.Sub(r.local)
	left := rec.ExpiresAt.Sub(r.store.Add(age)) - margin - age/drift
	if left <= 0 || age > stale {
		return
	}
	rec.Work, rec.Notes, rec.Cancelling = nil, nil, false // which Claim and Read do not return
	s.records.Set(rec.ID, entry{rec, now.Add(min(left, s.o.MaxAge))})
	if s.expired.Load() != expired { // the record may be from before
		s.records.Invalidate(rec.ID)
	}
}

// granted reads the store's clock off a claim, for which it was asked at a time of
// this process. Of one whose first reply was lost, part of the lease has gone.
func (s *store) granted(rec stet.Record, lease time.Duration, begun time.Time) {
	s.read(rec.ClaimedAt.Add(lease-rec.LeaseLeft), begun)
}

// read notes what the store's clock showed after a time of this process.
func (s *store) read(store, local time.Time) {
	if r := s.clock.Load(); r == nil || local.Sub(r.local) > fresh {
		s.clock.Store(&reading{store, local})
	}
}

// Watch implements stet.Watcher.
func (s *store) Watch(ctx context.Context, id stet.ID, fence int64) error {
	if w, ok := s.Store.(stet.Watcher); ok {
		return w.Watch(ctx, id, fence)
	}
	return errors.New("cache: the store cannot tell; poll")
}

// Sweep implements stet.Sweeper.
func (s *store) Sweep(ctx context.Context, limit int) (stet.Swept, error) {
	if w, ok := s.Store.(stet.Sweeper); ok {
		return w.Sweep(ctx, limit)
	}
	return stet.Swept{}, nil
}

// Browse implements stet.Browser.
func (s *store) Browse(ctx context.Context, q stet.Query) (stet.Page, error) {
	if b, ok := s.Store.(stet.Browser); ok {
		return b.Browse(ctx, q)
	}
	return stet.Page{}, errNoBrowser()
}

// Expire implements stet.Browser.
func (s *store) Expire(ctx context.Context, c stet.Claim) error {
	b, ok := s.Store.(stet.Browser)
	if !ok {
		return errNoBrowser()
	}
	s.expired.Add(1)
	err := b.Expire(ctx, c)
	s.expired.Add(1) // what was asked for meanwhile may be from before
	s.records.Invalidate(c.ID)
	return err
}

func errNoBrowser() error {
	return &stet.Error{Kind: stet.ErrInvalid, Execution: stet.NotExecuted, Cause: errors.New("cache: the store cannot be browsed")}
}

// RunTx implements stet.TxStore.
func (s *txStore[Tx]) RunTx(ctx context.Context, req stet.ClaimRequest, keep stet.Retention,
	fn func(ctx context.Context, tx Tx, rec stet.Record) (stet.Outcome, error)) (stet.Record, error) {
	if rec, ok, err := s.settled(ctx, req); ok {
		return rec, err
	}
	begun := time.Now()
	rec, err := s.tx.RunTx(ctx, req, keep, fn)
	if err == nil && rec.State.Settled() && rec.Owner == req.Owner {
		s.read(rec.SettledAt, begun)
	}
	return rec, err
}

// SettleTx implements stet.TxStore.
func (s *txStore[Tx]) SettleTx(ctx context.Context, tx Tx, c stet.Claim, out stet.Outcome, keep stet.Retention) error {
	return s.tx.SettleTx(ctx, tx, c, out, keep)
}
