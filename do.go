package stet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/stet-go/stet/internal/fault"
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
// an error and goes on.
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
		return res, decodeOutcome(run.Outcome(), &res.Value)
	}
	returned := false
	defer func() {
		switch { // where fn panicked, or called runtime.Goexit
		case returned:
		case run.SaysOutcomeUnknown():
			_ = run.Park(ctx)
		default:
			_ = run.Settle(ctx, failure(errors.New("panic in the operation")))
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
		return res, errors.Join(retryable(err), run.Release(ctx))
	}
	out, outErr := encodeOutcome(res.Value, err) // calls methods of T and of err, which may panic
	returned = true
	if err := run.Settle(ctx, out); err != nil {
		return res, err
	}
	return res, outErr
}

// retryable is the error of a run that ended without an effect.
func retryable(cause error) error {
	return &Error{Kind: ErrRetryable, Execution: NotExecuted, Cause: cause}
}

func failure(err error) Outcome {
	text, _ := json.Marshal(err.Error()) // a string never fails
	return Outcome{State: Failed, Result: text}
}

// encodeOutcome makes the outcome of what fn returned, and the error that its
// caller gets for it.
func encodeOutcome[T any](v T, err error) (Outcome, error) {
	if err != nil {
		return failure(err), &Error{Kind: ErrFailed, Execution: Executed, Cause: err}
	}
	b, err := json.Marshal(v)
	if err != nil {
		// The effect has happened; only its result cannot be kept.
		err = &Error{Kind: ErrExpired, Execution: Executed, Cause: fmt.Errorf("the result is not JSON: %w", err)}
		return Outcome{State: Completed, Gone: true}, err
	}
	return Outcome{State: Completed, Result: b}, nil
}

// decodeOutcome undoes encodeOutcome.
func decodeOutcome(out Outcome, v any) error {
	if out.State == Completed {
		if err := json.Unmarshal(out.Result, v); err != nil {
			return &Error{Kind: ErrDamaged, Execution: Executed, Cause: err}
		}
		return nil
	}
	if len(out.Result) == 0 { // StaleFail
		return &Error{Kind: ErrFailed, Execution: MayHaveExecuted, Cause: ErrRunTimeout}
	}
	var text string
	if err := json.Unmarshal(out.Result, &text); err != nil {
		return &Error{Kind: ErrDamaged, Execution: Executed, Cause: err}
	}
	return &Error{Kind: ErrFailed, Execution: Executed, Cause: errors.New(text)}
}
