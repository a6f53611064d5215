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

// Kind is the kind of an *Error. See KindOf.
type Kind uint8

const (
	// KindInvalid: the operation or the configuration is invalid.
	KindInvalid Kind = 1 + iota
	// KindMismatch: the key was used for another request.
	KindMismatch
	// KindInFlight: the operation is running, or waits for a worker.
	KindInFlight
	// KindUnknown: the operation may have had its effect, and no outcome is stored.
	KindUnknown
	// KindRetryable: the run ended without an outcome. Retry with the same key.
	KindRetryable
	// KindFailed: the operation failed, and every retry gets the same failure. Error.Execution
	// says whether it had an effect.
	KindFailed
	// KindExpired: the operation has ended, and its result was discarded. It does not run
	// again. Error.Execution says whether it was executed.
	KindExpired
	// KindDamaged: the stored record is damaged, or a newer version wrote it. The operation
	// does not run again. Error.Execution says whether it was executed.
	KindDamaged
	// KindForeign: the operation was executed. Its outcome was stored by another adapter and
	// cannot be converted to this type, for example an HTTP response that is not JSON.
	KindForeign
	// KindFenced: the record has a newer claim, or already an outcome. Nothing was written.
	KindFenced
	// KindStore: the store failed.
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

// String returns the text of the kind, such as "stet: operation in flight".
func (k Kind) String() string {
	if k > 0 && int(k) < len(kindTexts) {
		return kindTexts[k]
	}
	return "stet: no kind"
}

// Causes of the end of a run's context, for context.Cause. The engine does not return them; for
// its errors see KindOf.
var (
	// ErrLeaseLost: the lease was lost.
	ErrLeaseLost = errors.New("stet: lease lost")
	// ErrRunTimeout: the run reached Policy.RunTimeout.
	ErrRunTimeout = errors.New("stet: run took longer than its policy allows")
	// ErrCancelled: the cancellation of the job was requested.
	ErrCancelled = errors.New("stet: operation cancelled")
	// ErrClosed: the engine was closed.
	ErrClosed = errors.New("stet: engine closed")
)

// Execution answers "did it execute?", and therefore "may a client use a new key?".
type Execution uint8

const (
	// MayHaveExecuted: an effect may have happened, or is happening. Find out before you use a
	// new key. It is the zero value because it is the safe assumption.
	MayHaveExecuted Execution = iota
	// NotExecuted: this call had no effect, or its effect was rolled back. A new key does not
	// repeat the effect, unless an earlier call of the operation returned something else.
	NotExecuted
	// Executed: the operation ran to its own outcome, a value or a response, which is stored. A
	// new key would execute it a second time.
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
	Kind       Kind          // why it failed
	Execution  Execution     // did the operation execute?
	RetryAfter time.Duration // when to retry; 0 if unknown
	Cause      error         // the underlying error, or nil
}

// Error returns the text of the error. It contains no key.
func (e *Error) Error() string {
	if e.Cause == nil {
		return fmt.Sprintf("%v (%v)", e.Kind, e.Execution)
	}
	return fmt.Sprintf("%v (%v): %v", e.Kind, e.Execution, e.Cause)
}

// Unwrap returns the cause. Without a cause, it returns ErrClosed for KindClosed.
func (e *Error) Unwrap() error {
	if e.Cause == nil && e.Kind == KindClosed {
		return ErrClosed
	}
	return e.Cause
}

// KindOf returns the kind of an error of this package. If several *Errors wrap one another, the
// outermost counts, because the others may belong to operations that the handler called. An
// error of package store has the kind of the sentinel that it is or wraps. Any other error has
// the kind 0.
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

// ExecutionOf answers "did it execute?" for an error of Begin, Do and the other calls of this
// package. For any other error, it returns MayHaveExecuted.
func ExecutionOf(err error) Execution {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Execution
	}
	return MayHaveExecuted
}

// storeFailed returns the caller's error for a failed store call. For a damaged record and for
// store.ErrUnknown, the operation may have executed, whatever x is.
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

// isAborted reports whether a transaction was rolled back because of its function.
func isAborted(err error) bool {
	_, ok := errors.AsType[*store.AbortedError](err)
	return ok
}

// damaged returns the caller's error for a stored value that cannot be read.
func damaged(err error) *Error {
	return &Error{Kind: KindDamaged, Execution: MayHaveExecuted, Cause: err}
}

func invalid(format string, args ...any) *Error {
	return &Error{Kind: KindInvalid, Execution: NotExecuted, Cause: fmt.Errorf(format, args...)}
}

// logEvery is the least time between two lines of one kind in Options.ErrorLog.
const logEvery = 10 * time.Second

// errorLog writes the events that an operator must see to a logger. The zero value is ready for
// use.
type errorLog struct {
	mu    sync.Mutex
	kinds [len(logLines)]struct {
		last    time.Time // when the last line was written
		skipped int       // events since then
	}
}

// due reports whether a line may be written now, and how many lines were skipped before it.
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

// logLines are the log lines by kind of event; "" for no line.
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

// write logs an event. It writes at most one line of a kind within logEvery.
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
	list = append(list, ev.Names()...)
	if ev.Why != nil && ev.Why.Reason != "" {
		list = append(list, slog.String("reason", string(ev.Why.Reason)))
		if ev.Why.Status > 0 {
			list = append(list, slog.Int("status", ev.Why.Status))
		}
	}
	if skipped > 0 {
		list = append(list, slog.Int("not_logged", skipped))
	}
	if ev.Err != nil {
		list = append(list, slog.Any("error", ev.Err))
	}
	to.LogAttrs(ctx, level, line, list...)
}
