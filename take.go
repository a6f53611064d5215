package stet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// unreadablePause is the time until an operation is due again that cannot be decoded, or whose
// class this process does not have.
const unreadablePause = time.Hour

// Item is an accepted operation that waits to run, as queues carry it. A queue entry may be
// old or forged: the engine uses only its ID, and compares class and name with the record.
type Item struct {
	ID    store.ID
	Class string // names the policy
	Name  string // names the handler

	// Repeatable says that an abandoned run may be repeated: its effects are in a transaction
	// that was then not committed, or doing them twice has one effect. The worker sets it;
	// queues do not carry it. The operation is due again when the lease expires, and does not
	// become Unknown unless a StepOnce is unresolved.
	Repeatable bool
}

// Due returns about limit accepted operations that wait to run, with one of the names, or with
// any name if none are given. For each name the oldest come first, and names take turns. An
// operation that is not taken within the time again is returned again, to any caller;
// therefore a queue or worker may lose it. A process queries the names that it has handlers
// for, at most store.MaxDueNames. The error is an *Error of kind KindInvalid or KindStore.
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
		if err != nil { // it stays accepted, for an operator
			e.observe(ctx, observe.Event{Kind: observe.StoreFailed, ID: rec.ID, State: rec.State, Fence: rec.Fence, Attempt: rec.Attempt, Err: err})
			continue
		}
		items = append(items, Item{ID: rec.ID, Class: op.Class, Name: w.Name})
	}
	return items, err
}

// due checks limit and again, and reads the records that are due.
func (e *Engine) due(ctx context.Context, limit int, again time.Duration, ask func(context.Context) ([]store.Record, error)) ([]store.Record, error) {
	if limit < 1 || limit > store.MaxBrowse || again <= 0 || again > store.MaxDelay {
		return nil, invalid("the limit is %d, and the time until they are due again %v; they must be 1 to %d, and up to %v", limit, again, store.MaxBrowse, store.MaxDelay)
	}
	// Not retried: the records of a lost reply are due again soon.
	recs, err := ask(e.storeContext(ctx))
	if partial, ok := errors.AsType[*store.PartialError](err); ok {
		for _, c := range partial.Claims { // for an operator, see Browser
			e.observe(ctx, observe.Event{Kind: observe.StoreFailed, ID: c.ID, Fence: c.Fence, Err: damaged(partial.Cause)})
		}
		return recs, nil
	}
	if err != nil {
		return recs, &Error{Kind: KindStore, Execution: NotExecuted, RetryAfter: retryAfter, Cause: err}
	}
	return recs, nil
}

// Arrived returns a channel that is closed when this engine next accepts an operation, settles
// one with messages, or Wake is called. Callers that poll Due or Relay can stop waiting then.
func (e *Engine) Arrived() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.arrived == nil {
		e.arrived = make(chan struct{})
	}
	return e.arrived
}

// Wake closes the channel of Arrived. Call it after the commit of your own transaction that
// contains TxEngine.Accept or TxEngine.Settle.
func (e *Engine) Wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.arrived != nil {
		close(e.arrived)
		e.arrived = nil
	}
}

// Take claims an accepted operation for a worker. The run has its Work, and the policy of the
// class under which it was accepted. If the run is Replayed, the operation is settled already.
// Release makes it run again; Settle, TxEngine.Finish and MarkUnknown end it.
//
// The error is an *Error of kind KindInvalid (no such class), KindInFlight (it runs, or is not
// due yet because of Work.After or Again.After), KindUnknown (and its policy does not resolve
// it), KindExpired, KindFenced (there is no such operation, or it was not accepted),
// KindDamaged, KindStore or KindClosed.
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
	t := &request{op: Op{Class: it.Class}, p: p, taken: true, repeatable: it.Repeatable, req: store.ClaimRequest{ID: it.ID, Owner: store.NewOwner(), Lease: p.Lease}}
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
	switch {
	case err != nil:
		return nil, err
	case !en.granted:
		return e.notTaken(ctx, t, en.rec)
	}
	if rec, err := e.confirmJob(ctx, ws, t, en.rec, work.Other); err != nil {
		return nil, err
	} else if rec.State.Settled() {
		return e.replay(ctx, t, rec)
	}
	run, err = e.newRun(ctx, t, f, en.rec)
	if err != nil {
		return nil, err
	}
	run.Work, run.Counted, run.Cancelling = Work{Name: work.Name, Payload: work.Payload}, en.rec.Attempt-uncountedAttempts(en.rec), en.rec.Cancelling
	run.steps.mu.Lock()
	defer run.steps.mu.Unlock()
	run.steps.marked = it.Repeatable
	return run, run.load(ctx, ws) // take has checked that they can be read
}

// confirmJob checks a job that was claimed, and that may have been accepted under its other name,
// too. It runs if the other name is free. It also runs if the other job has no stored step, and
// this one has, or has the smaller ID. A job gets the outcome of the other one, and is due
// again until there is one.
func (e *Engine) confirmJob(ctx context.Context, ws store.WorkStore, t *request, rec store.Record, other []byte) (store.Record, error) {
	if len(other) != len(store.ID{}) {
		return rec, nil
	}
	var there store.Record
	err := e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
		there, err = ws.Look(ctx, store.ID(other))
		return err
	})
	first := len(rec.Notes.Data) > 0 || bytes.Compare(rec.ID[:], other) < 0
	switch {
	case err == nil && (isFree(there) || there.State == store.Accepted && len(there.Notes.Data) == 0 && first):
		return rec, nil
	case err == nil && there.State.Settled():
		out := Outcome{Failed: there.State == store.Failed, Gone: true}
		if !there.Gone {
			out, err = e.sealer.open(there)
		}
		if err == nil {
			sealed, _ := e.sealer.seal(rec.ID, out, t.p.MaxResult) // as large as the other result
			err = e.settle(ctx, rec.Claim(), sealed, t.p.Retention)
		}
		if err == nil {
			if rec, err = e.read(ctx, rec.ID); err == nil {
				e.observe(ctx, t.event(observe.Settled, rec, nil))
			}
		}
		if err == nil {
			return rec, nil
		}
	}
	if err == nil {
		err = &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter, Cause: errors.New("it runs under its other name")}
	} else {
		e.observe(ctx, t.event(observe.StoreFailed, rec, err))
		err = storeFailed(MayHaveExecuted, err)
	}
	return rec, errors.Join(err, e.returnUncounted(ctx, ws, rec, t.repeatable, retryAfter))
}

// notTaken returns the outcome of a record that was not granted, or why it cannot run now.
func (e *Engine) notTaken(ctx context.Context, t *request, rec store.Record) (*Lease, error) {
	switch {
	case rec.State.Settled():
		return e.replay(ctx, t, rec)
	case rec.State == store.None:
		return nil, &Error{Kind: KindFenced, Execution: MayHaveExecuted, Cause: errors.New("there is no such operation")}
	case rec.State == store.Unknown:
		e.observe(ctx, t.event(observe.ToldUnknown, rec, nil))
		return nil, &Error{Kind: KindUnknown, Execution: MayHaveExecuted}
	case rec.State == store.Accepted:
		return nil, &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter, Cause: errors.New("it is not due yet")}
	case rec.State == store.Running:
		e.observe(ctx, t.event(observe.InFlight, rec, nil))
		return nil, &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: max(rec.LeaseLeft, pollMin)}
	default:
		return nil, &Error{Kind: KindStore, Execution: NotExecuted, RetryAfter: retryAfter,
			Cause: fmt.Errorf("the store returned a record in state %v that it did not grant", rec.State)}
	}
}

// take calls the store, and completes t with the operation of the record.
func (e *Engine) take(ctx context.Context, ws store.WorkStore, t *request) (rec store.Record, w packedWork, err error) {
	fault.At(fault.ClaimBefore)
	err = e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
		t.claimSentAt = time.Now()
		rec, err = ws.Take(ctx, store.TakeRequest{ID: t.req.ID, Owner: t.req.Owner, Lease: t.req.Lease, Repeatable: t.repeatable})
		return err
	})
	fault.At(fault.ClaimAfter)
	if err != nil {
		return rec, w, e.unclaimed(ctx, t, rec, err)
	}
	t.req.Fingerprint, t.req.Scope = rec.Fingerprint, rec.Scope
	if rec.Work == nil && (rec.State == store.Unknown || rec.State == store.Retryable) { // the key was used again, without Accept
		return rec, w, &Error{Kind: KindFenced, Execution: MayHaveExecuted, Cause: errors.New("the operation was not accepted")}
	}
	op, w, err := e.unpack(rec)
	if _, ok := e.policies[op.Class]; err == nil && op.Key != "" && !ok {
		err = invalid("the operation's class %q is not among Options.Classes", op.Class)
	}
	if err == nil && rec.State == store.Running {
		_, err = e.notes(rec) // unreadable notes: it must not run
	}
	if err != nil {
		if rec.State == store.Running && rec.Owner == t.req.Owner { // other processes cannot read it either; an operator must
			err = errors.Join(err, e.returnUncounted(ctx, ws, rec, t.repeatable, unreadablePause))
		}
		return rec, w, err
	}
	if op.Key != "" {
		t.op, t.p, t.namespace = op, e.policies[op.Class], w.Namespace
	}
	if rec.State == store.Running && rec.Owner == t.req.Owner {
		e.observe(ctx, t.event(observe.Claimed, rec, nil))
	}
	return rec, w, nil
}

// Finish ends a run in a transaction: the writes of fn through tx and its outcome are
// committed together, or neither is. If the run's fence is not the newest, nothing is
// committed.
//
// After an error the transaction may or may not be committed, and the messages of fn are
// dropped. End the run with Release: if that returns KindFenced, an outcome is stored,
// possibly this one. The error is that of fn, or an *Error of kind KindFenced, KindStore,
// KindInvalid, or KindRetryable with a *store.AbortedError.
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
	// The end of the run's context must not interrupt the transaction.
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
	r.finish(entry{}) // waiting callers read the store
	if len(r.emitted()) > 0 {
		r.e.Wake()
	}
	return r.report(ctx, observe.Settled, state, nil)
}

// uncountedUnit is the step of the version of notes for each uncounted attempt: the upper 16
// bits are their number. It can be read and written even if the notes themselves cannot be
// decrypted.
const uncountedUnit = 1 << 48

const maxUncounted = 1<<16 - 1 // further attempts count

func uncountedAttempts(rec store.Record) int { return int(rec.Notes.Version / uncountedUnit) }

// markUncounted excludes the attempt of a record from the limit, and reports whether that is
// stored. rec has its current notes. If the store fails, the attempt counts.
func (e *Engine) markUncounted(ctx context.Context, ws store.WorkStore, rec store.Record, repeatable bool) bool {
	if uncountedAttempts(rec) >= min(rec.Attempt, maxUncounted) { // already stored for this attempt
		return false
	}
	notes := rec.Notes // unchanged: a process that cannot decrypt must not encrypt
	notes.Version += uncountedUnit
	return nil == e.retry(ctx, claimTries, func(ctx context.Context) error {
		if rec.State == store.Unknown { // its lease has expired in the meantime
			return ws.Amend(ctx, rec.Claim(), notes)
		}
		return ws.Save(ctx, rec.Claim(), notes, repeatable)
	})
}

// returnUncounted releases a record of Take that no handler received.
func (e *Engine) returnUncounted(ctx context.Context, ws store.WorkStore, rec store.Record, repeatable bool, after time.Duration) error {
	e.markUncounted(ctx, ws, rec, repeatable)
	return ws.Return(e.storeContext(ctx), rec.Claim(), after)
}

// releaseUncounted excludes the attempt of a run that is being released from the limit, if the
// store can save it.
func (r *Run) releaseUncounted(ctx context.Context, again Again) {
	switch {
	case r.taken:
		r.markUncounted(ctx, r.e.works)
	case r.e.works == nil, r.forgets(again): // no record, no attempt
	default:
		r.steps.mu.Lock()
		err := r.load(ctx, r.e.works) // notes of earlier runs
		r.steps.mu.Unlock()
		if err == nil {
			r.markUncounted(ctx, r.e.works)
		}
	}
}

// markUncounted is Engine.markUncounted for a run that ends.
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
