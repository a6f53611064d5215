package stet

import (
	"context"
	"errors"

	"github.com/stet-go/stet/store"
)

// Result is the result of Do and DoTx.
type Result[T any] struct {
	Value    T
	Replayed bool // Value comes from an earlier run
	Fence    int64
	Attempt  int
}

// Do runs fn at most once for op. Every retry gets the same value. The value is stored as
// Policy.Values encodes it, by default as JSON.
//
// If fn returns an error, the operation is stored as failed. Every retry then gets an error of
// KindFailed with the same text, because fn may have had its effect before the error. fn can
// state otherwise with FromContext(ctx).Declare, or with an error that is Retryable or
// Repeatable; see Lease.Do. An *Error of another operation is not Retryable. A panic is stored
// as a failure, and then the panic continues. Retries get an error that says that the operation
// may have executed.
//
// A replay returns the decoded value. With JSON, unexported fields are zero. A replayed error
// has the text of the first error, and the values that Policy.Errors stored. If another adapter
// or codec stored the outcome and it cannot be converted to a T, the error is of KindForeign.
// The operation was executed.
//
// Other errors are those of Begin and Lease.Settle. If storing the outcome fails, fn has
// already run. Result.Value then has fn's value. Use it only for logs, because no retry gets
// it.
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

// firstError returns the error of an outcome for the first caller. It has fn's own error, or,
// with Policy.Errors, the error that retries get.
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

// retryable returns the error of a run that ended without an effect.
func retryable(cause error) *Error {
	return &Error{Kind: KindRetryable, Execution: NotExecuted, Cause: cause}
}

// decode is Outcome.Decode for a replay.
func (r *Run) decode(v any) error {
	err := r.outcome.Decode(v)
	if own, ok := errors.AsType[*Error](err); ok && r.rec.Attempt == 0 { // cancelled before the first attempt
		own.Execution = NotExecuted
	}
	return err
}

// executed returns the Execution of a settled record without a readable result. A failed run
// may have had its effect before it failed.
func executed(rec store.Record) Execution {
	switch {
	case rec.Attempt == 0: // a job that was cancelled before its first attempt
		return NotExecuted
	case rec.State == store.Completed:
		return Executed
	default:
		return MayHaveExecuted
	}
}
