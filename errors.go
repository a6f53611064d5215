package stet

import (
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/store"
)

// Sentinels, for errors.Is. Every error of the engine wraps one of them in an
// *Error, which also answers "did it execute?".
var (
	// ErrInvalid: the operation or the configuration is not acceptable.
	ErrInvalid = store.ErrInvalid
	// ErrMismatch: the key was used before for another request.
	ErrMismatch = store.ErrMismatch
	// ErrInFlight: the operation is running right now.
	ErrInFlight = errors.New("stet: operation in flight")
	// ErrUnknown: whether the operation had its effect is not known.
	ErrUnknown = store.ErrUnknown
	// ErrExpired: the operation has ended and its result is no longer kept. It
	// does not run again; Error.Execution says whether it was executed.
	ErrExpired = errors.New("stet: result no longer kept")
	// ErrRetryable: the run ended without an effect; the same key may be
	// tried again.
	ErrRetryable = errors.New("stet: ended without effect")
	// ErrFailed: the operation was executed and its outcome is a failure,
	// which every retry gets.
	ErrFailed = errors.New("stet: operation failed")
	// ErrStore: the store could not be used.
	ErrStore = errors.New("stet: store unavailable")
	// ErrFenced: another claim or outcome stands; nothing was written.
	ErrFenced = store.ErrFenced
	// ErrLeaseLost is the cause with which a handler's context is cancelled
	// when its lease is lost.
	ErrLeaseLost = errors.New("stet: lease lost")
	// ErrRunTimeout is the cause with which a handler's context is cancelled
	// when it has used up Policy.RunTimeout.
	ErrRunTimeout = errors.New("stet: run took longer than its policy allows")
	// ErrDamaged: what is stored was damaged, or written by a newer version.
	// The operation does not run again; Error.Execution says whether it was
	// executed.
	ErrDamaged = store.ErrDamaged
	// ErrCancelled is the cause with which the context of an accepted
	// operation's run is cancelled when its cancellation was asked for.
	ErrCancelled = errors.New("stet: operation cancelled")
	// ErrForeign: the operation was executed, and its outcome is of another face,
	// which cannot be told here: an HTTP response that is no JSON, for one.
	ErrForeign = errors.New("stet: outcome of another kind of caller")
	// ErrClosed: the engine was closed.
	ErrClosed = errors.New("stet: engine closed")
)

// Execution answers "did it execute?".
type Execution uint8

const (
	// MayHaveExecuted: an effect may have happened, or is happening. The
	// zero value, because it is the safe assumption.
	MayHaveExecuted Execution = iota
	// NotExecuted: this call caused no effect, and none is known.
	NotExecuted
	// Executed: the effect happened.
	Executed
)

// String returns "may have executed", "not executed" or "executed".
func (x Execution) String() string {
	switch x {
	case NotExecuted:
		return "not executed"
	case Executed:
		return "executed"
	default:
		return "may have executed"
	}
}

// Error is the error of the engine.
type Error struct {
	Kind       error         // one of the sentinels
	Execution  Execution     // did the operation execute?
	RetryAfter time.Duration // when to ask again; 0 when nothing is known
	Cause      error         // what went wrong below, or nil
}

// Error implements error. It names no key.
func (e *Error) Error() string {
	if e.Cause == nil {
		return fmt.Sprintf("%v (%v)", e.Kind, e.Execution)
	}
	return fmt.Sprintf("%v (%v): %v", e.Kind, e.Execution, e.Cause)
}

// Unwrap gives errors.Is and errors.As the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// ExecutionOf answers "did it execute?" for any error that Begin, Do and the
// like returned; for an error that is not stet's, MayHaveExecuted.
func ExecutionOf(err error) Execution {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Execution
	}
	return MayHaveExecuted
}

// storeFailed is the caller's error for a store call that failed: where the record
// is damaged, what became of its operation cannot be told; nor if it may yet be lost,
// which the store says by ErrUnknown.
func storeFailed(x Execution, err error) *Error {
	switch {
	case errors.Is(err, ErrDamaged):
		return damaged(err)
	case errors.Is(err, ErrUnknown):
		return &Error{Kind: ErrUnknown, Execution: MayHaveExecuted, RetryAfter: retryAfter, Cause: err}
	}
	return &Error{Kind: ErrStore, Execution: x, RetryAfter: retryAfter, Cause: err}
}

// damaged is the caller's error for what is stored and cannot be read.
func damaged(err error) *Error {
	return &Error{Kind: ErrDamaged, Execution: MayHaveExecuted, Cause: err}
}

func invalid(format string, args ...any) *Error {
	return &Error{Kind: ErrInvalid, Execution: NotExecuted, Cause: fmt.Errorf(format, args...)}
}
