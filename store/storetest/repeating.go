package storetest

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

var repeatChecks = []check{
	{"a run that may be repeated is due when its lease has run out", "it is known that repeating it is safe: a caller should not have to wait for a sweep or an operator.",
		repeatedIsDue},
	{"an expired run that may be repeated is accepted again, not unknown", "unknown is for what cannot be known; of this run it is known.",
		repeatedIsNotUnknown},
	{"a run that may be repeated is left alone while it lives, and when it has ended", "a second run beside a living one is a waste, and after its end a second execution.",
		livingIsNotRepeated},
	{"notes state that a run may be repeated", "from the beginning of a step that must not be repeated to its end, the run must not be.",
		repeatableIsSaved},
}

// takenToRepeat is taken for a run that may be repeated.
func (f *fixture) takenToRepeat(lease time.Duration) (store.ClaimRequest, store.Record) {
	f.Helper()
	req := f.request(lease)
	f.accepts(req, 0)
	req = byAnother(req)
	rec := f.takeAs(store.TakeRequest{ID: req.ID, Owner: req.Owner, Lease: lease, Repeatable: true})
	if !granted(rec, req) {
		f.Fatalf("Take was not granted: it returned %s", show(rec))
	}
	return req, rec
}

// saveAs is save that says whether the run may be repeated.
func (f *fixture) saveAs(c store.Claim, notes store.Notes, repeatable bool) {
	f.Helper()
	if err := f.can.works.Save(f.ctx, c, notes, repeatable); err != nil {
		f.Fatalf("Save: %v", err)
	}
}

// isRepeated requires that of all records only that of an expired run be due, which it
// leaves unchanged.
func (f *fixture) isRepeated(when string, id store.ID) {
	f.Helper()
	was := f.look(id)
	all := f.due()
	rec, ok := all[id]
	if len(all) != 1 || !ok || rec.State != store.Running || rec.LeaseLeft > 0 || !bytes.Equal(rec.Work, workOf(id)) || rec.Notes.Version != 0 {
		f.Errorf("%s: of an expired run that may be repeated, and %d others, Due returned %s, LeaseLeft %v, with the work %s and the notes %s",
			when, len(all)-1, show(rec), rec.LeaseLeft, brief(rec.Work), noted(rec.Notes))
	}
	f.untouched("Due", was)
}

func repeatedIsDue(f *fixture) {
	req, rec := f.takenToRepeat(f.unit)
	f.taken(f.unit) // which may not be repeated
	f.isDue("while they run")
	f.pass(1)
	f.isRepeated("past its lease", req.ID)
	f.isDue("when Due has returned it")
	next := byAnother(req)
	now := f.takes(next)
	if now.Attempt != 2 || now.Fence <= rec.Fence || !now.SettledAt.IsZero() || !bytes.Equal(now.Work, workOf(req.ID)) {
		f.Errorf("taken again, it is %s, SettledAt %v, with the work %s", show(now), now.SettledAt, brief(now.Work))
	}
	was := f.look(req.ID)
	lost, err := f.store.Extend(f.ctx, []store.Claim{rec.Claim()}, f.long)
	if err != nil || len(lost) != 1 {
		f.Errorf("Extend by the expired run: lost %v, %v", lost, err)
	}
	f.fenced("Settle by the expired run", f.store.Settle(f.ctx, rec.Claim(), completed("zombie"), f.keep))
	f.fenced("Release by the expired run", f.store.Release(f.ctx, rec.Claim(), f.keep))
	for verb, call := range f.workWrites(rec.Claim()) {
		f.fenced(verb+" by the expired run", call())
	}
	f.untouched("all that", was)
	f.pass(1)
	f.isDue("when the next run is dead, of which it was not said that it may be repeated")
	if now := f.take(req.ID, store.NewOwner(), f.unit); now.State != store.Unknown {
		f.Errorf("when it is taken then, it is %s; want unknown", show(now))
	}
}

func repeatedIsNotUnknown(f *fixture) {
	ways := map[string]func(store.ClaimRequest) store.Record{
		"Claim":  func(req store.ClaimRequest) store.Record { return f.claim(byAnother(req)) },
		"Accept": func(req store.ClaimRequest) store.Record { return f.accept(byAnother(req), f.long) },
	}
	if s := f.can.sweeper; s != nil {
		ways["Sweep"] = func(req store.ClaimRequest) store.Record {
			f.sweepAll(s)
			return f.read(req.ID)
		}
	}
	for name, way := range ways {
		req, rec := f.takenToRepeat(f.unit)
		f.saveAs(rec.Claim(), version(1, "noted"), true)
		f.cancel(rec.Claim(), failed("cancelled"))
		f.pass(1)
		now := way(req)
		f.bare(name, now)
		if now.State != store.Accepted || now.Fence != rec.Fence || now.Owner != rec.Owner || now.Attempt != 1 || now.SettledAt.IsZero() || !now.ForgetAt.IsZero() {
			f.Errorf("%s of an expired run that may be repeated: want it accepted, under its fence %d and owner; got %s, SettledAt %v, ForgetAt %v",
				name, rec.Fence, show(now), now.SettledAt, now.ForgetAt)
		}
		f.unchanged(name, now)
		f.isDue("after "+name, req.ID)
		f.fenced("Settle by the expired run, after "+name, f.store.Settle(f.ctx, rec.Claim(), completed("zombie"), f.keep))
		if next := f.takes(byAnother(req)); next.Attempt != 2 || !next.Cancelling || !sameNotes(next.Notes, version(1, "noted")) {
			f.Errorf("taken after %s, it is %s, with the notes %s and Cancelling %v", name, show(next), noted(next.Notes), next.Cancelling)
		}
	}
}

func livingIsNotRepeated(f *fixture) {
	req, rec := f.takenToRepeat(f.unit)
	if lost, err := f.store.Extend(f.ctx, []store.Claim{rec.Claim()}, f.long); err != nil || len(lost) > 0 {
		f.Errorf("Extend: lost %v, %v", lost, err)
	}
	for name, end := range map[string]func(store.Claim){
		"settled":                func(c store.Claim) { f.settle(c, completed("x"), f.keep) },
		"settled, with messages": func(c store.Claim) { f.settle(c, with("messages", completed("x")), f.keep) },
		"returned, with a delay": func(c store.Claim) { f.giveBack(c, f.long) },
	} {
		_, rec := f.takenToRepeat(f.unit)
		end(rec.Claim())
		f.pass(1)
		f.isDue("one being renewed, another " + name)
	}
	was := f.look(req.ID)
	if d := workDiff(was, f.take(req.ID, store.NewOwner(), f.long)); d != "" || was.State != store.Running || was.LeaseLeft <= 0 {
		f.Errorf("Take of a run that was renewed, and is %s, should not change it; %s", show(was), d)
	}
	f.untouched("Take of a run that was renewed", was)
}

func repeatableIsSaved(f *fixture) {
	noted := func(rec store.Record, repeatable ...bool) store.ID {
		for i, is := range repeatable {
			f.saveAs(rec.Claim(), version(uint64(i+1), "noted"), is)
		}
		return rec.ID
	}
	one, first := f.takenToRepeat(f.unit)
	noted(first, true, false)
	f.pass(1)
	f.isDue("stored as not repeatable")
	if now := f.claim(byAnother(one)); now.State != store.Unknown {
		f.Errorf("stored as not repeatable, an expired run is %s; want unknown", show(now))
	}
	_, second := f.takenToRepeat(f.unit)
	id := noted(second, false, true)
	f.pass(1)
	f.isRepeated("stored as not repeatable, and then as repeatable", id)
	_, third := f.taken(f.unit)
	id = noted(third, true)
	f.pass(1)
	f.isRepeated("stored as repeatable", id)
	req := f.request(f.unit)
	noted(f.grant(req), true) // a worker does not run it, because it was never accepted
	f.pass(1)
	f.isDue("a claim's, stored as repeatable")
	if now := f.claim(byAnother(req)); now.State != store.Unknown {
		f.Errorf("of an operation that was not accepted, an expired run is %s; want unknown", show(now))
	}
}

// waits is how long a take waits for a transaction of another process that is open.
const waits = time.Second

// takeBeside takes an operation while a transaction of its expired run is open. The store
// may make it wait for that, as one does that has a single writer.
func (c *workCase[Tx]) takeBeside(req store.ClaimRequest) (took bool) {
	ctx, cancel := context.WithTimeout(c.ctx, waits)
	defer cancel()
	rec, err := c.store.Take(ctx, store.TakeRequest{ID: req.ID, Owner: req.Owner, Lease: c.long})
	return err == nil && granted(rec, req)
}

// stoppedInTx is about a process that was stopped in a transaction of its run, and
// continues when that has been taken again.
func (c *workCase[Tx]) stoppedInTx() {
	for _, commit := range []bool{false, true} {
		// It was stopped before SettleTx.
		req, rec := c.takenToRepeat(c.unit)
		c.pass(1)
		next, took := byAnother(req), false
		tx, end := c.h.Begin(c, c.txCase.store)
		row := stet.NewKey()
		if err := c.h.Write(c.ctx, tx, row); err != nil {
			c.Errorf("Write: %v", err)
		}
		took = c.takeBeside(next)
		err := c.store.SettleTx(c.ctx, tx, rec.Claim(), completed("zombie"), c.keep)
		if took && !errors.Is(err, store.ErrFenced) || !took && err != nil {
			c.Errorf("SettleTx of a run that was taken again (%v): %v", took, err)
		}
		_ = end(commit && err == nil)
		c.eitherOr("stopped before SettleTx", next, row, took, commit && err == nil)

		// And after it.
		req, rec = c.takenToRepeat(c.unit)
		c.pass(1)
		next = byAnother(req)
		tx, end = c.h.Begin(c, c.txCase.store)
		row = stet.NewKey()
		if err := errors.Join(c.h.Write(c.ctx, tx, row), c.store.SettleTx(c.ctx, tx, rec.Claim(), completed("late"), c.keep)); err != nil {
			c.Errorf("SettleTx of a run whose lease has run out: %v", err)
		}
		took = c.takeBeside(next)
		if err := end(commit); err != nil && (commit && !took) {
			c.Errorf("ending the transaction: %v", err)
		}
		c.eitherOr("stopped before its COMMIT", next, row, took, commit && !took)
	}
}

// eitherOr requires that the rows of the expired run be there, or the operation be taken
// again, and not both.
func (c *workCase[Tx]) eitherOr(when string, next store.ClaimRequest, row string, took, committed bool) {
	c.Helper()
	now := c.take(next.ID, next.Owner, c.long)
	if took = took || granted(now, next); took == committed {
		c.Errorf("%s: the transaction was committed: %v; the operation was taken again: %v; it is %s", when, committed, took, show(now))
	}
	want := 0
	if committed {
		want = 1
	}
	c.rows(when, row, want)
	if committed != (now.State == store.Completed) {
		c.Errorf("%s: the transaction was committed: %v; the record is %s", when, committed, show(now))
	}
}

// deadRunInTx is about transactions that find an expired run which may be repeated.
func (c *workCase[Tx]) deadRunInTx() {
	req, _ := c.takenToRepeat(c.unit)
	_, rec := c.takenToRepeat(c.unit)
	c.pass(1)
	row := stet.NewKey()
	now, calls, err := c.run(byAnother(req), row, completed("x"))
	if err != nil || calls != 0 || now.State != store.Accepted {
		c.Errorf("RunTx of an expired run that may be repeated: %s, %v; the function was called %d times", show(now), err, calls)
	}
	c.rows("RunTx of an expired run that may be repeated", row, 0)
	c.unchanged("RunTx", now)
	c.within(true, func(tx Tx) {
		if err := c.store.SaveTx(c.ctx, tx, rec.Claim(), version(1, "begun"), false); err != nil {
			c.Errorf("SaveTx: %v", err)
		}
	})
	c.isDue("stored in a transaction as not repeatable", req.ID)
	if now := c.take(rec.ID, store.NewOwner(), c.long); now.State != store.Unknown {
		c.Errorf("stored in a transaction as not repeatable, an expired run is %s; want unknown", show(now))
	}
}
