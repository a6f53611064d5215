package observe

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/stet-go/stet/store"
)

// Reason says why an operation is in trouble, fit for a metric's label.
type Reason string

// The reasons.
const (
	ReasonTimedOut   Reason = "timed_out"          // a time limit was reached
	ReasonReset      Reason = "connection_reset"   // a connection ended before the answer
	ReasonRefused    Reason = "connection_refused" // nothing was sent
	ReasonGone       Reason = "process_gone"       // the lease expired, and its process stored nothing
	ReasonDeclared   Reason = "declared"           // the handler, or the service, said so
	ReasonUnreadable Reason = "answer_unreadable"
	ReasonExhausted  Reason = "attempts_exhausted"
	ReasonPanicked   Reason = "panicked"
	ReasonCancelled  Reason = "cancelled"
	ReasonLeaseLost  Reason = "lease_lost"
	ReasonShutDown   Reason = "shut_down" // the process ended the run
	ReasonFenced     Reason = "fenced"    // a newer claim, or an outcome, was stored first
	ReasonStore      Reason = "store_failed"
	ReasonVerifier   Reason = "verifier" // the answer of Policy.Verify
	ReasonPolicy     Reason = "policy"   // Policy.Stale
	ReasonOperator   Reason = "operator"
)

// Why is the cause of an event. It has no key and no body. Err may quote anything that the
// handler, the service or the store put into an error.
type Why struct {
	Reason Reason
	Status int         // that the service answered, as in HTTP; 0 for none
	Err    error       // of the handler or the verifier; nil if there is none
	By     string      // the operator
	Text   string      // of the operator, or the answer of the verifier
	Owner  store.Owner // of the run that an operator, a verifier or a policy resolved; else zero
}

type whyKey struct{}

// WithOperator returns a context for stet.Engine.Resolve: the name of the operator and the
// reason for the resolution, for the history of the operation.
func WithOperator(ctx context.Context, name, reason string) context.Context {
	return context.WithValue(ctx, whyKey{}, Why{Reason: ReasonOperator, By: name, Text: reason})
}

// OperatorOf returns the Why of WithOperator. Without it, only the reason is set.
func OperatorOf(ctx context.Context) Why {
	if w, ok := ctx.Value(whyKey{}).(Why); ok {
		return w
	}
	return Why{Reason: ReasonOperator}
}

// HistoryEntry is an entry of an operation's history: something that went wrong, or how it was
// resolved. Texts are cut to 500 bytes.
type HistoryEntry struct {
	At      time.Time `json:"at"`
	Event   string    `json:"event"` // the name of an Kind; lease_expired for an abandoned run
	Reason  Reason    `json:"reason,omitempty"`
	Attempt int       `json:"attempt"`
	Fence   int64     `json:"fence,string"`
	Host    string    `json:"host,omitempty"` // of the run. "…" and the last 7 characters, if it stored nothing itself
	Process int       `json:"process,omitempty"`
	Status  int       `json:"status,omitempty"` // that the service answered
	Error   string    `json:"error,omitempty"`
	By      string    `json:"by,omitempty"`     // the operator
	Text    string    `json:"text,omitempty"`   // the operator's reason, or the verifier's answer
	Sealed  bool      `json:"sealed,omitempty"` // it is encrypted with a key that this engine does not have
}

// ReasonOf returns the reason that an error of a connection or a context stands for:
// ReasonDeclared if it stands for no other.
func ReasonOf(err error) Reason {
	var network net.Error
	switch {
	case err == nil:
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return ReasonTimedOut
	case errors.Is(err, context.Canceled):
		return ReasonCancelled
	case errors.Is(err, syscall.ECONNREFUSED):
		return ReasonRefused
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return ReasonReset
	case errors.As(err, &network) && network.Timeout():
		return ReasonTimedOut
	}
	return ReasonDeclared
}
