package stet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/internal/fault"
)

// damagedRest is how long a payload that cannot be read is left alone.
const damagedRest = time.Hour

// Item is an accepted operation that waits to be run: what a queue carries.
type Item struct {
	ID    ID
	Class string // names the policy
	Name  string // names the handler
}

// Due returns about limit accepted operations, at most, that wait to be run: the
// longest waiting first. They are returned again, to whoever asks, unless they
// were taken within that time; so what a queue or a worker loses is not lost. The
// error is an *Error of kind ErrInvalid or ErrStore.
func (e *Engine) Due(ctx context.Context, limit int, again time.Duration) ([]Item, error) {
	recs, err := e.due(ctx, DueRun, limit, again)
	items := make([]Item, 0, len(recs))
	for _, rec := range recs {
		op, w, err := e.unpack(rec)
		if err != nil { // an operator's case: it stays accepted
			e.observe(ctx, Event{Kind: EventStoreFailed, ID: rec.ID, State: rec.State, Fence: rec.Fence, Err: err})
			continue
		}
		items = append(items, Item{ID: rec.ID, Class: op.Class, Name: w.Name})
	}
	return items, err
}

func (e *Engine) due(ctx context.Context, what Due, limit int, again time.Duration) (recs []Record, err error) {
	ws, err := e.workStore()
	switch {
	case err != nil:
		return nil, err
	case limit < 1 || limit > MaxBrowse || again <= 0 || again > MaxDelay:
		return nil, invalid("the limit is %d, and the time until they are due again %v; they must be 1 to %d, and up to %v", limit, again, MaxBrowse, MaxDelay)
	}
	// Not tried again: what a lost reply has given to nobody is due again soon.
	recs, err = ws.Due(e.stepContext(ctx), what, limit, again)
	if err != nil {
		return recs, &Error{Kind: ErrStore, Execution: NotExecuted, RetryAfter: retryAfter, Cause: err}
	}
	return recs, nil
}

// Arrived returns a channel that is closed when this engine has next accepted an
// operation, or settled one with messages, or Wake is called: whoever polls Due or
// DueMessages need not wait.
func (e *Engine) Arrived() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.arrived == nil {
		e.arrived = make(chan struct{})
	}
	return e.arrived
}

// Wake closes the channel of Arrived. Only transactions need it that are the
// caller's own: call it after the commit that AcceptTx or SettleTx was part of.
func (e *Engine) Wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.arrived != nil {
		close(e.arrived)
		e.arrived = nil
	}
}

// Take is a worker's Begin: it takes the claim of an accepted operation. The run
// has its Work; if it is Replayed, the operation has ended, and there is nothing
// to do. Release and Return let it be run again; Settle, FinishTx and Park are as
// ever.
//
// The error is an *Error of kind ErrInvalid (no such class), ErrInFlight (it runs),
// ErrUnknown (and its policy does not say what is to become of it), ErrExpired,
// ErrFenced (there is no such operation, or it was not accepted), ErrDamaged,
// ErrStore or ErrClosed.
func (e *Engine) Take(ctx context.Context, it Item) (*Run, error) {
	ws, err := e.workStore()
	if err != nil {
		return nil, err
	}
	p, ok := e.policies[it.Class]
	switch {
	case !ok:
		return nil, invalid("Item.Class %q is not among Options.Classes", it.Class)
	case e.ctx.Err() != nil:
		return nil, &Error{Kind: ErrClosed, Execution: NotExecuted}
	}
	t := &ticket{op: Op{Class: it.Class}, p: p, req: ClaimRequest{ID: it.ID, Owner: NewOwner(), Lease: p.Lease}}
	f, leader := e.flights.join(it.ID, Fingerprint{})
	if !leader {
		return nil, &Error{Kind: ErrInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter}
	}
	var run *Run
	defer func() {
		if run == nil {
			e.flights.end(f, entry{})
		}
	}()
	var work packedWork
	var asked time.Time
	en, err := e.enter(ctx, t, func(ctx context.Context, t *ticket) (Record, error) {
		asked = time.Now()
		rec, w, err := e.take(ctx, ws, t)
		work = w
		return rec, err
	})
	switch rec := en.rec; {
	case err != nil:
		return nil, err
	case en.granted:
		e.flights.runs(f, rec.Fingerprint)
		run, err = e.newRun(ctx, t, f, rec, asked)
		if err != nil {
			return nil, err
		}
		run.work, run.taken = Work{Name: work.Name, Payload: work.Payload}, true
		return run, nil
	case rec.State.Settled():
		return e.replay(ctx, t, rec)
	case rec.State == None:
		return nil, &Error{Kind: ErrFenced, Execution: MayHaveExecuted, Cause: errors.New("there is no such operation")}
	case rec.State == Unknown:
		e.observe(ctx, t.event(EventToldUnknown, rec, nil))
		return nil, &Error{Kind: ErrUnknown, Execution: MayHaveExecuted}
	case rec.State == Running:
		e.observe(ctx, t.event(EventInFlight, rec, nil))
		return nil, &Error{Kind: ErrInFlight, Execution: MayHaveExecuted, RetryAfter: max(rec.LeaseLeft, pollMin)}
	default:
		return nil, &Error{Kind: ErrStore, Execution: NotExecuted, RetryAfter: retryAfter,
			Cause: fmt.Errorf("the store returned a record in state %v that it did not grant", rec.State)}
	}
}

// take asks the store once, and makes the ticket that of the operation.
func (e *Engine) take(ctx context.Context, ws WorkStore, t *ticket) (rec Record, w packedWork, err error) {
	class := t.op.Class
	fault.At(fault.ClaimBefore)
	err = e.step(ctx, claimTries, func(ctx context.Context) (err error) {
		rec, err = ws.Take(ctx, t.req.ID, t.req.Owner, t.req.Lease)
		return err
	})
	fault.At(fault.ClaimAfter)
	if err != nil {
		e.observe(ctx, t.event(EventStoreFailed, rec, err))
		e.abandon(t)
		return rec, w, &Error{Kind: ErrStore, Execution: NotExecuted, RetryAfter: retryAfter, Cause: err}
	}
	t.req.Fingerprint, t.req.Scope = rec.Fingerprint, rec.Scope
	if rec.Work == nil && (rec.State == Unknown || rec.State == Retryable) { // the key was used anew
		return rec, w, &Error{Kind: ErrFenced, Execution: MayHaveExecuted, Cause: errors.New("the operation was not accepted")}
	}
	op, w, err := e.unpack(rec)
	if err != nil {
		if rec.State == Running && rec.Owner == t.req.Owner { // nobody else can read it either; an operator must look
			err = errors.Join(err, ws.Return(e.stepContext(ctx), rec.Claim(), damagedRest))
		}
		return rec, w, err
	}
	if op.Key != "" {
		t.op = op
		t.op.Class = class // whose policy the ticket has
	}
	if rec.State == Running && rec.Owner == t.req.Owner {
		e.observe(ctx, t.event(EventClaimed, rec, nil))
	}
	return rec, w, nil
}

// Work returns what the run is to do, if its operation was accepted.
func (r *Run) Work() Work { return r.work }

// Cancelling reports whether the operation's cancellation was asked for, as the
// store has it now. Whoever runs it should ask from time to time, and settle it as
// failed when it has stopped. The error is an *Error of kind ErrInvalid or ErrStore.
func (r *Run) Cancelling(ctx context.Context) (bool, error) {
	st, err := r.e.Lookup(ctx, r.rec.ID)
	return st.Record.Cancelling && st.Record.Fence == r.rec.Fence, err
}

// Return ends a run of an accepted operation, stating that nothing was executed:
// it is run again when that time is over, at most MaxDelay. Errors are those of
// Settle.
func (r *Run) Return(ctx context.Context, after time.Duration) error {
	ws, err := r.e.workStore()
	switch {
	case err != nil:
		return err
	case !r.taken:
		return invalid("Return needs a run of Take; others are given back by Release")
	case after < 0 || after > MaxDelay:
		return invalid("Return after %v; it must be 0 to %v", after, MaxDelay)
	case !r.end():
		return invalid("the run has ended already")
	}
	return r.giveBack(ctx, ws, after)
}

// giveBack ends a run of Take, whose right to end the caller has.
func (r *Run) giveBack(ctx context.Context, ws WorkStore, after time.Duration) error {
	fault.At(fault.ReleaseBefore)
	err := r.e.step(ctx, 0, func(ctx context.Context) error { return ws.Return(ctx, r.rec.Claim(), after) })
	fault.At(fault.ReleaseAfter)
	r.finish(entry{})
	if err == nil && after == 0 {
		r.e.Wake()
	}
	return r.report(ctx, EventReturned, Accepted, err)
}

// FinishTx ends a run in a transaction of s, which must be the engine's store:
// what fn writes through tx and the outcome that it returns become durable
// together or not at all. A run that is stale by then writes nothing.
//
// With an error, nothing of it is known to be durable, what fn has emitted is
// forgotten, the run has not ended, and Return or Release ends it whatever
// happened: ErrFenced of theirs says that another outcome stands, which may be that
// of this very transaction, whose COMMIT was answered too late. The error is that
// of fn, or an *Error of kind ErrFenced, ErrStore or ErrInvalid.
func FinishTx[Tx any](ctx context.Context, r *Run, s WorkTxStore[Tx], fn func(context.Context, Tx) (Outcome, error)) error {
	if r.transactional || r.settling() {
		return invalid("FinishTx needs a run that has not ended")
	}
	var theirs error
	var state State
	before, committed := len(r.emitted()), false
	defer func() { // also when fn panics
		if !committed {
			r.takeBack(before)
		}
	}()
	err := s.InTx(ctx, func(ctx context.Context, tx Tx) error {
		out, err := fn(ctx, tx)
		if theirs = err; err != nil {
			return err
		}
		state = out.State
		return SettleTx(ctx, r, s, tx, out)
	})
	switch own, ok := errors.AsType[*Error](err); {
	case err == nil:
	case theirs != nil:
		return theirs
	case ok:
		return own
	default:
		r.e.observe(ctx, Event{Kind: EventStoreFailed, ID: r.rec.ID, Class: r.op.Class, State: Running, Fence: r.rec.Fence, Attempt: r.rec.Attempt, Err: err})
		return &Error{Kind: ErrStore, Execution: MayHaveExecuted, Cause: err}
	}
	committed = true
	if !r.end() {
		return invalid("the run was ended by somebody else while its transaction was committed")
	}
	r.finish(entry{}) // followers ask the store
	if len(r.emitted()) > 0 {
		r.e.Wake()
	}
	return r.report(ctx, EventSettled, state, nil)
}
