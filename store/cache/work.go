package cache

import (
	"context"
	"errors"
	"time"

	"github.com/stet-go/stet"
)

// work is what a store does besides in front of one that holds work: it leaves it to
// that one. An acceptance of what is settled is answered like a claim.
type work struct {
	cache *store
	under stet.WorkStore
}

// workStore is a store in front of a stet.WorkStore.
type workStore struct {
	*store
	work
}

// workTxStore is a txStore in front of a stet.WorkTxStore.
type workTxStore[Tx any] struct {
	*txStore[Tx]
	work
	txs stet.WorkTxStore[Tx]
}

// Accept implements stet.WorkStore.
func (w work) Accept(ctx context.Context, req stet.ClaimRequest, what []byte, after time.Duration) (stet.Record, error) {
	if rec, ok, err := w.cache.settled(ctx, req); ok {
		return rec, err
	}
	expired := w.cache.expired.Load()
	rec, err := w.under.Accept(ctx, req, what, after)
	if err == nil || errors.Is(err, stet.ErrMismatch) {
		w.cache.keep(rec, expired)
	}
	return rec, err
}

// Take implements stet.WorkStore.
func (w work) Take(ctx context.Context, id stet.ID, owner stet.Owner, lease time.Duration) (stet.Record, error) {
	begun, expired := time.Now(), w.cache.expired.Load()
	rec, err := w.under.Take(ctx, id, owner, lease)
	if err != nil {
		return rec, err
	}
	if rec.State == stet.Running && rec.Owner == owner {
		w.cache.granted(rec, lease, begun)
	}
	w.cache.keep(rec, expired)
	return rec, nil
}

// Return implements stet.WorkStore.
func (w work) Return(ctx context.Context, c stet.Claim, after time.Duration) error {
	return w.under.Return(ctx, c, after)
}

// Cancel implements stet.WorkStore.
func (w work) Cancel(ctx context.Context, c stet.Claim, out stet.Outcome, keep stet.Retention) (stet.Record, error) {
	return w.under.Cancel(ctx, c, out, keep)
}

// Save implements stet.WorkStore.
func (w work) Save(ctx context.Context, c stet.Claim, notes []byte) error {
	return w.under.Save(ctx, c, notes)
}

// Strike implements stet.WorkStore.
func (w work) Strike(ctx context.Context, c stet.Claim, notes []byte) error {
	return w.under.Strike(ctx, c, notes)
}

// Look implements stet.WorkStore.
func (w work) Look(ctx context.Context, id stet.ID) (stet.Record, error) {
	return w.under.Look(ctx, id)
}

// Due implements stet.WorkStore.
func (w work) Due(ctx context.Context, what stet.Due, limit int, again time.Duration) ([]stet.Record, error) {
	return w.under.Due(ctx, what, limit, again)
}

// Relayed implements stet.WorkStore.
func (w work) Relayed(ctx context.Context, c stet.Claim, keep stet.Retention) error {
	return w.under.Relayed(ctx, c, keep)
}

// InTx implements stet.WorkTxStore.
func (s *workTxStore[Tx]) InTx(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error {
	return s.txs.InTx(ctx, fn)
}

// AcceptTx implements stet.WorkTxStore.
func (s *workTxStore[Tx]) AcceptTx(ctx context.Context, tx Tx, req stet.ClaimRequest, what []byte, after time.Duration) (stet.Record, error) {
	return s.txs.AcceptTx(ctx, tx, req, what, after)
}

// SaveTx implements stet.WorkTxStore.
func (s *workTxStore[Tx]) SaveTx(ctx context.Context, tx Tx, c stet.Claim, notes []byte) error {
	return s.txs.SaveTx(ctx, tx, c, notes)
}
