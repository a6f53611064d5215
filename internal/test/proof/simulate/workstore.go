package simulate

import (
	"context"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// workStore is a process whose engine has a store.WorkTxStore.
type workStore struct{ *process }

func (d workStore) store() store.WorkStore { return d.w.works }

// inTx is the engine with the process's transactions.
func (d workStore) inTx() *stet.TxEngine[*workTx] {
	te, err := stet.WithTx(d.engine, d)
	if err != nil {
		panic(err)
	}
	return te
}

// Accept implements store.WorkStore.
func (d workStore) Accept(ctx context.Context, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	c := &call{p: d.process, kind: accept, key: d.w.key(req.ID), print: req.Fingerprint, owner: req.Owner}
	c.do = func() (err error) {
		c.rec, err = d.store().Accept(d.ctx, req, work, after)
		return err
	}
	err := c.await(ctx)
	if err != nil && stet.KindOf(err) != stet.KindMismatch {
		return store.Record{}, err
	}
	return c.rec, err
}

// Take implements store.WorkStore.
func (d workStore) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	c := &call{p: d.process, kind: take, key: d.w.key(req.ID), owner: req.Owner}
	c.do = func() (err error) {
		c.rec, err = d.store().Take(d.ctx, req)
		return err
	}
	if err := c.await(ctx); err != nil {
		return store.Record{}, err
	}
	return c.rec, nil
}

// Return implements store.WorkStore.
func (d workStore) Return(ctx context.Context, cl store.Claim, after time.Duration) error {
	c := &call{p: d.process, kind: giveBack, key: d.w.key(cl.ID), fence: cl.Fence, do: func() error {
		return d.store().Return(d.ctx, cl, after)
	}}
	return c.await(ctx)
}

// Cancel implements store.WorkStore.
func (d workStore) Cancel(ctx context.Context, cl store.Claim, out store.Settlement, keep store.Retention) (store.Record, error) {
	c := &call{p: d.process, kind: cancel, key: d.w.key(cl.ID), fence: cl.Fence}
	c.do = func() (err error) {
		c.rec, err = d.store().Cancel(d.ctx, cl, out, keep)
		return err
	}
	if err := c.await(ctx); err != nil {
		return store.Record{}, err
	}
	return c.rec, nil
}

// Save implements store.WorkStore.
func (d workStore) Save(ctx context.Context, cl store.Claim, notes store.Notes, repeatable bool) error {
	c := &call{p: d.process, kind: save, key: d.w.key(cl.ID), fence: cl.Fence, do: func() error {
		return d.store().Save(d.ctx, cl, notes, repeatable)
	}}
	return c.await(ctx)
}

// Amend implements store.WorkStore.
func (d workStore) Amend(ctx context.Context, cl store.Claim, notes store.Notes) error {
	c := &call{p: d.process, kind: amend, key: d.w.key(cl.ID), fence: cl.Fence, do: func() error {
		return d.store().Amend(d.ctx, cl, notes)
	}}
	return c.await(ctx)
}

// Look implements store.WorkStore.
func (d workStore) Look(ctx context.Context, id store.ID) (store.Record, error) {
	c := &call{p: d.process, kind: peek, key: d.w.key(id)}
	c.do = func() (err error) {
		c.rec, err = d.store().Look(d.ctx, id)
		return err
	}
	if err := c.await(ctx); err != nil {
		return store.Record{}, err
	}
	return c.rec, nil
}

// Due implements store.WorkStore.
func (d workStore) Due(ctx context.Context, limit int, again time.Duration, names ...string) ([]store.Record, error) {
	return d.handOut(ctx, func() ([]store.Record, error) { return d.store().Due(d.ctx, limit, again, names...) })
}

// DueMessages implements store.OutboxStore.
func (d workStore) DueMessages(ctx context.Context, limit int, again time.Duration) ([]store.Record, error) {
	return d.handOut(ctx, func() ([]store.Record, error) { return d.w.outbox.DueMessages(d.ctx, limit, again) })
}

// handOut calls Due.
func (d workStore) handOut(ctx context.Context, ask func() ([]store.Record, error)) ([]store.Record, error) {
	var recs []store.Record
	c := &call{p: d.process, kind: due, do: func() (err error) {
		recs, err = ask()
		return err
	}}
	if err := c.await(ctx); err != nil {
		return nil, err
	}
	return recs, nil
}

// Relayed implements store.OutboxStore.
func (d workStore) Relayed(ctx context.Context, cl store.Claim, keep store.Retention) error {
	c := &call{p: d.process, kind: relayed, key: d.w.key(cl.ID), fence: cl.Fence, do: func() error {
		return d.w.outbox.Relayed(d.ctx, cl, keep)
	}}
	return c.await(ctx)
}

// RunTx implements store.TxStore, but for doing anything.
func (d workStore) RunTx(context.Context, store.ClaimRequest, store.Retention,
	func(context.Context, *workTx, store.Record) (store.Settlement, error)) (store.Record, error) {
	panic("simulate: not simulated")
}

// workTx is a transaction that writes to the record of one accepted operation. Its
// statements only look whether they would do; its COMMIT looks again, and carries
// everything out or nothing. So it can do all that a server can, which locks the
// record in the meantime, and be rolled back for no other reason than that it lost a race.
type workTx struct {
	p     *process
	key   int8
	claim store.Claim
	wrote []wrote
	// write is the statement, nil for none; for an acceptance it returns the record.
	write func(store.WorkStore) (store.Record, error)
	req   store.ClaimRequest // of an acceptance
}

// wrote is a business write of a transaction.
type wrote struct {
	part part
	made made
}

// InTx implements store.WorkTxStore.
func (d workStore) InTx(ctx context.Context, fn func(context.Context, *workTx) error) error {
	tx := &workTx{p: d.process}
	if err := fn(ctx, tx); err != nil {
		return err // nothing was carried out
	}
	c := &call{p: d.process, kind: workCommit, key: tx.key, fence: tx.claim.Fence, owner: tx.req.Owner, print: tx.req.Fingerprint}
	c.do = func() error { return d.w.commits(d.w, tx) }
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	return c.await(ctx)
}

// commitWork carries a transaction out.
func (w *world) commitWork(tx *workTx) error {
	if tx.write != nil {
		rec, err := tx.write(w.works)
		switch {
		case stet.KindOf(err) == stet.KindFenced, stet.KindOf(err) == stet.KindMismatch:
			return errAborted // another caller was faster
		case err != nil:
			return err
		case tx.req.Owner != store.Owner{} && (rec.State != store.Accepted || rec.Owner != tx.req.Owner):
			return errAborted
		}
	}
	w.keep(tx)
	return nil
}

// keep keeps the business writes of a transaction.
func (w *world) keep(tx *workTx) {
	w.count.Commits++
	for _, wr := range tx.wrote {
		all := &w.office.made[tx.key][wr.part]
		*all = append(*all, wr.made)
		w.count.Effects++
	}
}

// statement has a statement of a transaction looked at.
func (d workStore) statement(ctx context.Context, tx *workTx, id store.ID, do func(now store.Record) error) error {
	tx.key = d.w.key(id)
	c := &call{p: d.process, kind: statement, key: tx.key}
	c.do = func() error { return do(d.w.look(int(tx.key)).rec) }
	return c.await(ctx)
}

// SettleTx implements store.TxStore.
func (d workStore) SettleTx(ctx context.Context, tx *workTx, cl store.Claim, out store.Settlement, keep store.Retention) error {
	tx.claim = cl
	tx.write = func(ws store.WorkStore) (store.Record, error) {
		if d.w.look(int(tx.key)).rec.State.Settled() {
			return store.Record{}, store.ErrFenced
		}
		return store.Record{}, ws.Settle(d.ctx, cl, out, keep)
	}
	return d.statement(ctx, tx, cl.ID, func(now store.Record) error {
		if now.Fence != cl.Fence || now.State != store.Running && now.State != store.Unknown {
			return store.ErrFenced
		}
		return nil
	})
}

// SaveTx implements store.WorkTxStore.
func (d workStore) SaveTx(ctx context.Context, tx *workTx, cl store.Claim, notes store.Notes, repeatable bool) error {
	tx.claim = cl
	tx.write = func(ws store.WorkStore) (store.Record, error) {
		return store.Record{}, ws.Save(d.ctx, cl, notes, repeatable)
	}
	return d.statement(ctx, tx, cl.ID, func(now store.Record) error {
		if now.Fence != cl.Fence || now.State != store.Running {
			return store.ErrFenced
		}
		return nil
	})
}

// AcceptTx implements store.WorkTxStore.
func (d workStore) AcceptTx(ctx context.Context, tx *workTx, req store.ClaimRequest, work []byte, after time.Duration) (rec store.Record, err error) {
	err = d.statement(ctx, tx, req.ID, func(now store.Record) error {
		switch {
		case now.State != store.None && now.Fingerprint != req.Fingerprint:
			rec = now
			return store.ErrMismatch
		case now.State != store.None:
			rec = now
			return nil
		}
		tx.req = req
		tx.write = func(ws store.WorkStore) (store.Record, error) {
			if now := d.w.look(int(tx.key)).rec; now.State != store.None {
				return now, nil
			}
			return ws.Accept(d.ctx, req, work, after)
		}
		rec = store.Record{ID: req.ID, Scope: req.Scope, State: store.Accepted, Fingerprint: req.Fingerprint, Owner: req.Owner, Fence: now.Fence + 1}
		return nil
	})
	if err != nil && stet.KindOf(err) != stet.KindMismatch {
		return store.Record{}, err
	}
	return rec, err
}
