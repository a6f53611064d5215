package stet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// Kind says what an *Error is about. See KindOf.
type Kind uint8

const (
	// KindInvalid: the operation or the configuration is not acceptable.
	KindInvalid Kind = 1 + iota
	// KindMismatch: the key was used before for another request.
	KindMismatch
	// KindInFlight: the operation is running right now, or waits for a worker.
	KindInFlight
	// KindUnknown: whether the operation had its effect is not known.
	KindUnknown
	// KindRetryable: the run ended without an outcome; the same key may be tried again.
	KindRetryable
	// KindFailed: the operation failed, and every retry gets the same failure.
	// Error.Execution says whether it had an effect.
	KindFailed
	// KindExpired: the operation has ended and its result is no longer kept. It
	// does not run again; Error.Execution says whether it was executed.
	KindExpired
	// KindDamaged: what is stored was damaged, or written by a newer version.
	// The operation does not run again; Error.Execution says whether it was
	// executed.
	KindDamaged
	// KindForeign: the operation was executed, and its outcome is of another adapter,
	// which cannot be told here: an HTTP response that is no JSON, for one.
	KindForeign
	// KindFenced: another claim or outcome stands; nothing was written.
	KindFenced
	// KindStore: the store could not be used.
	KindStore
	// KindClosed: the engine was closed.
	KindClosed
)

var kindTexts = [...]string{
	KindInvalid:   store.ErrInvalid.Error(),
	KindMismatch:  store.ErrMismatch.Error(),
	KindInFlight:  "stet: operation in flight",
	KindUnknown:   store.ErrUnknown.Error(),
	KindRetryable: "stet: ended without effect",
	KindFailed:    "stet: operation failed",
	KindExpired:   "stet: result no longer kept",
	KindDamaged:   store.ErrDamaged.Error(),
	KindForeign:   "stet: outcome of another kind of caller",
	KindFenced:    store.ErrFenced.Error(),
	KindStore:     "stet: store unavailable",
	KindClosed:    "stet: engine closed",
}

// String returns what the kind says, as in "stet: operation in flight".
func (k Kind) String() string {
	if k > 0 && int(k) < len(kindTexts) {
		return kindTexts[k]
	}
	return "stet: no kind"
}

// Causes with which the context of a run is cancelled, for context.Cause. They are
// not what the engine returns: for that see KindOf.
var (
	// ErrLeaseLost: the lease was lost.
	ErrLeaseLost = errors.New("stet: lease lost")
	// ErrRunTimeout: the run has used up Policy.RunTimeout.
	ErrRunTimeout = errors.New("stet: run took longer than its policy allows")
	// ErrCancelled: the cancellation of the accepted operation was asked for.
	ErrCancelled = errors.New("stet: operation cancelled")
	// ErrClosed: the engine was closed.
	ErrClosed = errors.New("stet: engine closed")
)

// Execution answers "did it execute?", and so "may it be done again under a new key?".
type Execution uint8

const (
	// MayHaveExecuted: an effect may have happened, or is happening. Find out before you
	// use a new key. The zero value, because it is the safe assumption.
	MayHaveExecuted Execution = iota
	// NotExecuted: this call had no effect, or its effect was rolled back. Unless an
	// earlier call of the operation returned something else, a new key does not do it
	// a second time.
	NotExecuted
	// Executed: the operation ran to an outcome of its own, a value or a response, which
	// is stored and says what happened. A new key would do it a second time.
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
	Kind       Kind          // what it is about
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

// Unwrap returns the cause.
func (e *Error) Unwrap() error {
	if e.Cause == nil && e.Kind == KindClosed {
		return ErrClosed
	}
	return e.Cause
}

// KindOf returns the kind of an error that a function of this package returned. Of
// several *Errors inside one another, the outermost counts: those below it may be of
// another operation, which the handler called. An error of a store has a kind too, by
// the sentinel of package store that it wraps or is. Any other error has none, which is 0.
func KindOf(err error) Kind {
	switch e := err.(type) { //nolint:errorlint // it walks the tree itself, to stop at the outermost
	case *Error:
		return e.Kind
	case interface{ Unwrap() error }:
		return KindOf(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if k := KindOf(err); k != 0 {
				return k
			}
		}
		return 0
	}
	for _, s := range sentinels {
		if errors.Is(err, s.of) {
			return s.kind
		}
	}
	return 0
}

// sentinels are the errors of package store that have a kind.
var sentinels = [...]struct {
	of   error
	kind Kind
}{
	{store.ErrInvalid, KindInvalid},
	{store.ErrMismatch, KindMismatch},
	{store.ErrUnknown, KindUnknown},
	{store.ErrDamaged, KindDamaged},
	{store.ErrFenced, KindFenced},
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
	aborted, ok := errors.AsType[*store.AbortedError](err)
	switch {
	case ok:
		return &Error{Kind: KindRetryable, Execution: x, Cause: aborted}
	case errors.Is(err, store.ErrDamaged):
		return damaged(err)
	case errors.Is(err, store.ErrUnknown):
		return &Error{Kind: KindUnknown, Execution: MayHaveExecuted, RetryAfter: retryAfter, Cause: err}
	}
	return &Error{Kind: KindStore, Execution: x, RetryAfter: retryAfter, Cause: err}
}

// isAborted reports whether a transaction failed because of what its function did.
func isAborted(err error) bool {
	_, ok := errors.AsType[*store.AbortedError](err)
	return ok
}

// damaged is the caller's error for what is stored and cannot be read.
func damaged(err error) *Error {
	return &Error{Kind: KindDamaged, Execution: MayHaveExecuted, Cause: err}
}

func invalid(format string, args ...any) *Error {
	return &Error{Kind: KindInvalid, Execution: NotExecuted, Cause: fmt.Errorf(format, args...)}
}

// logEvery is how often Options.ErrorLog gets a line of one kind.
const logEvery = 10 * time.Second

// errorLog writes what an operator must know to a logger. The zero value is ready for use.
type errorLog struct {
	mu    sync.Mutex
	kinds [len(logLines)]struct {
		last    time.Time // of the last line
		skipped int       // events since then
	}
}

// due reports whether a line may be written, and how many were not since the last one.
func (l *errorLog) due(kind observe.Kind) (skipped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := &l.kinds[kind]
	if !k.last.IsZero() && time.Since(k.last) < logEvery {
		k.skipped++
		return 0, false
	}
	skipped, k.skipped, k.last = k.skipped, 0, time.Now()
	return skipped, true
}

// logLines are the lines, by kind of event; "" for none.
var logLines = [...]string{
	observe.MarkedUnknown: "stet: the outcome of an operation is unknown until a verifier or an operator resolves it",
	observe.LeaseLost:     "stet: a run lost its lease",
	observe.Fenced:        "stet: a write of a run that is not the newest was refused",
	observe.StoreFailed:   "stet: a call of the store failed",
	observe.Swept:         "stet: runs ended without an outcome; their operations are unknown until a verifier or an operator resolves them",
	observe.Unsent:        "stet: an emitted message was not sent; it is tried again",
	observe.TimedOut:      "stet: a run took longer than its Policy.RunTimeout",
	observe.CutOff:        "stet: a run had not ended when the engine was closed",
	observe.Aborted:       "stet: a transaction was rolled back because of what its function did; nothing was executed",
}

const sweepFailed = "stet: a sweep failed; it is tried again"

// write logs an event, unless a line of its kind was written within logEvery.
func (l *errorLog) write(ctx context.Context, to *slog.Logger, ev observe.Event) {
	if int(ev.Kind) >= len(logLines) || logLines[ev.Kind] == "" || ev.Kind == observe.Swept && ev.Err == nil && ev.Swept.MarkedUnknown == 0 {
		return
	}
	skipped, ok := l.due(ev.Kind)
	if !ok {
		return
	}
	level, line := slog.LevelWarn, logLines[ev.Kind]
	var list []slog.Attr
	switch ev.Kind {
	case observe.StoreFailed, observe.Aborted, observe.Unsent:
		level = slog.LevelError
	case observe.Swept:
		if list = append(list, slog.Int("operations", ev.Swept.MarkedUnknown)); ev.Err != nil {
			line = sweepFailed
		}
	}
	if ev.ID != (store.ID{}) {
		list = append(list, slog.String("id", ev.ID.String()))
	}
	if ev.Class != "" {
		list = append(list, slog.String("class", ev.Class))
	}
	if skipped > 0 {
		list = append(list, slog.Int("not_logged", skipped))
	}
	if ev.Err != nil {
		list = append(list, slog.Any("error", ev.Err))
	}
	to.LogAttrs(ctx, level, line, list...)
}
