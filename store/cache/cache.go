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

// Store is a stet.Store in front of another one. It is also a stet.Watcher,
// stet.Sweeper and stet.Browser, which it leaves to that one: where that one is no
// Watcher, Watch returns an error, upon which the engine polls; where it is no
// Sweeper, there is nothing to sweep; where it is no Browser, Browse and Expire are
// ErrInvalid. It is safe for concurrent use. For a store with transactions there
// is TxStore.
type Store struct {
	stet.Store
	o       Options
	records *otter.Cache[stet.ID, entry]
	clock   atomic.Pointer[reading]
	expired atomic.Int64 // calls of Expire that have begun
}

// TxStore is a Store with transactions of type Tx.
type TxStore[Tx any] struct {
	*Store
	tx stet.TxStore[Tx]
}

var (
	_ stet.Watcher       = (*Store)(nil)
	_ stet.Sweeper       = (*Store)(nil)
	_ stet.Browser       = (*Store)(nil)
	_ stet.TxStore[bool] = (*TxStore[bool])(nil)
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

// New returns a store that keeps what it has seen settled in s.
func New(s stet.Store, o Options) (*Store, error) {
	if s == nil {
		return nil, errors.New("cache: New needs a store to stand in front of")
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
	return &Store{Store: s, o: o, records: records}, nil
}

// NewTx is New for a store with transactions.
func NewTx[Tx any](s stet.TxStore[Tx], o Options) (*TxStore[Tx], error) {
	if s == nil {
		return nil, errors.New("cache: NewTx needs a store to stand in front of")
	}
	c, err := New(s, o)
	return &TxStore[Tx]{c, s}, err
}

// Claim implements stet.Store.
func (s *Store) Claim(ctx context.Context, req stet.ClaimRequest) (stet.Record, error) {
	if rec, ok := s.lookUp(ctx, req.ID); ok {
		if rec.Fingerprint != req.Fingerprint {
			return rec, stet.ErrMismatch
		}
		return rec, nil
	}
	begun, expired := time.Now(), s.expired.Load()
	rec, err := s.Store.Claim(ctx, req)
	if err == nil && rec.State == stet.Running && rec.Owner == req.Owner {
		// Of a claim whose first reply was lost, part of the lease has gone.
		s.read(rec.ClaimedAt.Add(req.Lease-rec.LeaseLeft), begun)
	}
	if err == nil || errors.Is(err, stet.ErrMismatch) {
		s.keep(rec, expired)
	}
	return rec, err
}

// Read implements stet.Store.
func (s *Store) Read(ctx context.Context, id stet.ID) (stet.Record, error) {
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

// lookUp returns the settled record of id if it is at hand. A caller that has
// left gets what the store says to that.
func (s *Store) lookUp(ctx context.Context, id stet.ID) (rec stet.Record, ok bool) {
	e, ok := s.records.GetIfPresent(id)
	return e.rec, ok && ctx.Err() == nil && time.Now().Before(e.until)
}

// keep keeps a record if it is settled and can be handed out for a while.
// expired is the count of Expires before the record was asked for.
func (s *Store) keep(rec stet.Record, expired int64) {
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
	s.records.Set(rec.ID, entry{rec, now.Add(min(left, s.o.MaxAge))})
	if s.expired.Load() != expired { // the record may be from before
		s.records.Invalidate(rec.ID)
	}
}

// read notes what the store's clock showed after a time of this process.
func (s *Store) read(store, local time.Time) {
	if r := s.clock.Load(); r == nil || local.Sub(r.local) > fresh {
		s.clock.Store(&reading{store, local})
	}
}

// Watch implements stet.Watcher.
func (s *Store) Watch(ctx context.Context, id stet.ID, fence int64) error {
	if w, ok := s.Store.(stet.Watcher); ok {
		return w.Watch(ctx, id, fence)
	}
	return errors.New("cache: the store cannot tell; poll")
}

// Sweep implements stet.Sweeper.
func (s *Store) Sweep(ctx context.Context, limit int) (stet.Swept, error) {
	if w, ok := s.Store.(stet.Sweeper); ok {
		return w.Sweep(ctx, limit)
	}
	return stet.Swept{}, nil
}

// Browse implements stet.Browser.
func (s *Store) Browse(ctx context.Context, q stet.Query) (stet.Page, error) {
	if b, ok := s.Store.(stet.Browser); ok {
		return b.Browse(ctx, q)
	}
	return stet.Page{}, errNoBrowser()
}

// Expire implements stet.Browser.
func (s *Store) Expire(ctx context.Context, c stet.Claim) error {
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
func (s *TxStore[Tx]) RunTx(ctx context.Context, req stet.ClaimRequest, keep stet.Retention,
	fn func(ctx context.Context, tx Tx, rec stet.Record) (stet.Outcome, error)) (stet.Record, error) {
	if rec, ok := s.lookUp(ctx, req.ID); ok {
		if rec.Fingerprint != req.Fingerprint {
			return rec, stet.ErrMismatch
		}
		return rec, nil
	}
	begun := time.Now()
	rec, err := s.tx.RunTx(ctx, req, keep, fn)
	if err == nil && rec.State.Settled() && rec.Owner == req.Owner {
		s.read(rec.SettledAt, begun)
	}
	return rec, err
}

// SettleTx implements stet.TxStore.
func (s *TxStore[Tx]) SettleTx(ctx context.Context, tx Tx, c stet.Claim, out stet.Outcome, keep stet.Retention) error {
	return s.tx.SettleTx(ctx, tx, c, out, keep)
}
