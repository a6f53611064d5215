package cache

import (
	"context"
	"time"

	"github.com/stet-go/stet/store"
)

// work passes the calls of a store.WorkStore on. Accept returns a cached outcome, like Claim.
type work struct {
	cache *cached
	under store.WorkStore
}

// workStore is a cached store.WorkStore.
type workStore struct {
	store.Store
	work
}

// Unwrap implements store.Wrapper.
func (s *workStore) Unwrap() store.Store { return s.Store }

// workTxStore is a cached store.WorkTxStore.
type workTxStore[Tx any] struct {
	*txStore[Tx]
	work
	txs store.WorkTxStore[Tx]
}

// Accept implements store.WorkStore.
func (w work) Accept(ctx context.Context, req store.ClaimRequest, what []byte, after time.Duration) (store.Record, error) {
	if rec, ok, err := w.cache.settled(ctx, req); ok {
		return rec, err
	}
	expired := w.cache.expired.Load()
	rec, err := w.under.Accept(ctx, req, what, after)
	if err == nil {
		w.cache.add(rec, expired)
	}
	return rec, err
}

// Take implements store.WorkStore.
func (w work) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	begun, expired := time.Now(), w.cache.expired.Load()
	rec, err := w.under.Take(ctx, req)
	if err != nil {
		return rec, err
	}
	if rec.State == store.Running && rec.Owner == req.Owner {
		w.cache.granted(rec, req.Lease, begun)
	}
	w.cache.add(rec, expired)
	return rec, nil
}

// Return implements store.WorkStore.
func (w work) Return(ctx context.Context, c store.Claim, after time.Duration) error {
	return w.under.Return(ctx, c, after)
}

// Cancel implements store.WorkStore.
func (w work) Cancel(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) (store.Record, error) {
	return w.under.Cancel(ctx, c, out, keep)
}

// Save implements store.WorkStore.
func (w work) Save(ctx context.Context, c store.Claim, notes store.Notes, repeatable bool) error {
	return w.under.Save(ctx, c, notes, repeatable)
}

// Amend implements store.WorkStore.
func (w work) Amend(ctx context.Context, c store.Claim, notes store.Notes) error {
	return w.under.Amend(ctx, c, notes)
}

// Look implements store.WorkStore.
func (w work) Look(ctx context.Context, id store.ID) (store.Record, error) {
	return w.under.Look(ctx, id)
}

// Due implements store.WorkStore.
func (w work) Due(ctx context.Context, limit int, again time.Duration, names ...string) ([]store.Record, error) {
	return w.under.Due(ctx, limit, again, names...)
}

// InTx implements store.WorkTxStore.
func (s *workTxStore[Tx]) InTx(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error {
	return s.txs.InTx(ctx, fn)
}

// AcceptTx implements store.WorkTxStore.
func (s *workTxStore[Tx]) AcceptTx(ctx context.Context, tx Tx, req store.ClaimRequest, what []byte, after time.Duration) (store.Record, error) {
	return s.txs.AcceptTx(ctx, tx, req, what, after)
}

// SaveTx implements store.WorkTxStore.
func (s *workTxStore[Tx]) SaveTx(ctx context.Context, tx Tx, c store.Claim, notes store.Notes, repeatable bool) error {
	return s.txs.SaveTx(ctx, tx, c, notes, repeatable)
}
