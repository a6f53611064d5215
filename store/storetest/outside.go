package storetest

import (
	"errors"

	"github.com/stet-go/stet/store"
)

// outsideChecks are about store.OutsideStore.
var outsideChecks = []check{
	{"an expired run that was settled outside is claimed again, and can write nothing more", "its effects and its outcome are one transaction that compares the fence: without the outcome nothing happened, and nothing can happen later.",
		outsideIsClaimedAgain},
	{"a sweep makes an expired run retryable that was settled outside", "an unknown record is a person's work; this one is not unknown.",
		outsideIsSwept},
	{"Take ends an expired run that is settled outside, and grants nothing", "a reconciler ends the run before it asks what happened; label and attempt are those of the run.",
		outsideIsEndedByTake},
	{"a run that is settled outside may settle late, if no other has come", "the transaction of a service may take longer than the lease.",
		outsideSettlesLate},
	{"a run is settled outside only if its own claim allows it", "what an earlier claim of the key said proves nothing of this run.",
		outsideIsOfOneClaim},
}

// outside grants a claim that is settled outside.
func (f *fixture) outside() (store.ClaimRequest, store.Record) {
	f.Helper()
	req := f.request(f.unit)
	req.Outside = true
	return req, f.grant(req)
}

func outsideIsClaimedAgain(f *fixture) {
	for _, heartbeat := range []bool{false, true} {
		req, dead := f.outside()
		if heartbeat {
			f.extend(f.unit, dead.Claim())
		}
		live := f.claim(byAnother(req))
		if live.State != store.Running || live.Fence != dead.Fence {
			f.Errorf("a claim of what runs returned %s; want it running under fence %d", show(live), dead.Fence)
		}
		f.pass(1)
		again := byAnother(req)
		again.Lease = f.long
		rec := f.claim(again)
		if !granted(rec, again) || rec.Fence <= dead.Fence || rec.Attempt != 2 {
			f.Fatalf("heartbeat %v: a claim after the lease had run out returned %s; want it granted, as attempt 2, above fence %d", heartbeat, show(rec), dead.Fence)
		}
		f.fenced("the expired run's Settle", f.store.Settle(f.ctx, dead.Claim(), completed("late"), f.keep))
		f.fenced("the expired run's Release", f.store.Release(f.ctx, dead.Claim(), f.keep))
		if lost := f.extend(f.long, dead.Claim()); len(lost) != 1 {
			f.Errorf("the expired run's lease was renewed")
		}
		f.unchanged("after the expired run's writes", rec)
	}
}

func outsideIsSwept(f *fixture) {
	if f.can.sweeper == nil {
		return // Claim does it
	}
	req, dead := f.outside()
	f.pass(1)
	if sum := f.sweepAll(f.can.sweeper); sum.MarkedUnknown != 0 {
		f.Errorf("the sweep says that it has marked %d unknown; want none", sum.MarkedUnknown)
	}
	rec := f.is("after a sweep", req.ID, store.Retryable, dead.Fence)
	if rec.SettledAt.IsZero() || rec.ForgetAt.IsZero() {
		f.Errorf("an expired run that was freed has SettledAt %v, ForgetAt %v; want both", rec.SettledAt, rec.ForgetAt)
	}
	f.fenced("a Settle after the sweep", f.store.Settle(f.ctx, dead.Claim(), completed("late"), f.keep))
	if again := f.grant(byAnother(req)); again.Fence <= dead.Fence || again.Attempt != 2 {
		f.Errorf("a claim after the sweep returned %s; want attempt 2, above fence %d", show(again), dead.Fence)
	}
}

func outsideIsEndedByTake(f *fixture) {
	if f.can.works == nil {
		return
	}
	req, dead := f.outside()
	f.pass(1)
	rec, err := f.can.works.Take(f.ctx, store.TakeRequest{ID: req.ID, Owner: store.NewOwner(), Lease: f.unit})
	if err != nil || rec.State != store.Retryable || rec.Fence != dead.Fence || rec.Attempt != 1 || rec.Label != req.Label {
		f.Errorf("Take of an expired run that is settled outside: %s, %v; want it retryable, attempt 1, under fence %d", show(rec), err, dead.Fence)
	}
}

func outsideSettlesLate(f *fixture) {
	req, run := f.outside()
	f.pass(1)
	f.settle(run.Claim(), completed("late"), f.keep)
	rec := f.claim(byAnother(req))
	if rec.State != store.Completed || rec.Fence != run.Fence {
		f.Errorf("after a late Settle a claim returned %s; want it completed under fence %d", show(rec), run.Fence)
	}
}

func outsideIsOfOneClaim(f *fixture) {
	req, first := f.outside()
	f.release(first.Claim(), f.keep)
	next := byAnother(req)
	next.Outside = false
	f.grant(next)
	f.pass(1)
	if rec := f.claim(byAnother(req)); rec.State != store.Unknown {
		f.Errorf("an expired run after a run that was settled outside: %s; want unknown", show(rec))
	}
	if f.can.works == nil {
		return
	}
	req, first = f.outside()
	f.release(first.Claim(), f.keep)
	work := byAnother(req)
	work.Outside = false
	f.accept(work, 0)
	f.take(req.ID, store.NewOwner(), f.unit)
	f.pass(1)
	if rec, err := f.can.works.Take(f.ctx, store.TakeRequest{ID: req.ID, Owner: store.NewOwner(), Lease: f.unit}); err != nil || rec.State != store.Unknown {
		f.Errorf("an expired run of a worker, after a run that was settled outside: %s, %v; want unknown", show(rec), err)
	}
}

func (c *txCase[Tx]) outsideTx() {
	if !c.can.outside {
		return
	}
	req, dead := c.outside()
	c.pass(1)
	row := "after an expired run " + req.ID.String()
	rec, calls, err := c.run(byAnother(req), row, completed("x"))
	if err != nil || calls != 1 || rec.State != store.Completed || rec.Fence <= dead.Fence {
		c.Errorf("after an expired run that was settled outside RunTx called its function %d times and returned %s, %v; want it completed, above fence %d", calls, show(rec), err, dead.Fence)
	}
	c.rows("after an expired run that was settled outside", row, 1)
	tx, end := c.h.Begin(c, c.store)
	if err := c.store.SettleTx(c.ctx, tx, dead.Claim(), completed("late"), c.keep); !errors.Is(err, store.ErrFenced) {
		c.Errorf("the expired run's SettleTx: %v; want it fenced", err)
	}
	_ = end(false)
}
