package simulate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

const (
	// Like the others in package simulate, of which no two coincide.
	commitTimeout = 161 * quantum / 100
	lookFor       = 312 * quantum / 100 // what became of a commit
	lookAgain     = 43 * quantum / 100
)

// RunTx implements store.TxStore, as a store does whose server is far away.
func (p *process) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, *txn, store.Record) (store.Settlement, error)) (store.Record, error) {
	t := &txn{p: p, client: -1, key: p.w.key(req.ID), req: req}
	if n, ok := ctx.Value(clientOf{}).(int8); ok {
		t.client = n
	}
	p.w.transacting(t, 1)
	committing := false
	defer func() { // also when fn panics
		if !committing {
			p.hangUp(t)
		}
		p.w.transacting(t, -1)
	}()
	rec, err := p.enter(ctx, t)
	if err != nil || rec.State != store.Running || rec.Owner != req.Owner {
		return rec, err
	}
	out, err := fn(ctx, t, rec)
	if err != nil {
		return rec, err
	}
	committing = true
	return p.commit(context.WithoutCancel(ctx), t, out, keep)
}

// SettleTx implements store.TxStore, but for doing anything.
func (p *process) SettleTx(context.Context, *txn, store.Claim, store.Settlement, store.Retention) error {
	return fmt.Errorf("%w: not simulated", store.ErrInvalid)
}

func (p *process) enter(ctx context.Context, t *txn) (store.Record, error) {
	c := &call{p: p, kind: enter, key: t.key, print: t.req.Fingerprint, owner: t.req.Owner}
	c.do = func() (err error) {
		c.rec, err = p.w.db.enter(t)
		return err
	}
	err := c.await(ctx)
	if err != nil && stet.KindOf(err) != stet.KindMismatch {
		return store.Record{}, err
	}
	return c.rec, err
}

func (p *process) commit(ctx context.Context, t *txn, out store.Settlement, keep store.Retention) (store.Record, error) {
	c := &call{p: p, kind: commit, key: t.key, print: t.req.Fingerprint, owner: t.req.Owner}
	c.do = func() error { return p.w.db.commit(t, out, keep) }
	bounded, cancel := context.WithTimeout(ctx, commitTimeout)
	err := c.await(bounded)
	cancel()
	switch {
	case err == nil:
		return store.Record{ID: t.req.ID, Scope: t.req.Scope, State: out.State, Fingerprint: t.req.Fingerprint, Owner: t.req.Owner,
			Result: out.Result, Gone: out.Gone}, nil
	case errors.Is(err, errTaken):
		return p.lost(ctx, t)
	case errors.Is(err, errAborted), errors.Is(err, errDead):
		return store.Record{}, err
	}
	p.hangUp(t)
	return p.lookUp(ctx, t, err)
}

// lost answers if another caller has had the key in the meantime.
func (p *process) lost(ctx context.Context, t *txn) (store.Record, error) {
	rec, err := p.Read(ctx, t.req.ID)
	switch {
	case err != nil:
		return rec, fmt.Errorf("%w, nor could it be read again: %w", errTaken, err)
	case rec.State == store.None || rec.State == store.Retryable:
		return rec, errTaken
	case rec.Fingerprint != t.req.Fingerprint:
		return rec, store.ErrMismatch
	}
	return rec, nil
}

// lookUp finds out what became of a commit that was not acknowledged.
func (p *process) lookUp(ctx context.Context, t *txn, cause error) (store.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	for {
		ended := false
		c := &call{p: p, kind: look, key: t.key}
		c.do = func() (err error) {
			c.rec, ended, err = p.w.db.look(t)
			return err
		}
		err := c.await(ctx)
		switch {
		case err == nil && ended && c.rec.Owner == t.req.Owner && c.rec.State.Settled():
			p.w.found()
			return c.rec, nil
		case err == nil && ended:
			return store.Record{}, fmt.Errorf("%w (read afterwards: nothing was committed)", cause)
		case errors.Is(err, errDead):
			return store.Record{}, err
		}
		select {
		case <-ctx.Done():
			return store.Record{}, fmt.Errorf("what became of the commit (%w) could not be found out: %w", cause, store.ErrUnknown)
		case <-time.After(lookAgain):
		}
	}
}

func (w *world) found() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count.LookedUp++
}

// hangUp closes the connection of t, which the server learns of later.
func (p *process) hangUp(t *txn) {
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hangUp(t)
}

// hangUp is that of a process. The caller holds mu, or all others are at rest.
func (w *world) hangUp(t *txn) {
	if !t.open {
		t.over = true
		return
	}
	w.calls++
	c := &call{p: t.p, kind: abort, client: t.client, key: t.key, n: w.calls}
	c.do = func() error {
		w.db.abort(t)
		return nil
	}
	w.late = append(w.late, c)
}

// hearHangUps has the server learn which connections are closed, and reports
// whether any are.
func (w *world) hearHangUps() (any bool) {
	for i := 0; i < len(sorted(w.late)); {
		c := w.late[i]
		if c.kind != abort {
			i++
			continue
		}
		any = true
		w.late = slices.Delete(w.late, i, i+1)
		_ = w.carryOut(c, "")
	}
	return any
}

// transacting counts the calls of RunTx.
func (w *world) transacting(t *txn, change int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge.transact(t, change, time.Since(w.start))
}

// inTx is the engine with the process's transactions.
func (p *process) inTx() *stet.TxEngine[*txn] {
	te, err := stet.WithTx(p.engine, p)
	if err != nil {
		panic(err)
	}
	return te
}

// transact asks for an operation in a transaction.
func (p *process) transact(ctx context.Context, op stet.Op, t *told) error {
	if t.api {
		res, err := stet.DoTx(ctx, p.inTx(), op, func(ctx context.Context, tx *txn) (string, error) {
			text, err := p.write(ctx, tx, t)
			if err == nil && t.handler == fails {
				err = errors.New(text) // and all is rolled back
			}
			return text, err
		})
		t.text = res.Value
		return err
	}
	run, err := p.inTx().Run(ctx, op, func(ctx context.Context, tx *txn) (stet.Outcome, error) {
		text, err := p.write(ctx, tx, t)
		out := stet.Outcome{Body: strconv.AppendQuote(nil, text)}
		if t.handler == fails {
			out = stet.Outcome{Failed: true, Body: []byte(text)}
		}
		return out, err
	})
	if err != nil {
		return err
	}
	t.text, err = said(run.Outcome())
	return err
}

func (p *process) writing(c client, change int) {
	p.handling(c.key, change)
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.writes[c.key][c.print] += change
}

// write is the handler in a transaction.
func (p *process) write(ctx context.Context, tx *txn, t *told) (string, error) {
	p.writing(t.client, 1)
	defer p.writing(t.client, -1)
	t.ran = true
	if t.handler == declines || t.obedient && ctx.Err() != nil {
		stet.FromContext(ctx).Declare(stet.NotExecuted, 0)
		return "", nil
	}
	if !t.obedient {
		ctx = context.WithoutCancel(ctx)
	}
	text := keyNames[t.key] + "." + strconv.Itoa(int(t.n)) + "t"
	tx.made = made{client: t.n, text: text, failed: t.handler == fails}
	c := &call{p: p, kind: write, key: t.key}
	c.do = func() error { return p.w.db.write(tx) }
	if err := c.await(ctx); err != nil {
		return "", err
	}
	return text, nil
}
