package storetest

import (
	"context"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

func (c *txCase[Tx]) retention() {
	req := c.request(c.long)
	var last int64
	for i := range 2 {
		req = byAnother(req)
		rec, err := c.store.RunTx(c.ctx, req, store.Retention{Result: c.unit, Tombstone: 3 * c.unit},
			func(context.Context, Tx, store.Record) (store.Settlement, error) { return completed("x"), nil })
		if err != nil || rec.State != store.Completed || rec.Fence <= last {
			c.Fatalf("transaction %d of the key: %s, %v; want it completed, with a fence above %d", i+1, show(rec), err, last)
		}
		last = rec.Fence
		if got := rec.ExpiresAt.Sub(rec.SettledAt); !near(got, c.unit) {
			c.Errorf("the result expires %v after the commit; want %v", got, c.unit)
		}
		if got := rec.ForgetAt.Sub(rec.SettledAt); !near(got, 3*c.unit) {
			c.Errorf("the record is forgotten %v after the commit; want %v", got, 3*c.unit)
		}
		c.pass(1)
		again, calls, err := c.run(byAnother(req), "never", completed("y"))
		if err != nil || calls != 0 || again.State != store.Completed || !again.Gone || !again.Result.IsZero() {
			c.Errorf("past its ExpiresAt, RunTx called its function %d times and returned %s, %v; want it gone", calls, show(again), err)
		}
		c.pass(2)
	}
}

func (c *txCase[Tx]) endedContext() {
	ctx, cancel := context.WithCancel(c.ctx)
	cancel()
	req, row := c.request(c.long), stet.NewKey()
	_, err := c.store.RunTx(ctx, req, c.keep, func(ctx context.Context, tx Tx, _ store.Record) (store.Settlement, error) {
		return completed("x"), c.h.Write(ctx, tx, row)
	})
	if err == nil {
		c.Error("RunTx with a context that has ended returned no error")
	}
	if rec := c.read(req.ID); rec.State != store.None {
		c.Errorf("RunTx with a context that has ended left %s", show(rec))
	}
	c.rows("RunTx with a context that has ended", row, 0)
}

func (c *txCase[Tx]) settleTx() {
	for _, commit := range []bool{false, true} {
		running, lapsed, unknown := c.request(c.long), c.request(c.unit), c.request(c.unit)
		claims := []store.Claim{c.grant(running).Claim(), c.grant(lapsed).Claim(), c.grant(unknown).Claim()}
		c.pass(1)
		c.claim(byAnother(unknown)) // marks unknown
		for _, cl := range claims {
			was, row := c.read(cl.ID), stet.NewKey()
			tx, end := c.h.Begin(c, c.store)
			if err := c.h.Write(c.ctx, tx, row); err != nil {
				c.Fatalf("Write: %v", err)
			}
			if err := c.store.SettleTx(c.ctx, tx, cl, completed("by tx"), c.keep); err != nil {
				c.Errorf("SettleTx of a record that is %s: %v", show(was), err)
			}
			if err := end(commit); err != nil {
				c.Fatalf("ending the transaction: %v", err)
			}
			if !commit {
				c.rows("after a rollback", row, 0)
				c.unchanged("SettleTx that was rolled back", was)
				continue
			}
			c.rows("after the commit", row, 1)
			if rec := c.is("SettleTx", cl.ID, store.Completed, cl.Fence); text(rec.Result) != "by tx" {
				c.Errorf("SettleTx wrote %s", show(rec))
			}
			c.settle(cl, completed("by tx"), c.keep) // a repetition
			c.notTwice(cl)
		}
	}
}

// notTwice requires that a claim which a transaction has settled be refused to
// another one, with the same outcome too: its rows would be there twice.
func (c *txCase[Tx]) notTwice(cl store.Claim) {
	tx, end := c.h.Begin(c, c.store)
	c.fenced("SettleTx of what a transaction has settled", c.store.SettleTx(c.ctx, tx, cl, completed("by tx"), c.keep))
	if err := end(false); err != nil {
		c.Fatalf("rolling back: %v", err)
	}
}

func (c *txCase[Tx]) settleTxFenced() {
	for _, s := range c.situations() {
		try := func(what string, cl store.Claim) {
			row := stet.NewKey()
			tx, end := c.h.Begin(c, c.store)
			if err := c.h.Write(c.ctx, tx, row); err != nil {
				c.Fatalf("Write: %v", err)
			}
			c.fenced("SettleTx "+what+" of a key that is "+s.name, c.store.SettleTx(c.ctx, tx, cl, completed("zombie"), c.keep))
			if err := end(false); err != nil {
				c.Fatalf("rolling back: %v", err)
			}
			c.unchanged("SettleTx "+what, s.rec)
			c.rows("SettleTx "+what, row, 0)
		}
		try("with an older fence", s.stale)
		if _, arrow := s.state.Next(store.VerbComplete); !arrow {
			try("with the newest fence", s.claim)
		}
	}
}

func (c *txCase[Tx]) lostReply() {
	healthy := c.engine(c.store, stet.Policy{})
	bothWays("RunTx", true, func(o *outage) {
		s, row := c.service(), stet.NewKey()
		broken := FaultyTx(c.store, o.plan)
		faulty := c.engine(broken, stet.Policy{})
		do := func(e *stet.Engine, under store.TxStore[Tx]) (stet.Result[string], error) {
			return stet.DoTx(c.ctx, c.tx(e, under), s.op, func(ctx context.Context, tx Tx) (string, error) {
				s.runs.Add(1)
				return "run", c.h.Write(ctx, tx, row)
			})
		}
		_, err := do(faulty, broken)
		want, ran := stet.KindStore, stet.NotExecuted
		if o.fault == FailAfter {
			want, ran = stet.KindUnknown, stet.MayHaveExecuted
		}
		if stet.KindOf(err) != want || stet.ExecutionOf(err) != ran {
			c.Errorf("%v: got %v; want %v, %v", o, err, want, ran)
		}
		for i := range 2 {
			res, err := do(healthy, c.store)
			if replayed := i > 0 || o.fault == FailAfter; err != nil || res.Value != "run" || res.Replayed != replayed {
				c.Errorf("%v: retry %d got %+v, %v; want it replayed: %v", o, i+1, res, err, replayed)
			}
		}
		s.ran(o, 1)
		c.rows(o.String(), row, 1)
	})
}
