package simulate

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// flawedWork is a memory store with a defect in its methods for work.
type flawedWork struct {
	flawed
	lost *[]store.Record // messages of runs that did not settle
}

func (f flawedWork) Accept(ctx context.Context, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	was := f.record(req.ID)
	switch {
	case f.is("accepts another request") && was.State != store.None:
		req.Fingerprint = was.Fingerprint
	case f.is("acknowledges before it accepts") && was.State == store.None:
		return store.Record{ID: req.ID, Scope: req.Scope, State: store.Accepted, Fingerprint: req.Fingerprint, Owner: req.Owner, Fence: 1}, nil
	case f.is("accepts without its work"):
		work = nil
	}
	return f.Store.Accept(ctx, req, work, after)
}

func (f flawedWork) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	was := f.record(req.ID)
	if f.is("takes a taken operation") && was.State == store.Running && was.Owner != req.Owner || f.is("takes an unknown operation") && was.State == store.Unknown {
		if err := f.Store.Return(ctx, was.Claim(), 0); err != nil {
			return was, err
		}
	}
	rec, err := f.Store.Take(ctx, req)
	if f.is("takes without a fence of its own") {
		rec.Fence = max(rec.Fence-1, was.Fence)
	}
	if f.is("forgets the steps of earlier attempts") {
		rec.Notes = store.Notes{}
	}
	return rec, err
}

func (f flawedWork) Return(ctx context.Context, c store.Claim, after time.Duration) error {
	if f.is("returns without the fence check") {
		c = f.newest(c)
	}
	if f.is("delays returned operations permanently") {
		after = store.MaxDelay
	}
	return f.Store.Return(ctx, c, after)
}

func (f flawedWork) Cancel(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) (store.Record, error) {
	was := f.record(c.ID)
	switch {
	case f.is("ignores cancellations"):
		return was, nil
	case f.is("cancels running operations") && was.State == store.Running:
		return was, f.Store.Settle(ctx, c, out, keep)
	}
	return f.Store.Cancel(ctx, c, out, keep)
}

func (f flawedWork) Save(ctx context.Context, c store.Claim, notes store.Notes, repeatable bool) error {
	is, err := f.Look(ctx, c.ID)
	if err != nil {
		return err
	}
	switch {
	case f.is("saves without the fence check"):
		c.Fence = is.Fence
	case f.is("saves delayed notes over newer ones") && notes.Version < is.Notes.Version:
		notes.Version = is.Notes.Version + 1
	case f.is("acknowledges before it saves"):
		return nil
	}
	return f.Store.Save(ctx, c, notes, repeatable)
}

func (f flawedWork) Amend(ctx context.Context, c store.Claim, notes store.Notes) error {
	err := f.Store.Amend(ctx, c, notes)
	if f.is("amends running operations") && stet.KindOf(err) == stet.KindFenced {
		c = f.newest(c)
		is, err := f.Look(ctx, c.ID)
		if err != nil || is.State != store.Running || is.Notes.Version == 0 {
			return store.ErrFenced
		}
		notes.Version = is.Notes.Version + 1
		return f.Store.Save(ctx, c, notes, false)
	}
	return err
}

func (f flawedWork) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	if f.is("drops messages") {
		out.Outbox = nil
	}
	err := f.flawed.Settle(ctx, c, out, keep)
	if f.is("keeps the messages of a run that lost") && stet.KindOf(err) == stet.KindFenced && out.Outbox != nil {
		*f.lost = append(*f.lost, store.Record{ID: c.ID, Fence: c.Fence, State: out.State, Outbox: out.Outbox})
	}
	return err
}

func (f flawedWork) Due(ctx context.Context, limit int, again time.Duration, names ...string) ([]store.Record, error) {
	if f.is("returns due work once") {
		again = store.MaxDelay
	}
	return f.Store.Due(ctx, limit, again, names...)
}

func (f flawedWork) DueMessages(ctx context.Context, limit int, again time.Duration) ([]store.Record, error) {
	if f.is("returns due work once") {
		again = store.MaxDelay
	}
	recs, err := f.Store.DueMessages(ctx, limit, again)
	recs = append(recs, *f.lost...)
	for _, rec := range recs {
		if f.is("forgets messages when it hands them out") {
			err = errors.Join(err, f.Relayed(ctx, rec.Claim(), store.Retention{Tombstone: time.Hour}))
		}
	}
	return recs, err
}

func (f flawedWork) Look(ctx context.Context, id store.ID) (store.Record, error) {
	rec, err := f.Store.Look(ctx, id)
	if f.is("confuses scopes") {
		rec.Scope = store.DigestScope("", "another")
	}
	return rec, err
}

// workDefects are what must be found, each within so many seeds.
var workDefects = []struct {
	defect string
	within uint64
	narrow func(*setup)
}{
	{"accepts another request", 500, nil},
	{"acknowledges before it accepts", 100, nil},
	{"accepts without its work", 100, nil},
	{"takes a taken operation", 500, nil},
	{"takes an unknown operation", 500, nil},
	{"takes without a fence of its own", 100, nil},
	{"forgets the steps of earlier attempts", 5000, of("take over", repeated, once)},
	{"returns without the fence check", 5000, of("take over")},
	{"delays returned operations permanently", 500, nil},
	{"ignores cancellations", 500, nil},
	{"cancels running operations", 500, nil},
	{"saves without the fence check", 5000, of("take over", tells, repeated)},
	{"saves delayed notes over newer ones", 20000, of("unknown", once, outside)},
	{"acknowledges before it saves", 1000, nil},
	{"amends running operations", 50000, of("verify", once, outside)},
	{"drops messages", 500, nil},
	{"keeps the messages of a run that lost", 5000, of("take over", emits)},
	{"returns due work once", 500, nil},
	{"forgets messages when it hands them out", 500, nil},
	{"confuses scopes", 500, nil},
	{"sweeps expired runs into retryable", 500, nil},
	{"settles without the fence check", 20000, of("take over", repeated)},
	{"runs expired claims again", 500, nil},
}

// of narrows schedules down to a class and a program, on one key.
func of(class string, p ...part) func(*setup) {
	return func(s *setup) {
		s.class, s.keys, s.program = class, 1, 0
		for _, x := range p {
			s.program |= 1 << x
		}
	}
}

func TestDefectsOfWorkAreFoundAndShrink(t *testing.T) {
	for _, d := range workDefects {
		t.Run(d.defect, func(t *testing.T) {
			steps := fewSteps
			if d.defect == "amends running operations" { // two resolve it at once, and a third run begins
				steps = 26
			}
			synctest.Test(t, func(t *testing.T) {
				seek(t, Config{Work: true, Store: func(m *memory.Store, clock *Clock) store.Store {
					return flawedWork{flawed{m, clock, d.defect}, new([]store.Record)}
				}, narrow: d.narrow}, d.within, steps)
			})
		})
	}
}

// workCommits are COMMITs with a defect, each to be found within so many seeds.
var workCommits = []struct {
	defect string
	within uint64
	commit func(*world, *workTx) error
	narrow func(*setup)
}{
	{"keeps the business writes of a transaction that lost", 5000, func(w *world, tx *workTx) error {
		err := w.commitWork(tx)
		if errors.Is(err, errAborted) {
			w.keep(tx)
		}
		return err
	}, of("take over", inStep, finishing)},
	{"settles settled operations", 50000, func(w *world, tx *workTx) error {
		err := w.commitWork(tx)
		if rec := w.look(int(tx.key)).rec; errors.Is(err, errAborted) && rec.State.Settled() && rec.Fence == tx.claim.Fence {
			w.keep(tx)
			return nil
		}
		return err
	}, of("fail", finishing)},
	{"writes the record alone", 500, func(w *world, tx *workTx) error {
		tx.wrote = nil
		return w.commitWork(tx)
	}, nil},
	{"writes all but the record", 500, func(w *world, tx *workTx) error {
		w.keep(tx)
		return nil
	}, nil},
}

func TestDefectsOfCommitsOfWorkAreFoundAndShrink(t *testing.T) {
	for _, d := range workCommits {
		t.Run(d.defect, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seek(t, Config{Work: true, commit: d.commit, narrow: d.narrow}, d.within, fewSteps)
			})
		})
	}
}
