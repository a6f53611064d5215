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

// handlerError is a handler's error with marks that say how to end the run.
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

// Retryable marks a handler's error that occurred before any effect. The claim is released. The
// caller's error says that the operation was not executed and may be retried. Retryable(nil) is
// nil.
func Retryable(err error) error { return marking(err, saysRetryable) }

// Permanent marks a handler's error that a retry cannot fix. The operation is stored as failed,
// with the error's text. A transaction is rolled back first. Permanent overrides Retryable and
// Repeatable. Permanent(nil) is nil.
func Permanent(err error) error { return marking(err, saysPermanent) }

// Repeatable marks a handler's error after which the operation may run again, whatever effect
// it has had. Running it twice must have one effect. The claim is released, also after
// Declare(MayHaveExecuted). If nothing happened, use Retryable, because only its callers get
// NotExecuted. Repeatable(nil) is nil.
func Repeatable(err error) error { return marking(err, saysRepeatable) }

// marked returns the marks of a handler's error. It ignores everything below an *Error, because
// that belongs to another operation that the handler called. If that operation had no effect,
// the handler may still have had one.
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

// failureOutcome returns the failed outcome of a handler's error. The handler may have set the
// outcome itself.
func (p *Policy) failureOutcome(out Outcome, err error) Outcome {
	if out.Failed {
		return out
	}
	if m, ok := err.(*handlerError); ok { //nolint:errorlint // the outermost
		err = m.error
	}
	return p.failure(err)
}

// Again sets how an operation runs again. An operation that is not a job runs with the next
// retry, and ignores After.
type Again struct {
	After     time.Duration // the delay, at most store.MaxDelay (365 days)
	Uncounted bool          // excludes the attempt from the limit, for example after a shutdown; see Lease.Counted and Status.Counted
	Failed    error         // if set, the operation does not run again; it is stored as failed with this error
	Forget    bool          // deletes the record, as Policy.ForgetReleased does, so that another request may use the key; not for jobs

	effect bool // the run may have had an effect, so its record must stay
}

// Do runs fn under the lease and ends the run. The first matching rule applies:
//
//  0. Under Policy.Outside, only rule 1 and this rule apply. If the service has not settled,
//     the Outcome of fn is stored if it has an adapter and fn returned no error.
//  1. A StepOnce is unresolved: the operation becomes unknown.
//  2. fn declared MayHaveExecuted: the operation becomes unknown. The same applies if fn
//     declared nothing and returned the error of its context, which has ended. It does not
//     apply if the error or the Item is Repeatable.
//  3. fn declared NotExecuted, or its error is Retryable or Repeatable, and the error is not
//     Permanent: the run is released. The function again sets how; it may be nil.
//  4. fn panics or calls runtime.Goexit: stored as failed, with store.ReasonPanicked. Then the
//     panic continues. An Outcome with that reason has the same effect, for adapters that
//     recover.
//  5. fn returns an error: stored as failed. The Outcome is stored if it is Failed, else the
//     error's text.
//  6. Otherwise, the Outcome is stored.
//
// Do returns the stored outcome. The error is an *Error of KindRetryable (released), of
// KindUnknown (the effect is unknown, see Declared), or one of Settle. Under Policy.Outside, it
// may also be KindInFlight. Then the service's transaction, or a later run that began after
// this lease expired, is still in progress. A retry returns its result.
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
		result = l.p.failureOutcome(result, err) // calls a method of the service's error, which may panic
	}
	returned = true
	return l.decide(ctx, result, err, again)
}

// decide ends a run: see Do.
func (l *Lease) decide(ctx context.Context, out Outcome, err error, again func(error) Again) (Outcome, error) {
	if l.settling() {
		return out, nil // by TxEngine.Finish in fn
	}
	if l.p.Outside && !l.hasOpenStep() {
		return l.outside(ctx, out, err, again)
	}
	marks := marked(err)
	retry, permanent := marks&saysRetryable != 0, marks&saysPermanent != 0
	repeat := marks&saysRepeatable != 0 || l.repeatable
	if err != nil && !permanent && !retry && l.Declared() == Executed && l.ofContext(err) {
		l.Declare(MayHaveExecuted, 0) // the end of the context does not tell whether fn had its effect
	}
	says, bad := l.Declared(), err != nil || out.Reason == store.ReasonPanicked
	switch {
	case l.hasOpenStep(), says == MayHaveExecuted && !repeat:
		l.Explain(observe.Why{Err: err})
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
		if a.Failed != ErrCancelled { //nolint:errorlint // as above
			l.Explain(observe.Why{Reason: observe.ReasonExhausted, Err: err})
		}
	}
	out = out.readBy(l.p)
	if err := l.Settle(ctx, out); err != nil {
		return out, err
	}
	return out, nil
}

// releaseWith releases the run and returns the caller's error.
func (l *Lease) releaseWith(ctx context.Context, err error, a Again, harmless bool) error {
	l.Explain(observe.Why{Err: err})
	a.After = min(max(a.After, 0), store.MaxDelay) // a value out of range must not keep the run from ending
	a.effect = !harmless || l.Declared() == MayHaveExecuted
	own, released := retryable(err), l.Release(ctx, a)
	if !harmless || KindOf(released) == KindFenced || l.Declared() == MayHaveExecuted {
		own.Execution = MayHaveExecuted // by this run, a later run, or a step that is still running
	}
	if released == nil {
		return own
	}
	return errors.Join(own, released)
}

// ofContext reports whether err comes from the end of the run's context.
func (r *Run) ofContext(err error) bool {
	cause := context.Cause(r.ctx)
	return cause != nil && (errors.Is(err, cause) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// withoutEffect adds ReasonNoEffect to the failure of a run that had no effect. An earlier
// attempt or a step may have had one, so it requires a first attempt without steps.
func (r *Run) withoutEffect(out Outcome) Outcome {
	if out.Failed && out.Reason == store.ReasonNone && r.rec.Attempt == 1 && !r.hasNotes() {
		out.Reason = store.ReasonNoEffect
	}
	return out
}

// hasOpenStep reports whether a StepOnce is unresolved.
func (r *Run) hasOpenStep() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.openSteps) > 0
}

// outsideTimeout is how long ending a claim waits for the service's transaction.
const outsideTimeout = time.Second

// checkOutside rejects Policy.Outside if the store cannot settle outside this process, or if
// the engine could not read the outcome.
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

// outside ends a run that a service settles. If the record has an outcome, it returns that.
// Otherwise it ends the claim, or stores out if the handler refused the operation without an
// error.
func (l *Lease) outside(ctx context.Context, out Outcome, cause error, again func(error) Again) (Outcome, error) {
	rec, err := l.e.read(ctx, l.rec.ID)
	if err == nil && l.hasOutcome(rec) {
		if err := l.startEnding(ctx); err != nil {
			return Outcome{}, err
		}
		l.finish(entry{rec: rec, shared: true})
		return l.settledOutside(ctx, rec)
	}
	refused := cause == nil && out.Adapter != store.AdapterEngine && out.Reason == store.ReasonNone // and no panic
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
	case KindFenced: // settled in the meantime, or another run has the record
		if rec, err = l.e.read(ctx, l.rec.ID); err == nil && l.hasOutcome(rec) {
			return l.settledOutside(ctx, rec)
		}
	}
	return Outcome{}, &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter, Cause: errors.Join(cause, err)}
}

// releaseOutside ends the claim of a run that a service settles. It fails while the service's
// transaction holds the record, so it tries once, for outsideTimeout. repeatLater tries again.
func (r *Run) releaseOutside(ctx context.Context) error {
	return r.e.retry(ctx, 1, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, outsideTimeout)
		defer cancel()
		return r.e.store.Release(ctx, r.rec.Claim(), r.p.Retention)
	})
}

// hasOutcome reports whether a record has the outcome of the operation. A later run may have
// stored it.
func (l *Lease) hasOutcome(rec store.Record) bool {
	return rec.State.Settled() && rec.Fingerprint == l.rec.Fingerprint
}

// settledOutside returns the outcome that a service has stored.
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
