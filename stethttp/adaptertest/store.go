package adaptertest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// Tx is a transaction of the package's own store: its rows are there once it is
// committed, and not before.
type Tx struct{ rows []string }

// Insert writes a row in the transaction.
func (tx *Tx) Insert(row string) { tx.rows = append(tx.rows, row) }

var errDown = errors.New("adaptertest: the store is down")

// books is a store.TxStore over memory whose calls can fail.
type books struct {
	*memory.Store
	noClaim, noSettle, noCommit atomic.Bool
	overtaken                   atomic.Bool // another transaction is faster than the next one, and is rolled back

	mu   sync.Mutex
	rows []string // committed
}

func newBooks() *books { return &books{Store: memory.New(memory.Options{})} }

func (s *books) committed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.rows)
}

func (s *books) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	if s.noClaim.Load() {
		return store.Record{}, errDown
	}
	return s.Store.Claim(ctx, req)
}

func (s *books) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	if s.noSettle.Load() {
		return errDown
	}
	return s.Store.Settle(ctx, c, out, keep)
}

// RunTx implements store.TxStore. A claim of memory's stands for the lock on the key.
func (s *books) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, *Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	rec, err := s.Claim(ctx, req)
	if err != nil || rec.State != store.Running || rec.Owner != req.Owner {
		return rec, err
	}
	committed := false
	defer func() {
		if !committed {
			_ = s.Release(context.WithoutCancel(ctx), rec.Claim(), store.Retention{}) // a rollback leaves nothing
		}
	}()
	tx := &Tx{}
	out, err := fn(ctx, tx, rec)
	if err != nil {
		return rec, err
	}
	if s.noCommit.Load() {
		return rec, errDown
	}
	if s.overtaken.CompareAndSwap(true, false) {
		rec.Owner[0]++
		return rec, nil
	}
	if err := s.Store.Settle(ctx, rec.Claim(), out, keep); err != nil {
		return rec, err
	}
	committed = true
	s.mu.Lock()
	s.rows = append(s.rows, tx.rows...)
	s.mu.Unlock()
	rec.State, rec.Result, rec.Gone = out.State, out.Result, out.Gone
	return rec, nil
}

// SettleTx implements store.TxStore.
func (s *books) SettleTx(ctx context.Context, _ *Tx, c store.Claim, out store.Settlement, keep store.Retention) error {
	return s.Store.Settle(ctx, c, out, keep)
}
