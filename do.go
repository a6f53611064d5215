package stet

import (
	"context"
	"errors"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/store"
)

// Result is what Do and DoTx return.
type Result[T any] struct {
	Value    T
	Replayed bool // the value is that of an earlier run
	Fence    int64
	Attempt  int
}

// Do runs fn at most once for op and gives every retry the same value, which is
// stored as JSON.
//
// If fn returns an error, the operation is settled as failed and every retry
// gets an ErrFailed with the same text: an effect may have happened before the
// error. Where it is known that none did, fn calls FromContext(ctx).NothingHappened,
// or returns an error that wraps ErrRetryable itself, not an *Error of another
// operation: then the claim is released, the error is of kind ErrRetryable, and
// a retry runs fn again. Where nobody can know, it calls OutcomeUnknown: the
// record is parked, and the error is of kind ErrUnknown. A panic is settled like
// an error, unless fn has said that nothing happened, and goes on; retries are told
// that the operation may have executed.
//
// Replays get the value as it comes out of JSON: unexported fields are zero.
//
// Other errors are those of Begin and of Run.Settle. With an error of Settle,
// fn has run; Result.Value holds what it returned, for logs only: do not act on
// it, because no retry will see it.
func Do[T any](ctx context.Context, e *Engine, op Op, fn func(context.Context) (T, error)) (Result[T], error) {
	var res Result[T]
	run, err := e.Begin(ctx, op)
	if err != nil {
		return res, err
	}
	res.Fence, res.Attempt = run.Fence(), run.Attempt()
	if run.Replayed() {
		res.Replayed = true
		return res, run.decode(&res.Value)
	}
	returned := false
	defer func() {
		switch { // where fn panicked, or called runtime.Goexit
		case returned:
		case run.SaysOutcomeUnknown():
			_ = run.Park(ctx)
		case run.SaysNothingHappened():
			_ = run.Release(ctx)
		default:
			_ = run.Settle(ctx, Outcome{Failed: true, Reason: store.ReasonPanicked, Face: store.FaceGo})
		}
	}()
	fault.At(fault.HandlerBefore)
	res.Value, err = fn(run.Context())
	fault.At(fault.HandlerAfter)
	// An *Error is of another operation that fn called: that it ended without
	// an effect says nothing of what fn did itself.
	_, theirs := errors.AsType[*Error](err)
	if run.SaysOutcomeUnknown() {
		returned = true
		return res, &Error{Kind: ErrUnknown, Execution: MayHaveExecuted, Cause: errors.Join(err, run.Park(ctx))}
	}
	if run.SaysNothingHappened() || !theirs && errors.Is(err, ErrRetryable) {
		returned = true
		own, released := retryable(err), run.Release(ctx)
		if errors.Is(released, ErrFenced) || run.SaysOutcomeUnknown() {
			own.Execution = MayHaveExecuted // by another run of the operation, or a step that it left behind
		}
		return res, errors.Join(own, released)
	}
	out, outErr := OutcomeOf(res.Value, err) // calls methods of T and of err, which may panic
	returned = true
	if err := run.Settle(ctx, out); err != nil {
		return res, err
	}
	return res, outErr
}

// retryable is the error of a run that ended without an effect.
func retryable(cause error) *Error {
	return &Error{Kind: ErrRetryable, Execution: NotExecuted, Cause: cause}
}

// decode is Outcome.Decode for a replay.
func (r *Run) decode(v any) error {
	err := r.outcome.Decode(v)
	if own, ok := errors.AsType[*Error](err); ok && r.rec.Attempt == 0 { // cancelled before any
		own.Execution = NotExecuted
	}
	return err
}

// executed answers "did it execute?" for a record that stands, and whose result
// is not there. What failed had an effect, perhaps, before it did.
func executed(rec store.Record) Execution {
	switch {
	case rec.Attempt == 0: // accepted, and cancelled
		return NotExecuted
	case rec.State == store.Completed:
		return Executed
	default:
		return MayHaveExecuted
	}
}
