package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/stet-go/stet/store"
)

// faultyWork is a store.WorkStore whose calls may fail.
type faultyWork struct {
	*faulty
	work store.WorkStore
}

// dressWork is Faulty for a store.WorkStore.
func dressWork(f *faulty, ws store.WorkStore, watches, sweeps bool) store.Store {
	w := faultyWork{f, ws}
	switch {
	case watches && sweeps:
		return struct {
			faultyWork
			faultyWatcher
			faultySweeper
		}{w, faultyWatcher{f}, faultySweeper{f}}
	case watches:
		return struct {
			faultyWork
			faultyWatcher
		}{w, faultyWatcher{f}}
	case sweeps:
		return struct {
			faultyWork
			faultySweeper
		}{w, faultySweeper{f}}
	}
	return w
}

// dressWorkTx is FaultyTx for a store.WorkTxStore.
func dressWorkTx[Tx any](f *faulty, s store.WorkTxStore[Tx], watches, sweeps bool) store.WorkTxStore[Tx] {
	w := faultyWorkTx[Tx]{faultyWork{f, s}, faultyTx[Tx]{f, s}, s}
	switch {
	case watches && sweeps:
		return struct {
			faultyWorkTx[Tx]
			faultyWatcher
			faultySweeper
		}{w, faultyWatcher{f}, faultySweeper{f}}
	case watches:
		return struct {
			faultyWorkTx[Tx]
			faultyWatcher
		}{w, faultyWatcher{f}}
	case sweeps:
		return struct {
			faultyWorkTx[Tx]
			faultySweeper
		}{w, faultySweeper{f}}
	}
	return w
}

// record makes a call that returns a record, which is lost with the reply.
func (f *faulty) record(method string, call func() (store.Record, error)) (rec store.Record, err error) {
	var got store.Record
	err = f.do(method, func() (err error) {
		got, err = call()
		return err
	})
	if errors.Is(err, ErrFault) {
		return rec, err
	}
	return got, err
}

// Accept implements store.WorkStore.
func (w faultyWork) Accept(ctx context.Context, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	return w.record("Accept", func() (store.Record, error) { return w.work.Accept(ctx, req, work, after) })
}

// Take implements store.WorkStore.
func (w faultyWork) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	return w.record("Take", func() (store.Record, error) { return w.work.Take(ctx, req) })
}

// Return implements store.WorkStore.
func (w faultyWork) Return(ctx context.Context, c store.Claim, after time.Duration) error {
	return w.do("Return", func() error { return w.work.Return(ctx, c, after) })
}

// Cancel implements store.WorkStore.
func (w faultyWork) Cancel(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) (store.Record, error) {
	return w.record("Cancel", func() (store.Record, error) { return w.work.Cancel(ctx, c, out, keep) })
}

// Save implements store.WorkStore.
func (w faultyWork) Save(ctx context.Context, c store.Claim, notes []byte, repeatable bool) error {
	return w.do("Save", func() error { return w.work.Save(ctx, c, notes, repeatable) })
}

// Strike implements store.WorkStore.
func (w faultyWork) Strike(ctx context.Context, c store.Claim, notes []byte) error {
	return w.do("Strike", func() error { return w.work.Strike(ctx, c, notes) })
}

// Look implements store.WorkStore.
func (w faultyWork) Look(ctx context.Context, id store.ID) (store.Record, error) {
	return w.record("Look", func() (store.Record, error) { return w.work.Look(ctx, id) })
}

// Due implements store.WorkStore.
func (w faultyWork) Due(ctx context.Context, what store.Due, limit int, again time.Duration, names ...string) (recs []store.Record, err error) {
	var got []store.Record
	err = w.do("Due", func() (err error) {
		got, err = w.work.Due(ctx, what, limit, again, names...)
		return err
	})
	if errors.Is(err, ErrFault) {
		return nil, err
	}
	return got, err
}

// Relayed implements store.WorkStore.
func (w faultyWork) Relayed(ctx context.Context, c store.Claim, keep store.Retention) error {
	return w.do("Relayed", func() error { return w.work.Relayed(ctx, c, keep) })
}

// faultyWorkTx is a store.WorkTxStore whose calls may fail.
type faultyWorkTx[Tx any] struct {
	faultyWork
	txs faultyTx[Tx]
	tx  store.WorkTxStore[Tx]
}

// RunTx implements store.TxStore.
func (t faultyWorkTx[Tx]) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	return t.txs.RunTx(ctx, req, keep, fn)
}

// SettleTx implements store.TxStore.
func (t faultyWorkTx[Tx]) SettleTx(ctx context.Context, tx Tx, c store.Claim, out store.Settlement, keep store.Retention) error {
	return t.txs.SettleTx(ctx, tx, c, out, keep)
}

// InTx implements store.WorkTxStore.
func (t faultyWorkTx[Tx]) InTx(ctx context.Context, fn func(context.Context, Tx) error) error {
	var inner error
	err := t.do("InTx", func() error {
		inner = t.tx.InTx(ctx, fn)
		return inner
	})
	if inner != nil { // it was rolled back before there was a reply to lose
		return inner
	}
	return err
}

// AcceptTx implements store.WorkTxStore.
func (t faultyWorkTx[Tx]) AcceptTx(ctx context.Context, tx Tx, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	return t.record("AcceptTx", func() (store.Record, error) { return t.tx.AcceptTx(ctx, tx, req, work, after) })
}

// SaveTx implements store.WorkTxStore.
func (t faultyWorkTx[Tx]) SaveTx(ctx context.Context, tx Tx, c store.Claim, notes []byte, repeatable bool) error {
	return t.do("SaveTx", func() error { return t.tx.SaveTx(ctx, tx, c, notes, repeatable) })
}
