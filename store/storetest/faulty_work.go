package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/stet-go/stet"
)

// faultyWork is a stet.WorkStore whose calls may fail.
type faultyWork struct {
	*faulty
	work stet.WorkStore
}

// dressWork is Faulty for a stet.WorkStore.
func dressWork(f *faulty, ws stet.WorkStore, watches, sweeps bool) stet.Store {
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

// dressWorkTx is FaultyTx for a stet.WorkTxStore.
func dressWorkTx[Tx any](f *faulty, s stet.WorkTxStore[Tx], watches, sweeps bool) stet.WorkTxStore[Tx] {
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
func (f *faulty) record(method string, call func() (stet.Record, error)) (rec stet.Record, err error) {
	var got stet.Record
	err = f.do(method, func() (err error) {
		got, err = call()
		return err
	})
	if errors.Is(err, ErrFault) {
		return rec, err
	}
	return got, err
}

// Accept implements stet.WorkStore.
func (w faultyWork) Accept(ctx context.Context, req stet.ClaimRequest, work []byte, after time.Duration) (stet.Record, error) {
	return w.record("Accept", func() (stet.Record, error) { return w.work.Accept(ctx, req, work, after) })
}

// Take implements stet.WorkStore.
func (w faultyWork) Take(ctx context.Context, id stet.ID, owner stet.Owner, lease time.Duration) (stet.Record, error) {
	return w.record("Take", func() (stet.Record, error) { return w.work.Take(ctx, id, owner, lease) })
}

// Return implements stet.WorkStore.
func (w faultyWork) Return(ctx context.Context, c stet.Claim, after time.Duration) error {
	return w.do("Return", func() error { return w.work.Return(ctx, c, after) })
}

// Cancel implements stet.WorkStore.
func (w faultyWork) Cancel(ctx context.Context, c stet.Claim, out stet.Outcome, keep stet.Retention) (stet.Record, error) {
	return w.record("Cancel", func() (stet.Record, error) { return w.work.Cancel(ctx, c, out, keep) })
}

// Save implements stet.WorkStore.
func (w faultyWork) Save(ctx context.Context, c stet.Claim, notes []byte) error {
	return w.do("Save", func() error { return w.work.Save(ctx, c, notes) })
}

// Strike implements stet.WorkStore.
func (w faultyWork) Strike(ctx context.Context, c stet.Claim, notes []byte) error {
	return w.do("Strike", func() error { return w.work.Strike(ctx, c, notes) })
}

// Look implements stet.WorkStore.
func (w faultyWork) Look(ctx context.Context, id stet.ID) (stet.Record, error) {
	return w.record("Look", func() (stet.Record, error) { return w.work.Look(ctx, id) })
}

// Due implements stet.WorkStore.
func (w faultyWork) Due(ctx context.Context, what stet.Due, limit int, again time.Duration) (recs []stet.Record, err error) {
	var got []stet.Record
	err = w.do("Due", func() (err error) {
		got, err = w.work.Due(ctx, what, limit, again)
		return err
	})
	if errors.Is(err, ErrFault) {
		return nil, err
	}
	return got, err
}

// Relayed implements stet.WorkStore.
func (w faultyWork) Relayed(ctx context.Context, c stet.Claim, keep stet.Retention) error {
	return w.do("Relayed", func() error { return w.work.Relayed(ctx, c, keep) })
}

// faultyWorkTx is a stet.WorkTxStore whose calls may fail.
type faultyWorkTx[Tx any] struct {
	faultyWork
	txs faultyTx[Tx]
	tx  stet.WorkTxStore[Tx]
}

// RunTx implements stet.TxStore.
func (t faultyWorkTx[Tx]) RunTx(ctx context.Context, req stet.ClaimRequest, keep stet.Retention,
	fn func(context.Context, Tx, stet.Record) (stet.Outcome, error)) (stet.Record, error) {
	return t.txs.RunTx(ctx, req, keep, fn)
}

// SettleTx implements stet.TxStore.
func (t faultyWorkTx[Tx]) SettleTx(ctx context.Context, tx Tx, c stet.Claim, out stet.Outcome, keep stet.Retention) error {
	return t.txs.SettleTx(ctx, tx, c, out, keep)
}

// InTx implements stet.WorkTxStore.
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

// AcceptTx implements stet.WorkTxStore.
func (t faultyWorkTx[Tx]) AcceptTx(ctx context.Context, tx Tx, req stet.ClaimRequest, work []byte, after time.Duration) (stet.Record, error) {
	return t.record("AcceptTx", func() (stet.Record, error) { return t.tx.AcceptTx(ctx, tx, req, work, after) })
}

// SaveTx implements stet.WorkTxStore.
func (t faultyWorkTx[Tx]) SaveTx(ctx context.Context, tx Tx, c stet.Claim, notes []byte) error {
	return t.do("SaveTx", func() error { return t.tx.SaveTx(ctx, tx, c, notes) })
}
