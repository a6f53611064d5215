package stet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// Run is the operation that a handler runs, as the handler sees it. FromContext returns it. A
// handler can declare, emit and report progress. It cannot end the run; the caller of the
// handler ends it. A Run is safe for concurrent use.
type Run struct {
	e *Engine
	*request
	rec           store.Record
	outcome       Outcome // of a replayed or committed run
	replayed      bool
	transactional bool
	execution
	runState
	steps stepState
}

// execution is the part of a run whose handler is called; it is zero in a replay.
type execution struct {
	f      *inFlight
	ctx    context.Context
	cancel context.CancelCauseFunc
	begun  time.Time
}

// runState is the part of a run that changes while the handler runs. Its fields are guarded by mu.
type runState struct {
	mu        sync.Mutex
	ended     bool
	nothing   bool                // declared: no effect
	unknown   bool                // declared: an effect is possible
	still     time.Duration       // how long an unknown effect may still take
	openSteps map[string]struct{} // steps of StepOnce whose end is not stored

	why        *observe.Why // what Explain, or the error of the handler, says
	noRecord   bool         // the release deletes the record
	discarded  error        // why the result was discarded
	outbox     []Message
	outboxSize int
	committing bool // Emit fails from now on
}

// Lease is for authors of adapters. Begin, Take and TxEngine.Run return it. It holds a stored
// outcome to replay, or the right to run the operation and to end the run. A Lease is safe for
// concurrent use.
type Lease struct {
	*Run

	// Work is the job of a run of Take, without Work.After.
	Work Work
	// Counted is how many attempts of a run of Take count, this one included: Attempt, less
	// the attempts that were released Uncounted. For other runs, see Status.Counted.
	Counted int
	// Cancelling says that the job's cancellation was requested before this run of Take. For
	// a later request, see Engine.Lookup.
	Cancelling bool

	// Claim is set for a run of Take, and under Policy.Outside. A service settles with it by
	// SQL, and passes it to Engine.Progress. Keep it secret while the operation runs.
	Claim store.Claim

	// ForgottenAt is when the record of a settled operation will be deleted, on the store's
	// clock. A retry with this key runs again only after that time. The time of a replay is
	// exact. The time of a run counts from its claim, so the record stays longer. Zero:
	// unknown.
	ForgottenAt time.Time
}

// forgotten returns Lease.ForgottenAt of a run.
func (t *request) forgotten(rec store.Record) time.Time {
	if rec.ClaimedAt.IsZero() {
		return time.Time{}
	}
	return rec.ClaimedAt.Add(t.p.Retention.Tombstone)
}

type runKey struct{}

// FromContext returns the run of a handler's context, or nil outside a handler. A handler reads
// its key, fence and attempt from it.
func FromContext(ctx context.Context) *Run {
	r, _ := ctx.Value(runKey{}).(*Run)
	return r
}

// newRun makes the run of a granted claim. The lease renewer ends the run's context at its
// deadline. If the engine was closed in the meantime, newRun releases the claim.
func (e *Engine) newRun(ctx context.Context, t *request, f *inFlight, rec store.Record) (*Lease, error) {
	r := &Lease{Run: &Run{e: e, request: t, rec: rec, execution: execution{f: f, begun: t.claimSentAt}}, ForgottenAt: t.forgotten(rec)}
	if t.p.Outside || t.taken {
		r.Claim = rec.Claim()
	}
	r.setContext(ctx, context.Background())
	// The lease may have begun before the last call was sent, if an earlier call's reply was
	// lost.
	e.inFlight.startRun(f, r.Run, t.claimSentAt.Add(min(rec.LeaseLeft, t.p.Lease)-t.p.Lease))
	if e.renewer.start() {
		return r, nil
	}
	return nil, errors.Join(&Error{Kind: KindClosed, Execution: NotExecuted}, r.Release(ctx, Again{Uncounted: true}))
}

// Cancel ends the run's context with a cause. Use ErrCancelled, or ErrClosed if the handler's
// process shuts down. The lease stays.
func (r *Lease) Cancel(cause error) { r.cancel(cause) }

// settling reports whether the run is being settled or released, or has been.
func (r *Run) settling() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// isRunning reports whether the run's handler may still run.
func (r *Run) isRunning() bool {
	if r.transactional {
		return r.ctx.Err() == nil
	}
	return !r.settling()
}

// outer returns the run whose handler began this run, or nil.
func (r *Run) outer() *Run {
	if j, ok := r.ctx.(*runContext); ok {
		return FromContext(j.values)
	}
	return nil
}

// setContext makes the run's context. It has the values of ctx, and ends with end or when the
// run is cancelled.
func (r *Run) setContext(ctx, end context.Context) {
	j := &runContext{values: ctx, run: r, deadline: r.begun.Add(r.p.RunTimeout)}
	j.Context, r.cancel = context.WithCancelCause(end)
	r.ctx = j
}

// Replayed reports whether the operation was executed before. If so, Outcome has its outcome,
// and the caller must not run it.
func (r *Lease) Replayed() bool { return r.replayed }

// Outcome returns the stored outcome of a replayed run, or the outcome that TxEngine.Run has
// committed. Otherwise it is zero.
func (r *Lease) Outcome() Outcome { return r.outcome }

// Context returns the context for the handler. It ends when the lease is lost (cause
// ErrLeaseLost), at the policy's RunTimeout (cause ErrRunTimeout), and when the run ends.
// FromContext returns the run from it.
func (r *Lease) Context() context.Context { return r.ctx }

// Op returns the operation. For a run of Take, it has the names that the job was accepted
// under.
func (r *Run) Op() Op { return r.op }

// ID returns the digest that identifies the operation in the store.
func (r *Run) ID() store.ID { return r.rec.ID }

// Fence returns a number that grows strictly with every claim of the key. Compare it in writes
// outside the store, so that a run with an expired lease cannot write.
func (r *Run) Fence() int64 { return r.rec.Fence }

// Attempt returns 1 for the first claim of the key, 2 for the next. If it is above 1, an
// earlier run may have had its effect.
func (r *Run) Attempt() int { return r.rec.Attempt }

// DeriveKey returns the key for a downstream call of the handler. Every attempt of the
// operation derives the same key for the same name of the call.
func (r *Run) DeriveKey(call string) string {
	namespace := r.e.o.Namespace
	if r.namespace != nil {
		namespace = string(r.namespace)
	}
	return DeriveKey("stet/derived", namespace, r.op.Scope, r.op.Key, call)
}

// Declare states the effect of the run, if the handler's error or value does not. It applies
// when the handler returns or panics; see Lease.Do. A transaction is rolled back in both cases.
//
// NotExecuted states that this run has had no effect and will have none. The operation may run
// again under the same key.
//
// MayHaveExecuted states that the effect of this run cannot be known. For example, a downstream
// call was sent, and its response did not arrive. The operation becomes Unknown; see
// Lease.MarkUnknown. MayHaveExecuted overrides NotExecuted.
//
// still is how long the effect may still take, at most store.MaxRunTimeout (7 days). The record
// becomes Unknown after that time, so verifiers are called later. Pass 0 if the effect has
// happened by now or never will. The longest still of several calls applies. If this process
// dies, the record becomes Unknown when its lease expires, whatever still is. A verifier must
// therefore know by itself that a missing effect will not come later.
//
// In a transaction, MayHaveExecuted returns KindUnknown to the caller, but stores nothing, and
// a retry runs again. Make downstream calls in lease mode.
func (r *Run) Declare(x Execution, still time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch x {
	case NotExecuted:
		r.nothing = true
	case MayHaveExecuted:
		r.unknown, r.still = true, min(max(still, r.still), store.MaxRunTimeout)
	}
}

// Declared returns the declared value, or Executed if nothing was declared. It also returns
// MayHaveExecuted if this run or an earlier one has an unresolved StepOnce, which may still be
// running.
func (r *Run) Declared() Execution {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.unknown || len(r.openSteps) > 0:
		return MayHaveExecuted
	case r.nothing:
		return NotExecuted
	}
	return Executed
}

// MarkUnknown ends the run without an outcome. The record becomes Unknown, at once or after the time
// that Declare was given. It stays Unknown until a verifier or an operator resolves it. Without
// MarkUnknown, the record becomes Unknown when its lease expires.
//
// The error is an *Error of kind KindFenced, KindStore, KindDamaged (the record cannot be read)
// or KindInvalid (the run has ended already). After KindStore, the record becomes Unknown when
// the lease expires, or earlier if the store recovers.
func (r *Lease) MarkUnknown(ctx context.Context) error {
	if r.transactional {
		return invalid("a transactional run is rolled back by an error of its function")
	}
	if !r.end() {
		return invalid("the run has ended already")
	}
	r.mu.Lock()
	still := r.still
	r.mu.Unlock()
	r.finish(entry{}) // stops the renewals
	r.e.renewer.waitForRenewal(r.p.Lease)
	leave := func(ctx context.Context) error {
		if err := r.unrepeatable(ctx); err != nil {
			return err
		}
		return r.e.expireLease(ctx, r.rec, still)
	}
	err := leave(ctx)
	r.repeatLater(err, leave)
	ev := observe.Event{Why: r.explanation(observe.MarkedUnknown), Kind: observe.MarkedUnknown, ID: r.rec.ID, Class: r.op.Class, Label: r.labelOf(r.rec), State: store.Unknown, Fence: r.rec.Fence, Attempt: r.rec.Attempt,
		Elapsed: time.Since(r.begun), Err: err}
	switch {
	case err == nil:
	case KindOf(err) == KindFenced:
		ev.Kind = observe.Fenced
		err = &Error{Kind: KindFenced, Execution: MayHaveExecuted, Cause: err}
	default:
		ev.Kind = observe.StoreFailed
		err = storeFailed(MayHaveExecuted, err)
	}
	r.e.observe(ctx, ev)
	return err
}

// Settle stores the outcome and ends the run. The outcome is durable when Settle returns
// without an error. Do not show it to a client before.
//
// Some results cannot be stored. The outcome is then stored as Gone, and the observer receives
// the reason in Event.Err of observe.Settled:
//
//   - The result is larger than the policy's MaxResult.
//   - It has more than MaxFields (4096) header and trailer fields and values.
//   - Its status is above 999.
//   - A field has no name.
//
// The error is an *Error of one of these kinds:
//
//   - KindFenced: the record has a newer claim, or already an outcome.
//   - KindUnknown: the store did not respond, so the outcome may or may not be stored. Or a
//     StepOnce is unresolved, and the operation became Unknown instead.
//   - KindDamaged: the record cannot be read, and nothing was written.
//   - KindInvalid: the run has ended already.
//
// Settle retries a failing store for Options.StoreTimeout. It uses only the values of ctx, not
// its end. The WriteTimeout of a server should be longer than StoreTimeout.
func (r *Lease) Settle(ctx context.Context, out Outcome) error {
	if r.transactional {
		return invalid("a transactional run is settled by what its function returns")
	}
	if err := r.startEnding(ctx); err != nil {
		return err
	}
	r.explainOutcome(out)
	sealed := r.sealed(out)
	fault.At(fault.SettleBefore)
	err := r.e.settle(ctx, r.rec.Claim(), sealed, r.p.Retention)
	fault.At(fault.SettleAfter)
	var en entry
	if err == nil {
		en.rec = r.rec
		en.rec.State, en.rec.Result, en.rec.Gone, en.rec.LeaseLeft = sealed.State, sealed.Result, sealed.Gone, 0
		en.shared = true
	}
	r.finish(en)
	if err != nil {
		r.repeatLater(err, func(ctx context.Context) error { return r.e.expireLease(ctx, r.rec, 0) })
	}
	if err == nil && len(sealed.Outbox) > 0 {
		r.e.Wake()
	}
	return r.report(ctx, observe.Settled, en.rec.State, err)
}

// Release ends the claim without an outcome. The caller states that nothing was executed, or
// that the operation may be repeated. The operation runs again as the parameter again says,
// whose Failed must be nil. If the store cannot save that the attempt is uncounted, the attempt
// counts. Errors are those of Settle. If the store fails, Release continues to try in the
// background, for the time of the lease.
func (r *Lease) Release(ctx context.Context, again Again) error {
	switch {
	case r.transactional:
		return invalid("a transactional run is released by an error of its function, or Declare(NotExecuted)")
	case again.Failed != nil:
		return invalid("Release with Again.Failed: %w; settle it", again.Failed)
	case again.After < 0 || again.After > store.MaxDelay:
		return invalid("Release with Again.After %v; it must be 0 to %v", again.After, store.MaxDelay)
	}
	if err := r.startEnding(ctx); err != nil {
		return err
	}
	if !r.taken && r.forgets(again) {
		r.leavesNoRecord()
	}
	kind, to, call := observe.Released, store.Retryable, func(ctx context.Context) error { return r.release(ctx, again) }
	if again.Uncounted {
		r.releaseUncounted(ctx, again)
	}
	if r.taken {
		kind, to, call = observe.Returned, store.Accepted, func(ctx context.Context) error {
			return r.e.retry(ctx, 0, func(ctx context.Context) error { return r.e.works.Return(ctx, r.rec.Claim(), again.After) })
		}
	}
	fault.At(fault.ReleaseBefore)
	err := call(ctx)
	fault.At(fault.ReleaseAfter)
	r.finish(entry{})
	if !r.taken { // an earlier call may have deleted the record
		call = func(ctx context.Context) error { return r.e.release(ctx, r.rec.Claim(), r.p.Retention) }
	}
	r.repeatLater(err, call)
	if err == nil && r.taken && again.After == 0 {
		r.e.Wake()
	}
	return r.report(ctx, kind, to, err)
}

// repeatLater repeats the end of a run in the background, if err says that it may not have
// reached the store.
func (r *Run) repeatLater(err error, call func(context.Context) error) {
	if err != nil && KindOf(err) != KindFenced {
		r.e.finishLater(r.p.Lease, call)
	}
}

// release ends the claim, and deletes the record if forgets allows it.
func (r *Run) release(ctx context.Context, again Again) error {
	if r.p.Outside {
		return r.releaseOutside(ctx)
	}
	if !r.forgets(again) {
		return r.e.release(ctx, r.rec.Claim(), r.p.Retention)
	}
	tries := 0
	err := r.e.retry(ctx, 0, func(ctx context.Context) error {
		tries++
		return r.e.store.Release(ctx, r.rec.Claim(), store.Retention{}) // a zero retention deletes the record
	})
	if tries > 1 && errors.Is(err, store.ErrFenced) {
		return r.wasForgotten(ctx)
	}
	return err
}

// forgets reports whether Release deletes the record. It does so only if Policy.ForgetReleased
// or Again.Forget is set and the run had no effect.
func (r *Run) forgets(again Again) bool {
	return (again.Forget || r.p.ForgetReleased) && !again.effect && !r.p.Outside && r.rec.Attempt == 1 && !r.resent && !r.hasNotes()
}

// wasForgotten returns nil if an unacknowledged release has deleted the record. Otherwise, the
// record belongs to another run, or has an outcome.
func (r *Run) wasForgotten(ctx context.Context) error {
	now, err := r.e.read(ctx, r.rec.ID)
	switch {
	case err != nil:
		return err
	case now.State == store.None, now.Fence != r.rec.Fence && now.Attempt <= 1: // another request has used the key since
		return nil
	}
	return store.ErrFenced
}

// hasNotes reports whether the run may have stored a step.
func (r *Run) hasNotes() bool {
	r.steps.mu.Lock()
	defer r.steps.mu.Unlock()
	return r.steps.version > 0 || r.steps.unknown != nil
}

// end marks the run as ended. Only the first call returns true.
func (r *Run) end() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return false
	}
	r.ended = true
	return true
}

// startEnding marks the run as ended before a settle or a release. If a StepOnce is unresolved,
// it marks the operation unknown instead, and returns an error.
func (r *Lease) startEnding(ctx context.Context) error {
	r.mu.Lock()
	open := r.openStepError()
	if open == nil {
		defer r.mu.Unlock()
		if r.ended {
			return invalid("the run has ended already")
		}
		r.ended = true
		return nil
	}
	r.mu.Unlock()
	err := r.MarkUnknown(ctx)
	if k := KindOf(err); k == KindFenced || k == KindInvalid {
		return err
	}
	return &Error{Kind: KindUnknown, Execution: MayHaveExecuted, Cause: errors.Join(open, err)}
}

// openStepError returns the error for a run with an unresolved StepOnce, or nil. The caller
// holds r.mu.
func (r *Run) openStepError() error {
	for name := range r.openSteps {
		return fmt.Errorf("the step %q was begun, and its end was not recorded", name)
	}
	return nil
}

// finish frees the run's resources in this process.
func (r *Run) finish(en entry) {
	r.e.inFlight.end(r.f, en)
	r.cancel(nil)
}

// discardReason returns why the result of a settled run was discarded, or nil.
func (r *Run) discardReason() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.discarded
}

// report sends the end of the run to the observer, and returns the caller's error.
func (r *Run) report(ctx context.Context, kind observe.Kind, to store.State, err error) error {
	ev := observe.Event{Kind: kind, ID: r.rec.ID, Class: r.op.Class, Label: r.labelOf(r.rec), State: to, Fence: r.rec.Fence,
		Attempt: r.rec.Attempt, Why: r.explanation(kind), Err: err}
	if r.e.o.Observer != nil {
		ev.Elapsed = time.Since(r.begun)
	}
	var wrapped error
	switch {
	case err == nil && kind == observe.Settled:
		ev.Err = r.discardReason()
	case err == nil:
	case errors.Is(err, store.ErrFenced):
		ev.Kind, ev.State = observe.Fenced, store.Unknown
		wrapped = &Error{Kind: KindFenced, Execution: MayHaveExecuted, Cause: err}
	case errors.Is(err, store.ErrDamaged):
		ev.Kind, ev.State = observe.StoreFailed, store.Unknown
		wrapped = damaged(err)
	default:
		ev.Kind, ev.State = observe.StoreFailed, store.Unknown
		wrapped = &Error{Kind: KindUnknown, Execution: MayHaveExecuted, Cause: err}
	}
	r.observe(ctx, ev)
	return wrapped
}
