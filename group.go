package stet

import (
	"context"
	"errors"
	"time"

	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// errGroup makes the store roll back.
var errGroup = errors.New("the group is not committed")

// RunGroup tries to run many operations in one transaction: one commit instead of many. It
// is for operations that only write, and quickly: they run one after the other, and hold
// what they lock until the last has ended. fn is called as by Run, for the i-th
// operation; all together have the longest RunTimeout of their policies.
//
// It runs only what has not run and is not running, and commits all of it or
// nothing. The run of an operation that was not committed is nil: it is for Run,
// which also finds out what became of it. That is all of them if one returned an
// error or panicked (which goes on), declared that nothing happened or emitted
// messages, or if the commit failed; so fn may be called again.
func (te *TxEngine[Tx]) RunGroup(ctx context.Context, ops []Op, fn func(ctx context.Context, tx Tx, i int) (Outcome, error)) []*Lease {
	e, runs := te.e, make([]*Lease, len(ops))
	if te.groups == nil {
		return runs
	}
	g := group{e: e, begun: make([]*Run, len(ops))}
	if len(ops) > store.MaxGroup || !g.admit(ctx, ops) {
		return runs
	}
	var longest time.Duration
	for _, t := range g.tickets {
		longest = max(longest, t.p.RunTimeout)
	}
	// From here on the caller's leaving ends nothing.
	bounded, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), e.o.StoreTimeout+longest, ErrRunTimeout)
	defer cancel()
	defer g.end()
	outs := make([]Outcome, len(ops))
	recs, err := te.groups.RunGroup(bounded, g.reqs, g.keep, func(_ context.Context, tx Tx, i int, rec store.Record) (store.Settlement, error) {
		run := g.begin(ctx, bounded, i, rec)
		out, err := fn(run.ctx, tx, i)
		if err != nil || run.Declared() == NotExecuted || run.Declared() == MayHaveExecuted || len(run.emitted()) > 0 {
			return store.Settlement{}, errGroup
		}
		outs[i] = out
		return run.sealed(out), nil
	})
	if err != nil {
		return runs
	}
	for i, rec := range recs {
		if rec.Owner != g.reqs[i].Owner || !rec.State.Settled() {
			continue
		}
		t, begun := g.tickets[i], g.begun[i]
		e.observe(ctx, t.event(observe.Claimed, begun.rec, nil))
		e.observe(ctx, observe.Event{Kind: observe.Settled, ID: rec.ID, Class: t.op.Class, State: rec.State, Fence: rec.Fence,
			Attempt: rec.Attempt, Elapsed: time.Since(begun.begun), Err: begun.notKept()})
		runs[i] = &Lease{Run: &Run{e: e, op: t.op, p: t.p, rec: rec, outcome: outs[i], transactional: true, ended: true, ctx: begun.ctx},
			ForgottenAt: t.forgotten(rec)}
	}
	return runs
}

// group is one call of RunGroup.
type group struct {
	e       *Engine
	tickets []*ticket
	reqs    []store.ClaimRequest
	keep    []store.Retention
	begun   []*Run
}

// admit checks the operations; each is to be there once.
func (g *group) admit(ctx context.Context, ops []Op) bool {
	seen := make(map[store.ID]bool, len(ops))
	for _, op := range ops {
		t, err := g.e.ticket(ctx, op)
		if err != nil || seen[t.req.ID] {
			return false
		}
		seen[t.req.ID] = true
		g.tickets, g.reqs, g.keep = append(g.tickets, t), append(g.reqs, t.req), append(g.keep, t.p.Retention)
	}
	return len(ops) > 0
}

// begin makes the run that fn finds in its context.
func (g *group) begin(ctx, end context.Context, i int, rec store.Record) *Run {
	t := g.tickets[i]
	run := &Run{e: g.e, op: t.op, p: t.p, rec: rec, begun: time.Now(), transactional: true, ended: true}
	run.setContext(ctx, end)
	g.begun[i] = run
	return run
}

// end ends the contexts of the runs.
func (g *group) end() {
	for _, run := range g.begun {
		if run != nil {
			run.cancel(nil)
		}
	}
}
