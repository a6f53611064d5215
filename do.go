package stet

import (
	"context"
	"errors"

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
// stored as Policy.Values encodes it: as JSON by default.
//
// If fn returns an error, the operation is settled as failed and every retry gets an
// error of KindFailed with the same text: it may have executed before the error. fn says
// otherwise with FromContext(ctx).Declare, an error that is Retryable
// (an *Error of another operation is not) or Repeatable: see Lease.Do. A panic is settled
// like an error, and continues; retries are told that the operation may have executed.
//
// Replays get the value as it comes out of the codec: from JSON, unexported fields are
// zero. They get an error with the text of the first one, and of what Policy.Errors keeps.
// Where what stands is another adapter's, or of another codec, and is not a T, the error is of kind
// KindForeign: it was executed.
//
// Other errors are those of Begin and of Lease.Settle. With an error of it,
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
	var outErr error
	out, err := run.Do(ctx, nil, func(ctx context.Context) (out Outcome, err error) {
		if res.Value, err = fn(ctx); err != nil {
			outErr = &Error{Kind: KindFailed, Cause: err}
			return out, err
		}
		out, outErr = run.p.outcomeOf(res.Value)
		return out, nil
	})
	if err != nil {
		return res, err
	}
	return res, firstError(out, outErr)
}

// firstError is the error of an outcome as the first caller gets it: with the error that the
// function returned, or, with Policy.Errors, as retries get it.
func firstError(out Outcome, err error) error {
	switch own, _ := err.(*Error); { //nolint:errorlint // it is the caller's own
	case !out.Failed:
		return err
	case own == nil, out.policy != nil && out.policy.Errors != nil:
		return out.Decode(nil)
	default:
		own.Execution = out.execution()
		return own
	}
}

// retryable is the error of a run that ended without an effect.
func retryable(cause error) *Error {
	return &Error{Kind: KindRetryable, Execution: NotExecuted, Cause: cause}
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
