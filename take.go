package stet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// unfitRest is how long an operation is left alone that cannot be read, or whose
// class this process does not have.
const unreadablePause = time.Hour

// Item is an accepted operation that waits to be run: what a queue carries. What a
// queue says of an operation is believed no further than its ID: it may be late, or
// forged. The record decides which class and name it has.
type Item struct {
	ID    store.ID
	Class string // names the policy
	Name  string // names the handler

	// Repeatable says that a run which dies may be repeated, whatever it has done:
	// all its effects are in a transaction that is not committed then, or doing
	// them twice has one effect. It is for what takes the item to say, and no
	// part of what a queue carries. The operation is then due again as soon as the
	// lease of an expired run has run out, and never Unknown, unless a StepOnce is in
	// doubt.
	Repeatable bool
}

// Due returns about limit accepted operations, at most, that wait to be run, with
// one of the names; without names, whatever their name. Of one name the longest
// waiting come first, and names take turns. They are returned again, to any caller,
// unless they were taken within that time; so what a queue or a worker loses is not
// lost. A process asks for the names that it can run, store.MaxDueNames at most: what it
// cannot is left to others. The error is an *Error of kind KindInvalid or KindStore.
func (e *Engine) Due(ctx context.Context, limit int, again time.Duration, names ...string) ([]Item, error) {
	ws, err := e.workStore()
	switch {
	case err != nil:
		return nil, err
	case len(names) > store.MaxDueNames:
		return nil, invalid("Due was asked for %d names; at most %d", len(names), store.MaxDueNames)
	}
	recs, err := e.due(ctx, limit, again, func(ctx context.Context) ([]store.Record, error) { return ws.Due(ctx, limit, again, names...) })
	items := make([]Item, 0, len(recs))
	for _, rec := range recs {
		op, w, err := e.unpack(rec)
		if err != nil { // an operator's case: it stays accepted
			e.observe(ctx, observe.Event{Kind: observe.StoreFailed, ID: rec.ID, State: rec.State, Fence: rec.Fence, Err: err})
			continue
		}
		items = append(items, Item{ID: rec.ID, Class: op.Class, Name: w.Name})
	}
	return items, err
}

// due asks the store for what is due, if limit and again are in range.
func (e *Engine) due(ctx context.Context, limit int, again time.Duration, ask func(context.Context) ([]store.Record, error)) ([]store.Record, error) {
	if limit < 1 || limit > store.MaxBrowse || again <= 0 || again > store.MaxDelay {
		return nil, invalid("the limit is %d, and the time until they are due again %v; they must be 1 to %d, and up to %v", limit, again, store.MaxBrowse, store.MaxDelay)
	}
	// Not tried again: what was in a lost reply is due again soon.
	recs, err := ask(e.storeContext(ctx))
	if partial, ok := errors.AsType[*store.PartialError](err); ok {
		for _, c := range partial.Claims { // an operator's case, see Browser
			e.observe(ctx, observe.Event{Kind: observe.StoreFailed, ID: c.ID, Fence: c.Fence, Err: damaged(partial.Cause)})
		}
		return recs, nil
	}
	if err != nil {
		return recs, &Error{Kind: KindStore, Execution: NotExecuted, RetryAfter: retryAfter, Cause: err}
	}
	return recs, nil
}

// Arrived returns a channel that is closed when this engine has next accepted an
// operation, or settled one with messages, or Wake is called: who polls Due or
// Relay need not wait.
func (e *Engine) Arrived() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.arrived == nil {
		e.arrived = make(chan struct{})
	}
	return e.arrived
}

// Wake closes the channel of Arrived. Only transactions need it that are the
// caller's own: call it after the commit that TxEngine.Accept or TxEngine.Settle was part of.
func (e *Engine) Wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.arrived != nil {
		close(e.arrived)
		e.arrived = nil
	}
}

// Take is a worker's Begin: it takes the claim of an accepted operation. The run
// has its Work, and its policy is that of the class that it was accepted under; if it
// is Replayed, the operation has ended, and there is nothing to do. Release lets it be run
// again; Settle, TxEngine.Finish and MarkUnknown are as ever.
//
// The error is an *Error of kind KindInvalid (no such class), KindInFlight (it runs, or is to
// wait still, by Work.After or Again.After: it will be due), KindUnknown (and its policy does not
// say what is to become of it), KindExpired, KindFenced (there is no such operation, or it
// was not accepted), KindDamaged, KindStore or KindClosed.
func (e *Engine) Take(ctx context.Context, it Item) (*Lease, error) {
	ws, err := e.workStore()
	if err != nil {
		return nil, err
	}
	p, ok := e.policies[it.Class]
	switch {
	case !ok:
		return nil, invalid("Item.Class %q is not among Options.Classes", it.Class)
	case e.ctx.Err() != nil:
		return nil, &Error{Kind: KindClosed, Execution: NotExecuted}
	}
	t := &request{op: Op{Class: it.Class}, p: p, taken: true, repeats: it.Repeatable, req: store.ClaimRequest{ID: it.ID, Owner: store.NewOwner(), Lease: p.Lease}}
	f, leader := e.inFlight.join(it.ID, store.Fingerprint{})
	if !leader {
		return nil, &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter}
	}
	var run *Lease
	defer func() {
		if run == nil {
			e.inFlight.end(f, entry{})
		}
	}()
	var work packedWork
	en, err := e.enter(ctx, t, func(ctx context.Context, t *request) (store.Record, error) {
		rec, w, err := e.take(ctx, ws, t)
		work = w
		return rec, err
	})
	switch rec := en.rec; {
	case err != nil:
		return nil, err
	case en.granted:
		run, err = e.newRun(ctx, t, f, rec)
		if err != nil {
			return nil, err
		}
		run.Work, run.Counted, run.Cancelling = Work{Name: work.Name, Payload: work.Payload}, rec.Attempt-uncountedAttempts(rec), rec.Cancelling
		run.namespace = work.Namespace
		run.repeatable = it.Repeatable
		run.steps.mu.Lock()
		defer run.steps.mu.Unlock()
		run.steps.marked = it.Repeatable
		return run, run.load(ctx, ws) // which e.take has found to be readable
	case rec.State.Settled():
		return e.replay(ctx, t, rec)
	case rec.State == store.None:
		return nil, &Error{Kind: KindFenced, Execution: MayHaveExecuted, Cause: errors.New("there is no such operation")}
	case rec.State == store.Unknown:
		e.observe(ctx, t.event(observe.ToldUnknown, rec, nil))
		return nil, &Error{Kind: KindUnknown, Execution: MayHaveExecuted}
	case rec.State == store.Accepted: // it is to wait
		return nil, &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter, Cause: errors.New("it is not due yet")}
	case rec.State == store.Running:
		e.observe(ctx, t.event(observe.InFlight, rec, nil))
		return nil, &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: max(rec.LeaseLeft, pollMin)}
	default:
		return nil, &Error{Kind: KindStore, Execution: NotExecuted, RetryAfter: retryAfter,
			Cause: fmt.Errorf("the store returned a record in state %v that it did not grant", rec.State)}
	}
}

// take asks the store once, and makes the ticket that of the operation.
func (e *Engine) take(ctx context.Context, ws store.WorkStore, t *request) (rec store.Record, w packedWork, err error) {
	fault.At(fault.ClaimBefore)
	err = e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
		t.claimSentAt = time.Now()
		rec, err = ws.Take(ctx, store.TakeRequest{ID: t.req.ID, Owner: t.req.Owner, Lease: t.req.Lease, Repeatable: t.repeats})
		return err
	})
	fault.At(fault.ClaimAfter)
	if err != nil {
		return rec, w, e.unclaimed(ctx, t, rec, err)
	}
	t.req.Fingerprint, t.req.Scope = rec.Fingerprint, rec.Scope
	if rec.Work == nil && (rec.State == store.Unknown || rec.State == store.Retryable) { // the key was used anew
		return rec, w, &Error{Kind: KindFenced, Execution: MayHaveExecuted, Cause: errors.New("the operation was not accepted")}
	}
	op, w, err := e.unpack(rec)
	if _, ok := e.policies[op.Class]; err == nil && op.Key != "" && !ok {
		err = invalid("the operation's class %q is not among Options.Classes", op.Class)
	}
	if err == nil && rec.State == store.Running {
		_, err = e.notes(rec) // they say whether it may be run
	}
	if err != nil {
		if rec.State == store.Running && rec.Owner == t.req.Owner { // no other process can read it either; an operator must look
			err = errors.Join(err, e.returnUncounted(ctx, ws, rec, t.repeats, unreadablePause))
		}
		return rec, w, err
	}
	if op.Key != "" {
		t.op, t.p = op, e.policies[op.Class]
	}
	if rec.State == store.Running && rec.Owner == t.req.Owner {
		e.observe(ctx, t.event(observe.Claimed, rec, nil))
	}
	return rec, w, nil
}

// Finish ends a run in a transaction: what fn writes through tx and the outcome that it
// returns become durable together or not at all. A run that is stale by then writes
// nothing.
//
// On error the transaction may or may not have committed, and messages that fn has
// emitted are forgotten. End the run with Release; KindFenced from it means that an
// outcome is stored, possibly this one. The error is that of fn, or an *Error of kind
// KindFenced, KindStore, KindInvalid, or KindRetryable with a *store.AbortedError.
func (te *TxEngine[Tx]) Finish(ctx context.Context, r *Lease, fn func(context.Context, Tx) (Outcome, error)) error {
	ws, err := te.workStore()
	switch {
	case err != nil:
		return err
	case !same(r.e.store, te.s) || r.transactional || r.settling():
		return invalid("Finish needs a run of its store that has not ended")
	}
	var returned error // by fn
	var state store.State
	before, committed := len(r.emitted()), false
	defer func() { // also when fn panics
		if !committed {
			r.takeBack(before)
		}
	}()
	// The context of a run that was cancelled in the meantime ends no transaction.
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.e.o.StoreTimeout+r.p.RunTimeout)
	defer cancel()
	err = ws.InTx(bounded, func(inner context.Context, tx Tx) error {
		out, err := fn(ctx, tx)
		if returned = err; err != nil {
			return err
		}
		state = out.state()
		return te.Settle(inner, r, tx, out)
	})
	switch own, ok := errors.AsType[*Error](err); {
	case err == nil:
	case returned != nil:
		return returned
	case ok:
		return own
	case errors.Is(err, store.ErrFenced):
		return &Error{Kind: KindFenced, Execution: MayHaveExecuted, Cause: err}
	default:
		kind := observe.StoreFailed
		if isAborted(err) {
			kind = observe.Aborted
		}
		r.e.observe(ctx, observe.Event{Kind: kind, ID: r.rec.ID, Class: r.op.Class, State: store.Running, Fence: r.rec.Fence, Attempt: r.rec.Attempt, Err: err})
		return storeFailed(MayHaveExecuted, err)
	}
	committed = true
	if !r.end() {
		return invalid("the run was ended by another caller while its transaction was committed")
	}
	r.finish(entry{}) // followers ask the store
	if len(r.emitted()) > 0 {
		r.e.Wake()
	}
	return r.report(ctx, observe.Settled, state, nil)
}

// interruption is what the version of notes grows by for each attempt that does not
// count: its upper 16 bits say how many there were. They can be read, and written, also
// where the notes themselves cannot.
const uncountedUnit = 1 << 48

const maxUncounted = 1<<16 - 1 // those beyond count

func uncountedAttempts(rec store.Record) int { return int(rec.Notes.Version / uncountedUnit) }

// spare stores that the attempt of a record does not count, and reports whether it
// has. rec has its notes as they are now. If it cannot be stored, the attempt counts.
func (e *Engine) markUncounted(ctx context.Context, ws store.WorkStore, rec store.Record, repeatable bool) bool {
	if uncountedAttempts(rec) >= min(rec.Attempt, maxUncounted) { // the last is stored already
		return false
	}
	notes := rec.Notes // no others: who cannot read the work must not encrypt
	notes.Version += uncountedUnit
	return nil == e.retry(ctx, claimTries, func(ctx context.Context) error {
		if rec.State == store.Unknown { // its lease has run out in the meantime
			return ws.Strike(ctx, rec.Claim(), notes)
		}
		return ws.Save(ctx, rec.Claim(), notes, repeatable)
	})
}

// unseen releases a record of Take that reached no worker.
func (e *Engine) returnUncounted(ctx context.Context, ws store.WorkStore, rec store.Record, repeatable bool, after time.Duration) error {
	e.markUncounted(ctx, ws, rec, repeatable)
	return ws.Return(e.storeContext(ctx), rec.Claim(), after)
}

// uncount has the attempt of a run that is to be released not count, as far as it can be
// stored.
func (r *Run) releaseUncounted(ctx context.Context, again Again) {
	switch {
	case r.taken:
		r.markUncounted(ctx, r.e.works)
	case r.e.works == nil, r.forgets(again): // no record, no attempt
	default:
		r.steps.mu.Lock()
		err := r.load(ctx, r.e.works) // what earlier runs have stored
		r.steps.mu.Unlock()
		if err == nil {
			r.markUncounted(ctx, r.e.works)
		}
	}
}

// spare is Engine.spare for a run that ends.
func (r *Run) markUncounted(ctx context.Context, ws store.WorkStore) {
	b := &r.steps
	b.mu.Lock()
	defer b.mu.Unlock()
	rec := r.rec
	if b.unknown != nil {
		return
	}
	if b.version > 0 {
		packed, err := r.e.packNotes(rec.ID, b.version, b.notes)
		if err != nil {
			return
		}
		rec.Notes = packed
	}
	r.e.markUncounted(ctx, ws, rec, r.repeatable)
	b.version = rec.Notes.Version + uncountedUnit
}
