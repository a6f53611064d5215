package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/stet-go/stet/store"
)

// faultyWork is what a store.WorkStore does besides, in calls that may fail.
type faultyWork struct {
	f    *faulty
	work store.WorkStore
}

// faultyWorker is a store.WorkStore whose calls may fail.
type faultyWorker struct {
	layer
	faultyWork
}

// faultyOutbox is a store.OutboxStore whose calls may fail.
type faultyOutbox struct {
	layer
	f      *faulty
	outbox store.OutboxStore
}

// DueMessages implements store.OutboxStore.
func (o faultyOutbox) DueMessages(ctx context.Context, limit int, again time.Duration) ([]store.Record, error) {
	return o.f.records("DueMessages", func() ([]store.Record, error) { return o.outbox.DueMessages(ctx, limit, again) })
}

// Relayed implements store.OutboxStore.
func (o faultyOutbox) Relayed(ctx context.Context, c store.Claim, keep store.Retention) error {
	return o.f.do("Relayed", func() error { return o.outbox.Relayed(ctx, c, keep) })
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
	return w.f.record("Accept", func() (store.Record, error) { return w.work.Accept(ctx, req, work, after) })
}

// Take implements store.WorkStore.
func (w faultyWork) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	return w.f.record("Take", func() (store.Record, error) { return w.work.Take(ctx, req) })
}

// Return implements store.WorkStore.
func (w faultyWork) Return(ctx context.Context, c store.Claim, after time.Duration) error {
	return w.f.do("Return", func() error { return w.work.Return(ctx, c, after) })
}

// Cancel implements store.WorkStore.
func (w faultyWork) Cancel(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) (store.Record, error) {
	return w.f.record("Cancel", func() (store.Record, error) { return w.work.Cancel(ctx, c, out, keep) })
}

// Save implements store.WorkStore.
func (w faultyWork) Save(ctx context.Context, c store.Claim, notes store.Notes, repeatable bool) error {
	return w.f.do("Save", func() error { return w.work.Save(ctx, c, notes, repeatable) })
}

// Amend implements store.WorkStore.
func (w faultyWork) Amend(ctx context.Context, c store.Claim, notes store.Notes) error {
	return w.f.do("Amend", func() error { return w.work.Amend(ctx, c, notes) })
}

// Look implements store.WorkStore.
func (w faultyWork) Look(ctx context.Context, id store.ID) (store.Record, error) {
	return w.f.record("Look", func() (store.Record, error) { return w.work.Look(ctx, id) })
}

// Due implements store.WorkStore.
func (w faultyWork) Due(ctx context.Context, limit int, again time.Duration, names ...string) (recs []store.Record, err error) {
	return w.f.records("Due", func() ([]store.Record, error) { return w.work.Due(ctx, limit, again, names...) })
}

// records makes a call that returns records, which are lost with the reply.
func (f *faulty) records(method string, call func() ([]store.Record, error)) ([]store.Record, error) {
	var got []store.Record
	err := f.do(method, func() (err error) {
		got, err = call()
		return err
	})
	if errors.Is(err, ErrFault) {
		return nil, err
	}
	return got, err
}

// faultyWorkTx is a store.WorkTxStore whose calls may fail.
type faultyWorkTx[Tx any] struct {
	faultyTx[Tx]
	faultyWork
	works store.WorkTxStore[Tx]
}

// InTx implements store.WorkTxStore.
func (t faultyWorkTx[Tx]) InTx(ctx context.Context, fn func(context.Context, Tx) error) error {
	var inner error
	err := t.faultyTx.f.do("InTx", func() error {
		inner = t.works.InTx(ctx, fn)
		return inner
	})
	if inner != nil { // it was rolled back before there was a reply to lose
		return inner
	}
	return err
}

// AcceptTx implements store.WorkTxStore.
func (t faultyWorkTx[Tx]) AcceptTx(ctx context.Context, tx Tx, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	return t.faultyTx.f.record("AcceptTx", func() (store.Record, error) { return t.works.AcceptTx(ctx, tx, req, work, after) })
}

// SaveTx implements store.WorkTxStore.
func (t faultyWorkTx[Tx]) SaveTx(ctx context.Context, tx Tx, c store.Claim, notes store.Notes, repeatable bool) error {
	return t.faultyTx.f.do("SaveTx", func() error { return t.works.SaveTx(ctx, tx, c, notes, repeatable) })
}
