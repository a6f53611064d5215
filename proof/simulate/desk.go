package simulate

import (
	"context"
	"errors"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// desk is a process whose engine has a stet.WorkTxStore.
type desk struct{ *process }

func (d desk) store() stet.WorkStore { return d.w.works }

// inTx is the engine with the process's transactions.
func (d desk) inTx() *stet.TxEngine[*workTx] {
	te, err := stet.WithTx(d.engine, d)
	if err != nil {
		panic(err)
	}
	return te
}

// Accept implements stet.WorkStore.
func (d desk) Accept(ctx context.Context, req stet.ClaimRequest, work []byte, after time.Duration) (stet.Record, error) {
	c := &call{p: d.process, kind: accept, key: d.w.key(req.ID), print: req.Fingerprint, owner: req.Owner}
	c.do = func() (err error) {
		c.rec, err = d.store().Accept(d.ctx, req, work, after)
		return err
	}
	err := c.await(ctx)
	if err != nil && !errors.Is(err, stet.ErrMismatch) {
		return stet.Record{}, err
	}
	return c.rec, err
}

// Take implements stet.WorkStore.
func (d desk) Take(ctx context.Context, req store.TakeRequest) (stet.Record, error) {
	c := &call{p: d.process, kind: take, key: d.w.key(req.ID), owner: req.Owner}
	c.do = func() (err error) {
		c.rec, err = d.store().Take(d.ctx, req)
		return err
	}
	if err := c.await(ctx); err != nil {
		return stet.Record{}, err
	}
	return c.rec, nil
}

// Return implements stet.WorkStore.
func (d desk) Return(ctx context.Context, cl stet.Claim, after time.Duration) error {
	c := &call{p: d.process, kind: giveBack, key: d.w.key(cl.ID), fence: cl.Fence, do: func() error {
		return d.store().Return(d.ctx, cl, after)
	}}
	return c.await(ctx)
}

// Cancel implements stet.WorkStore.
func (d desk) Cancel(ctx context.Context, cl stet.Claim, out store.Settlement, keep stet.Retention) (stet.Record, error) {
	c := &call{p: d.process, kind: cancel, key: d.w.key(cl.ID), fence: cl.Fence}
	c.do = func() (err error) {
		c.rec, err = d.store().Cancel(d.ctx, cl, out, keep)
		return err
	}
	if err := c.await(ctx); err != nil {
		return stet.Record{}, err
	}
	return c.rec, nil
}

// Save implements stet.WorkStore.
func (d desk) Save(ctx context.Context, cl stet.Claim, notes []byte, repeatable bool) error {
	c := &call{p: d.process, kind: save, key: d.w.key(cl.ID), fence: cl.Fence, do: func() error {
		return d.store().Save(d.ctx, cl, notes, repeatable)
	}}
	return c.await(ctx)
}

// Strike implements stet.WorkStore.
func (d desk) Strike(ctx context.Context, cl stet.Claim, notes []byte) error {
	c := &call{p: d.process, kind: strike, key: d.w.key(cl.ID), fence: cl.Fence, do: func() error {
		return d.store().Strike(d.ctx, cl, notes)
	}}
	return c.await(ctx)
}

// Look implements stet.WorkStore.
func (d desk) Look(ctx context.Context, id stet.ID) (stet.Record, error) {
	c := &call{p: d.process, kind: peek, key: d.w.key(id)}
	c.do = func() (err error) {
		c.rec, err = d.store().Look(d.ctx, id)
		return err
	}
	if err := c.await(ctx); err != nil {
		return stet.Record{}, err
	}
	return c.rec, nil
}

// Due implements stet.WorkStore.
func (d desk) Due(ctx context.Context, what stet.Due, limit int, again time.Duration, names ...string) ([]stet.Record, error) {
	var recs []stet.Record
	c := &call{p: d.process, kind: due, do: func() (err error) {
		recs, err = d.store().Due(d.ctx, what, limit, again, names...)
		return err
	}}
	if err := c.await(ctx); err != nil {
		return nil, err
	}
	return recs, nil
}

// Relayed implements stet.WorkStore.
func (d desk) Relayed(ctx context.Context, cl stet.Claim, keep stet.Retention) error {
	c := &call{p: d.process, kind: relayed, key: d.w.key(cl.ID), fence: cl.Fence, do: func() error {
		return d.store().Relayed(d.ctx, cl, keep)
	}}
	return c.await(ctx)
}

// RunTx implements stet.TxStore, but for doing anything.
func (d desk) RunTx(context.Context, stet.ClaimRequest, stet.Retention,
	func(context.Context, *workTx, stet.Record) (store.Settlement, error)) (stet.Record, error) {
	panic("simulate: not simulated")
}

// workTx is a transaction that writes to the record of one accepted operation. Its
// statements only look whether they would do; its COMMIT looks again, and carries
// everything out or nothing. So it can do all that a server can, which locks the
// record meanwhile, and be rolled back for no other reason than that it lost a race.
type workTx struct {
	p     *process
	key   int8
	claim stet.Claim
	wrote []wrote
	// write is the statement, nil for none; it returns the record of one that accepts.
	write func(stet.WorkStore) (stet.Record, error)
	req   stet.ClaimRequest // of one that accepts
}

// wrote is a business write of a transaction.
type wrote struct {
	part part
	made made
}

// InTx implements stet.WorkTxStore.
func (d desk) InTx(ctx context.Context, fn func(context.Context, *workTx) error) error {
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
		case errors.Is(err, stet.ErrFenced), errors.Is(err, stet.ErrMismatch):
			return errAborted // somebody else was faster
		case err != nil:
			return err
		case tx.req.Owner != stet.Owner{} && (rec.State != stet.Accepted || rec.Owner != tx.req.Owner):
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
func (d desk) statement(ctx context.Context, tx *workTx, id stet.ID, do func(now stet.Record) error) error {
	tx.key = d.w.key(id)
	c := &call{p: d.process, kind: statement, key: tx.key}
	c.do = func() error { return do(d.w.look(int(tx.key)).rec) }
	return c.await(ctx)
}

// SettleTx implements stet.TxStore.
func (d desk) SettleTx(ctx context.Context, tx *workTx, cl stet.Claim, out store.Settlement, keep stet.Retention) error {
	tx.claim = cl
	tx.write = func(ws stet.WorkStore) (stet.Record, error) {
		if d.w.look(int(tx.key)).rec.State.Settled() {
			return stet.Record{}, stet.ErrFenced
		}
		return stet.Record{}, ws.Settle(d.ctx, cl, out, keep)
	}
	return d.statement(ctx, tx, cl.ID, func(now stet.Record) error {
		if now.Fence != cl.Fence || now.State != stet.Running && now.State != stet.Unknown {
			return stet.ErrFenced
		}
		return nil
	})
}

// SaveTx implements stet.WorkTxStore.
func (d desk) SaveTx(ctx context.Context, tx *workTx, cl stet.Claim, notes []byte, repeatable bool) error {
	tx.claim = cl
	tx.write = func(ws stet.WorkStore) (stet.Record, error) {
		return stet.Record{}, ws.Save(d.ctx, cl, notes, repeatable)
	}
	return d.statement(ctx, tx, cl.ID, func(now stet.Record) error {
		if now.Fence != cl.Fence || now.State != stet.Running {
			return stet.ErrFenced
		}
		return nil
	})
}

// AcceptTx implements stet.WorkTxStore.
func (d desk) AcceptTx(ctx context.Context, tx *workTx, req stet.ClaimRequest, work []byte, after time.Duration) (rec stet.Record, err error) {
	err = d.statement(ctx, tx, req.ID, func(now stet.Record) error {
		switch {
		case now.State != stet.None && now.Fingerprint != req.Fingerprint:
			rec = now
			return stet.ErrMismatch
		case now.State != stet.None:
			rec = now
			return nil
		}
		tx.req = req
		tx.write = func(ws stet.WorkStore) (stet.Record, error) {
			if now := d.w.look(int(tx.key)).rec; now.State != stet.None {
				return now, nil
			}
			return ws.Accept(d.ctx, req, work, after)
		}
		rec = stet.Record{ID: req.ID, Scope: req.Scope, State: stet.Accepted, Fingerprint: req.Fingerprint, Owner: req.Owner, Fence: now.Fence + 1}
		return nil
	})
	if err != nil && !errors.Is(err, stet.ErrMismatch) {
		return stet.Record{}, err
	}
	return rec, err
}
