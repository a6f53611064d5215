// Package tier puts Redis in front of a SQL store. Redis has the claims, the duplicates in
// flight and the recent outcomes. SQL has each outcome before a caller receives it, and until
// its retention ends. Outcomes leave Redis after Options.Hot.
//
//   - Claim claims the key in Redis, and then reads it in SQL before it grants the claim. A
//     Redis that lost a settled record therefore causes no second run.
//   - Settle writes the outcome to Redis, as pending, and compares the fence. Then it inserts
//     the outcome into SQL, if the key has no record there.
//   - A call, or a sweep, that finds a pending outcome in Redis first writes it to SQL. If SQL has
//     another outcome, that outcome is valid. No caller has received the pending one.
//
// One risk remains. If Redis loses a claim in flight, the operation can run a second time. Both
// runs then receive the outcome that reached SQL first. After Redis has lost a claim, only its
// clock makes the next fence greater.
//
// A record that has left Redis has the fence, the attempt and the times of its SQL row. Its
// owner stays the same. The store accepts a claim with either fence for it.
//
// The store has no jobs, no checkpoints and no messages: use the SQL store for them.
//
//	s, err := tier.New(redisStore, postgresStore, tier.Options{})
package tier

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/store"
)

const (
	defaultHot = 10 * time.Minute
	maxHot     = 24 * time.Hour
	moveAgain  = 30 * time.Second // until Sweep returns to a pending outcome
)

// Options configure a Store. The zero value is usable.
type Options struct {
	// Hot is how long Redis retains an outcome after SQL has it. Until then a replay needs no
	// SQL. At least 1 ms, at most 24 h. Default 10 min.
	Hot time.Duration
}

// Store is a store.Watcher, store.Sweeper and store.Browser over two stores. It is safe for
// concurrent use. It has nothing to close: close the two stores.
type Store struct {
	front   claimStore
	back    outcomeStore
	inserts *batcher // into back
	hot     time.Duration
}

// claimStore is the store of claims. Its outbox marks the outcomes that are pending.
type claimStore interface {
	store.WorkStore
	store.OutboxStore
	store.Watcher
	store.Sweeper
	store.Browser
}

// outcomeStore is the store of outcomes.
type outcomeStore interface {
	store.Store
	store.Sweeper
	store.Browser
}

var (
	_ store.Watcher = (*Store)(nil)
	_ outcomeStore  = (*Store)(nil)
)

// New returns a store with claims in claims and outcomes in outcomes. claims is a store/redis
// Store, or another one with the same abilities. outcomes is a durable store with transactions:
// store/postgres or store/sqlite. It refuses one store in both places, a store in front of
// another one (see store.Wrapper), and a claims store with transactions, because such a store
// needs no tier. All processes must share both stores, which no other program may use.
func New[Tx any](claims store.Store, outcomes store.TxStore[Tx], o Options) (*Store, error) {
	if claims == nil || outcomes == nil {
		return nil, errors.New("tier: New needs a store for claims and a store for outcomes")
	}
	o.Hot = cmp.Or(o.Hot, defaultHot)
	if o.Hot < time.Millisecond || o.Hot > maxHot {
		return nil, fmt.Errorf("tier: Options.Hot is %v; it must be 1 ms to %v", o.Hot, maxHot)
	}
	for name, s := range map[string]store.Store{"claims": claims, "outcomes": outcomes} {
		if store.Base(s) != s {
			return nil, fmt.Errorf("tier: the store for %s is a %T, which is in front of another store; pass the inner one", name, s)
		}
	}
	if _, is := claims.(store.TxStore[Tx]); is || store.Store(outcomes) == claims {
		return nil, fmt.Errorf("tier: the store for claims is a %T, which stores outcomes durably; use it alone", claims)
	}
	front, ok := claims.(claimStore)
	back, okBack := outcomes.(outcomeStore)
	if !ok || !okBack {
		return nil, fmt.Errorf("tier: %T over %T: the store for claims must be a WorkStore, OutboxStore, Watcher, Sweeper and Browser, the one for outcomes a Sweeper and Browser", claims, outcomes)
	}
	return &Store{front: front, back: back, inserts: newBatcher(outcomes), hot: o.Hot}, nil
}

// Extend implements store.Store.
func (s *Store) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
	return s.front.Extend(ctx, claims, lease)
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	// Redis can have lost the settle. If SQL is down, a later call finds the outcome.
	if inSQL, err := s.back.Read(ctx, c.ID); err == nil && inSQL.State.Settled() {
		return store.ErrFenced
	}
	return s.front.Release(ctx, c, keep)
}

// Watch implements store.Watcher.
func (s *Store) Watch(ctx context.Context, id store.ID, fence int64) error {
	return s.front.Watch(ctx, id, fence)
}
