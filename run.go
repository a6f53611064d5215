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

// Run is a handler's view of the operation that it runs, from FromContext. It can
// declare, emit and report progress; it cannot end the run, which is for what called
// the handler. It is safe for concurrent use.
type Run struct {
	e       *Engine
	op      Op
	p       *Policy
	rec     store.Record
	outcome Outcome // of a replayed or committed run

	replayed      bool
	transactional bool
	resent        bool // its claim was sent more than once
	f             *inFlight
	ctx           context.Context
	cancel        context.CancelCauseFunc
	begun         time.Time

	mu        sync.Mutex
	ended     bool
	nothing   bool
	unknown   bool
	still     time.Duration       // how long an unknown effect may take yet
	openSteps map[string]struct{} // steps that were begun, to run once, and whose end is not noted

	discarded  error // why the result was not kept
	outbox     []Message
	outboxSize int
	committing bool // nothing can be emitted any more

	taken      bool   // by Take
	repeatable bool   // see Item
	namespace  []byte // that it was accepted in; nil is the engine's
	steps      stepState
}

// Lease is for authors of adapters: what Begin, Take and TxEngine.Run give. It is an
// outcome to replay, or the right to run the operation and to end the run. It is safe
// for concurrent use.
type Lease struct {
	*Run

	// Of a run of Take: what it is to do, without Work.After; how many of its attempts
	// count, this one included, as Attempt, less those that were released Uncounted (of
	// other runs, Status.Counted); and whether its cancellation had been asked for by then
	// (see Engine.Lookup for later).
	Work       Work
	Counted    int
	Cancelling bool

	// Of a run of Take, or under Policy.Outside: what a service settles with by SQL, and
	// what Engine.Progress takes. It is a secret while the operation runs.
	Claim store.Claim

	// When the record of a settled operation will be forgotten, on the store's clock: a retry
	// with this key runs again only after it. Of a replay it is exact. Of a run it counts from
	// the claim, so the record is kept longer. Zero: not known.
	ForgottenAt time.Time
}

// forgotten is Lease.ForgottenAt of a run.
func (t *request) forgotten(rec store.Record) time.Time {
	if rec.ClaimedAt.IsZero() {
		return time.Time{}
	}
	return rec.ClaimedAt.Add(t.p.Retention.Tombstone)
}

type runKey struct{}

// FromContext returns the run that a handler was called for, or nil outside of
// one. It is how a handler learns its key, fence and attempt.
func FromContext(ctx context.Context) *Run {
	r, _ := ctx.Value(runKey{}).(*Run)
	return r
}

// newRun makes the run of a granted claim, which f has from now on. The keeper ends the
// run's context at its deadline, too; if the engine was closed in the meantime, the claim is
// released.
func (e *Engine) newRun(ctx context.Context, t *request, f *inFlight, rec store.Record) (*Lease, error) {
	r := &Lease{Run: &Run{e: e, op: t.op, p: t.p, rec: rec, f: f, begun: t.claimSentAt, resent: t.resent, taken: t.taken}, ForgottenAt: t.forgotten(rec)}
	if t.p.Outside || t.taken {
		r.Claim = rec.Claim()
	}
	r.setContext(ctx, context.Background())
	// The claim may be older than the call that brought its reply.
	e.inFlight.startRun(f, r.Run, t.claimSentAt.Add(min(rec.LeaseLeft, t.p.Lease)-t.p.Lease))
	if e.renewer.start() {
		return r, nil
	}
	return nil, errors.Join(&Error{Kind: KindClosed, Execution: NotExecuted}, r.Release(ctx, Again{Uncounted: true}))
}

// Cancel ends the run's context with a cause: ErrCancelled, or ErrClosed where what runs
// the handler shuts down. The lease is kept.
func (r *Lease) Cancel(cause error) { r.cancel(cause) }

// settling reports whether the run is being settled or released, or has been.
func (r *Run) settling() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// goesOn reports whether the run's handler may still be at work.
func (r *Run) isRunning() bool {
	if r.transactional {
		return r.ctx.Err() == nil
	}
	return !r.settling()
}

// around returns the run that this one was begun in, or nil.
func (r *Run) outer() *Run {
	if j, ok := r.ctx.(*runContext); ok {
		return FromContext(j.values)
	}
	return nil
}

// setContext makes the context of a run that takes its values from ctx and ends
// with end, or when the run is cancelled.
func (r *Run) setContext(ctx, end context.Context) {
	j := &runContext{values: ctx, run: r, deadline: r.begun.Add(r.p.RunTimeout)}
	j.Context, r.cancel = context.WithCancelCause(end)
	r.ctx = j
}

// Replayed reports whether the operation was executed before; Outcome then has
// its outcome, and there is nothing to run.
func (r *Lease) Replayed() bool { return r.replayed }

// Outcome returns the outcome that stands: of a replayed run, or of one that
// TxEngine.Run has committed. Otherwise it is zero.
func (r *Lease) Outcome() Outcome { return r.outcome }

// Context returns the context to run under. It ends when the lease is lost
// (cause ErrLeaseLost), when the policy's RunTimeout is used up (cause
// ErrRunTimeout), and when the run ends. FromContext finds the run in it.
func (r *Lease) Context() context.Context { return r.ctx }

// Op returns the operation. Of a run of Take it has the names that it was accepted
// under.
func (r *Run) Op() Op { return r.op }

// ID returns the digest that the store knows the operation by.
func (r *Run) ID() store.ID { return r.rec.ID }

// Fence returns the number that strictly grows with every claim of the key.
// Compare it in writes outside the store, to keep a zombie from writing.
func (r *Run) Fence() int64 { return r.rec.Fence }

// Attempt returns 1 for the first claim of the key, 2 for the next: a run before
// this one may have had its effect.
func (r *Run) Attempt() int { return r.rec.Attempt }

// DeriveKey returns the key for a call that the handler makes further down, by
// the name of the call: every attempt of this operation derives the same one.
func (r *Run) DeriveKey(call string) string {
	namespace := r.e.o.Namespace
	if r.namespace != nil {
		namespace = string(r.namespace)
	}
	return DeriveKey("stet/derived", namespace, r.op.Scope, r.op.Key, call)
}

// Declare says what the error of a handler, or its value, does not. It takes effect when
// the handler returns, whatever it returns, or panics; see Lease.Do.
//
// NotExecuted: this run has had no effect and will have none, so the operation may be
// tried again under the same key. A transaction is rolled back.
//
// MayHaveExecuted: it cannot be known whether this run has had an effect: a call further
// down was sent, and its answer did not come. The run is marked unknown, see MarkUnknown. It prevails
// over NotExecuted. The effect may take as long as still to happen, at most
// store.MaxRunTimeout, which postpones what would find it out: 0 if it has happened by
// now or never will. Of several calls the longest still counts. Should this process
// die, the record is marked unknown when its lease has run out, however long still is: a verifier
// must know by itself that what it does not find will not come. A transaction is rolled
// back and its caller told KindUnknown, but nothing is kept of it, and a retry runs again:
// calls further down belong into lease mode.
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

// Declared returns what was declared; MayHaveExecuted also if a StepOnce was begun, by
// this run or an earlier one, and its end is not noted: it may be running still. Else
// it returns Executed.
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

// MarkUnknown ends the run without an outcome: the record becomes Unknown, at once or
// when the time that Declare was given is over, and stays so until a
// verifier or an operator resolves it. Without MarkUnknown it would become so when the
// lease has run out.
//
// An error is an *Error of kind KindFenced, KindStore (it will be marked unknown when the
// lease has run out, or before if the store is back), KindDamaged (the record cannot be read) or KindInvalid (the run
// has ended already).
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
	r.finish(entry{}) // no heartbeat from now on
	r.e.renewer.waitForRenewal(r.p.Lease)
	leave := func(ctx context.Context) error {
		if err := r.unrepeatable(ctx); err != nil {
			return err
		}
		return r.e.expireLease(ctx, r.rec, still)
	}
	err := leave(ctx)
	r.repeatLater(err, leave)
	ev := observe.Event{Kind: observe.MarkedUnknown, ID: r.rec.ID, Class: r.op.Class, State: store.Unknown, Fence: r.rec.Fence, Attempt: r.rec.Attempt,
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

// Settle writes the outcome and ends the run. It returns once the outcome is
// durable; only then may it be shown to anyone. A result that cannot be kept is
// stored as Gone, and the observer told why (Event.Err of observe.Settled): one larger
// than the policy's MaxResult, or with more than MaxFields header and trailer fields and
// values, a status above 999, or a field without a name.
//
// An error is an *Error of kind KindFenced (another claim or outcome stands),
// KindUnknown (the store could not be reached: the outcome may or may not have
// been written; or a StepOnce is in doubt: the run was marked unknown instead), KindDamaged (the record cannot be read any more, and nothing was
// written) or KindInvalid (the run has ended already). A store that cannot be reached is tried again for
// Options.StoreTimeout, whatever becomes of ctx, of which only the values are
// used: a server's WriteTimeout should be longer.
func (r *Lease) Settle(ctx context.Context, out Outcome) error {
	if r.transactional {
		return invalid("a transactional run is settled by what its function returns")
	}
	if err := r.startEnding(ctx); err != nil {
		return err
	}
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

// Release gives the claim back, stating that nothing was executed, or that it may be
// repeated, and ends the run. The operation is run again as again says, whose Failed must
// be nil. If it cannot be stored that the attempt is uncounted, it counts. Errors are those
// of Settle. A store that cannot be reached is tried again in the background, for as long
// as the lease.
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
	if !r.taken { // what was sent before may have been obeyed
		call = func(ctx context.Context) error { return r.e.release(ctx, r.rec.Claim(), r.p.Retention) }
	}
	r.repeatLater(err, call)
	if err == nil && r.taken && again.After == 0 {
		r.e.Wake()
	}
	return r.report(ctx, kind, to, err)
}

// insist repeats the end of a run in the background, if err says that it may not have
// reached the store.
func (r *Run) repeatLater(err error, call func(context.Context) error) {
	if err != nil && KindOf(err) != KindFenced {
		r.e.finishLater(r.p.Lease, call)
	}
}

// release releases the record, or has it forgotten: see Policy.ForgetReleased and
// Again.Forget.
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
		return r.e.store.Release(ctx, r.rec.Claim(), store.Retention{}) // forgotten at once
	})
	if tries > 1 && errors.Is(err, store.ErrFenced) {
		return r.wasForgotten(ctx)
	}
	return err
}

// forgets reports whether the release of the run leaves no record: if that is asked for, and
// the run had no effect.
func (r *Run) forgets(again Again) bool {
	return (again.Forget || r.p.ForgetReleased) && !again.effect && !r.p.Outside && r.rec.Attempt == 1 && !r.resent && !r.hasNotes()
}

// obeyed returns nil if a release was obeyed that got no answer, so that the record is
// gone. If it was not, another run of the operation, or its outcome, has the record.
func (r *Run) wasForgotten(ctx context.Context) error {
	now, err := r.e.read(ctx, r.rec.ID)
	switch {
	case err != nil:
		return err
	case now.State == store.None, now.Fence != r.rec.Fence && now.Attempt <= 1: // the key was used anew
		return nil
	}
	return store.ErrFenced
}

// noted reports whether something may have been stored of the run: a step that
// was done must not be done again.
func (r *Run) hasNotes() bool {
	r.steps.mu.Lock()
	defer r.steps.mu.Unlock()
	return r.steps.version > 0 || r.steps.unknown != nil
}

// end claims the right to end the run; only the first call has it.
func (r *Run) end() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return false
	}
	r.ended = true
	return true
}

// conclude claims the right to end the run with an outcome, or by giving it back.
// A step in doubt allows neither: the run is marked unknown.
func (r *Lease) startEnding(ctx context.Context) error {
	r.mu.Lock()
	doubt := r.openStepError()
	if doubt == nil {
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
	return &Error{Kind: KindUnknown, Execution: MayHaveExecuted, Cause: errors.Join(doubt, err)}
}

// inDoubt is the error for an end of a run that has a step in doubt; nil if it has
// none. The caller holds r.mu.
func (r *Run) openStepError() error {
	for name := range r.openSteps {
		return fmt.Errorf("the step %q was begun, and its end was not recorded", name)
	}
	return nil
}

// finish releases everything that the run holds in this process.
func (r *Run) finish(en entry) {
	r.e.inFlight.end(r.f, en)
	r.cancel(nil)
}

// notKept says why the result of a settled run is not in the store; nil if it is, or
// there was none to keep.
func (r *Run) discardReason() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.discarded
}

// report tells the observer how the run ended, and makes the caller's error.
func (r *Run) report(ctx context.Context, kind observe.Kind, to store.State, err error) error {
	ev := observe.Event{Kind: kind, ID: r.rec.ID, Class: r.op.Class, State: to, Fence: r.rec.Fence,
		Attempt: r.rec.Attempt, Err: err}
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
	r.e.observe(ctx, ev)
	return wrapped
}
