package observe

import "context"

// MaxTrace is the greatest length in bytes of the text that Trace.Run returns; a longer text is
// not stored.
const MaxTrace = 512

// Trace links the replays of an outcome to its run. The engine stores the
// run's W3C traceparent with the outcome, in clear unless it encrypts, and leaves it
// out if the outcome would then be larger than the policy allows. It is never sent to a
// caller. Package stettrace has one.
type Trace struct {
	// Run is called when an outcome of a run must be stored; "" for nothing. May be nil.
	Run func() (traceparent string)
	// Replayed is called after the Replayed event of an outcome that has one, with what
	// Run returned. May be nil.
	Replayed func(traceparent string)
}

type traceKey struct{}

// WithTrace returns a context for calls of an engine. A context has one Trace; the
// innermost counts.
func WithTrace(ctx context.Context, t *Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, t)
}

// TraceOf returns the Trace of a context. Without one it is empty.
func TraceOf(ctx context.Context) Trace {
	if t, ok := ctx.Value(traceKey{}).(*Trace); ok && t != nil {
		return *t
	}
	return Trace{}
}
