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

// mark is an error of a handler that says what is to become of the run.
type handlerError struct {
	error
	says marks
}

type marks uint8

const (
	saysRetryable marks = 1 << iota
	saysRepeatable
	saysPermanent
)

func (m *handlerError) Unwrap() error { return m.error }

// Marks is for internal/again.
func (m *handlerError) Marks() (retryable, repeatable, permanent bool) {
	return m.says&saysRetryable != 0, m.says&saysRepeatable != 0, m.says&saysPermanent != 0
}

func marking(err error, says marks) error {
	if err == nil {
		return nil
	}
	return &handlerError{err, says}
}

// Retryable marks an error of a handler as one before which nothing happened: the
// claim is released, and callers are told that it was not executed and may be tried
// again. Retryable(nil) is nil.
func Retryable(err error) error { return marking(err, saysRetryable) }

// Permanent marks an error of a handler as one that no repetition will cure: the
// operation is settled as failed, with the error's text, and a transaction is rolled
// back first. It is stronger than Retryable and Repeatable. Permanent(nil) is nil.
func Permanent(err error) error { return marking(err, saysPermanent) }

// Repeatable marks an error of a handler that may run again whatever it has done, as
// doing it twice has one effect: the claim is released, also after
// Declare(MayHaveExecuted). Where nothing happened, use Retryable instead: callers
// are told so. Repeatable(nil) is nil.
func Repeatable(err error) error { return marking(err, saysRepeatable) }

// marked reports how a handler has marked its error. It looks at nothing below an
// *Error, which is of another operation that the handler called: that it ended without
// an effect says nothing of what the handler did itself.
func marked(err error) (says marks) {
	switch e := err.(type) { //nolint:errorlint // it walks the tree itself, to stop at an *Error
	case *Error:
	case *handlerError:
		return e.says | marked(e.error)
	case interface{ Unwrap() error }:
		return marked(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			says |= marked(err)
		}
	}
	return says
}

// worded is the outcome of an error of a handler, which may have worded it itself.
func (p *Policy) failureOutcome(out Outcome, err error) Outcome {
	if out.Failed {
		return out
	}
	if m, ok := err.(*handlerError); ok { //nolint:errorlint // the outermost
		err = m.error
	}
	return p.failure(err)
}

// Again says how an operation is to be run again. One that was not accepted runs with
// the next retry: After means nothing there.
type Again struct {
	After     time.Duration // it waits that long, at most store.MaxDelay
	Uncounted bool          // the attempt was interrupted, by a shutdown for one, and does not count; see Lease.Counted and Status.Counted
	Failed    error         // if set, it is not repeated, but settled as failed with this error
	Forget    bool          // the release leaves no record, as with Policy.ForgetReleased, so that another request may use the key; not of accepted operations

	effect bool // the run may have had one, so that it is not forgotten
}

// Do runs fn under the lease, and ends the run, in this order:
//
//  0. Under Policy.Outside nothing of this counts but 1: see there. What the service has
//     not settled is settled with the Outcome of fn, if that has an adapter and no error.
//  1. A StepOnce is in doubt: the run is marked unknown.
//  2. fn has declared MayHaveExecuted, or declared nothing and its error is that of its
//     context, which has ended, and neither the error nor the Item is Repeatable: marked unknown.
//  3. fn has declared NotExecuted, or its error is Retryable or Repeatable, and
//     it is not Permanent: released, as again says, which may be nil.
//  4. fn panics, or calls runtime.Goexit: settled as failed, by store.ReasonPanicked. It
//     continues. So is an Outcome with that reason, for adapters that recover.
//  5. fn returns an error: settled as failed, with the Outcome if that is Failed, else
//     with the error's text.
//  6. Otherwise the Outcome is settled.
//
// Do returns the outcome that was settled. The error is an *Error of kind KindRetryable
// (released), KindUnknown (marked unknown; Declared says so), or one of Settle. Under
// Policy.Outside it is also KindInFlight: the service's transaction, or another run that
// came after this one's lease had run out, continues, and a retry learns what becomes of it.
func (l *Lease) Do(ctx context.Context, again func(error) Again, fn func(context.Context) (Outcome, error)) (Outcome, error) {
	returned := false
	defer func() {
		if !returned {
			_, _ = l.decide(ctx, Outcome{Failed: true, Reason: store.ReasonPanicked, Adapter: store.AdapterGo}, nil, again)
		}
	}()
	fault.At(fault.HandlerBefore)
	result, err := fn(l.ctx)
	fault.At(fault.HandlerAfter)
	if err != nil {
		result = l.p.failureOutcome(result, err) // a method of the service, which may panic
	}
	returned = true
	return l.decide(ctx, result, err, again)
}

// decide ends a run: see Do.
func (l *Lease) decide(ctx context.Context, out Outcome, err error, again func(error) Again) (Outcome, error) {
	if l.settling() {
		return out, nil // by TxEngine.Finish, in fn
	}
	if l.p.Outside && !l.hasOpenStep() {
		return l.outside(ctx, out, err, again)
	}
	marks := marked(err)
	retry, permanent := marks&saysRetryable != 0, marks&saysPermanent != 0
	repeat := marks&saysRepeatable != 0 || l.repeatable
	if err != nil && !permanent && !retry && l.Declared() == Executed && l.ofContext(err) {
		l.Declare(MayHaveExecuted, 0) // it says nothing of the effect
	}
	says, bad := l.Declared(), err != nil || out.Reason == store.ReasonPanicked
	switch {
	case l.hasOpenStep(), says == MayHaveExecuted && !repeat:
		return Outcome{}, &Error{Kind: KindUnknown, Execution: MayHaveExecuted, Cause: errors.Join(err, l.MarkUnknown(ctx))}
	case permanent && marks&saysRepeatable == 0 && says != MayHaveExecuted && (says == NotExecuted || retry):
		out = l.withoutEffect(out)
	case permanent:
	case says == NotExecuted, retry, repeat && (bad || says == MayHaveExecuted):
		var a Again
		if again != nil {
			a = again(err)
		}
		if a.Failed == nil {
			return Outcome{}, l.releaseWith(ctx, err, a, says == NotExecuted || retry)
		}
		if !out.Failed || a.Failed == ErrCancelled { //nolint:errorlint // what wraps it has words of its own
			out = l.p.failure(a.Failed)
		}
	}
	out = out.readBy(l.p)
	if err := l.Settle(ctx, out); err != nil {
		return out, err
	}
	return out, nil
}

// giveUp releases the run, and returns the caller's error.
func (l *Lease) releaseWith(ctx context.Context, err error, a Again, harmless bool) error {
	a.After = min(max(a.After, 0), store.MaxDelay) // a run that has returned has to end
	a.effect = !harmless || l.Declared() == MayHaveExecuted
	own, released := retryable(err), l.Release(ctx, a)
	if !harmless || KindOf(released) == KindFenced || l.Declared() == MayHaveExecuted {
		own.Execution = MayHaveExecuted // by this run, by another one, or by a step that was left behind
	}
	if released == nil {
		return own
	}
	return errors.Join(own, released)
}

// ofContext reports whether an error is that of the run's context, which has ended.
func (r *Run) ofContext(err error) bool {
	cause := context.Cause(r.ctx)
	return cause != nil && (errors.Is(err, cause) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// withoutEffect returns the failure of a run that had no effect. An earlier attempt or a step
// may have had one.
func (r *Run) withoutEffect(out Outcome) Outcome {
	if out.Failed && out.Reason == store.ReasonNone && r.rec.Attempt == 1 && !r.hasNotes() {
		out.Reason = store.ReasonNoEffect
	}
	return out
}

// doubtful reports whether a StepOnce is in doubt.
func (r *Run) hasOpenStep() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.openSteps) > 0
}

// fencePatience is how long the end of a claim waits for the service's transaction.
const outsideTimeout = time.Second

// outside refuses policies that have runs settled outside of this process where that
// cannot be, or where what is settled could not be read.
func (ps policies) checkOutside(s store.Store, enc Encryption) error {
	for class, p := range ps {
		if !p.Outside {
			continue
		}
		if _, ok := store.As[store.OutsideStore](s); !ok {
			return invalid("class %q has Policy.Outside, and services cannot settle in transactions of their own in a %T; postgres is a store where they can", class, s)
		}
		if len(enc.Keys) > 0 && !enc.AcceptPlain {
			return invalid("class %q has Policy.Outside, and the engine encrypts: what a service settles is not encrypted, and would not be replayed; do not encrypt, or set Encryption.AcceptPlain", class)
		}
	}
	return nil
}

// outside ends a run that a service settles: by the outcome that stands or, if there is
// none, by ending the claim. Then out, if it is one and there is no error, is what the
// service has refused the operation with.
func (l *Lease) outside(ctx context.Context, out Outcome, cause error, again func(error) Again) (Outcome, error) {
	rec, err := l.e.read(ctx, l.rec.ID)
	if err == nil && l.hasOutcome(rec) {
		if err := l.startEnding(ctx); err != nil {
			return Outcome{}, err
		}
		l.finish(entry{rec: rec, shared: true})
		return l.settledOutside(ctx, rec)
	}
	refused := cause == nil && out.Adapter != store.AdapterEngine && out.Reason == store.ReasonNone // and not panicked
	var a Again
	if again != nil && !refused {
		a = again(cause)
	}
	if a.Failed != nil && !out.Failed || a.Failed == ErrCancelled { //nolint:errorlint // what wraps it has words of its own
		out = l.p.failure(a.Failed)
	}
	if refused || a.Failed != nil {
		if err = l.Settle(ctx, out); err == nil {
			return out, nil
		}
	} else if err = l.Release(ctx, a); err == nil {
		return Outcome{}, retryable(cause)
	}
	switch KindOf(err) {
	case KindInvalid, KindDamaged:
		return Outcome{}, err
	case KindFenced: // settled since, or another run has come
		if rec, err = l.e.read(ctx, l.rec.ID); err == nil && l.hasOutcome(rec) {
			return l.settledOutside(ctx, rec)
		}
	}
	return Outcome{}, &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter, Cause: errors.Join(cause, err)}
}

// fence ends the claim of a run that a service settles. While the service's transaction has
// settled and not ended it cannot be done: the caller is told so soon. See insist.
func (r *Run) releaseOutside(ctx context.Context) error {
	return r.e.retry(ctx, 1, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, outsideTimeout)
		defer cancel()
		return r.e.store.Release(ctx, r.rec.Claim(), r.p.Retention)
	})
}

// stands reports whether a record has the outcome of the operation. It may be that of a
// run after this one.
func (l *Lease) hasOutcome(rec store.Record) bool {
	return rec.State.Settled() && rec.Fingerprint == l.rec.Fingerprint
}

// settledOutside returns the outcome that a service has settled.
func (l *Lease) settledOutside(ctx context.Context, rec store.Record) (Outcome, error) {
	out, err := l.e.sealer.open(rec)
	if rec.Gone {
		out, err = Outcome{Gone: true, Failed: rec.State == store.Failed}, nil
	}
	if err != nil {
		err = damaged(fmt.Errorf("what the service has settled cannot be read: %w", err))
	}
	l.e.observe(ctx, observe.Event{Kind: observe.Settled, ID: rec.ID, Class: l.op.Class, State: rec.State, Fence: rec.Fence, Attempt: rec.Attempt, Err: err})
	return out.readBy(l.p), err
}
