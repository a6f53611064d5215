// Package stettrace makes OpenTelemetry spans of protected requests, and links a replay to the run
// of its response.
//
//	tracer := stettrace.New(stettrace.Options{})
//	engine, err := stet.New(store, stet.Options{Observer: tracer})
//	idempotent, err := stethttp.New(engine, stethttp.Options{Scope: accountOf})
//	mux.Handle("POST /payments", tracer.Middleware(idempotent.Handler)(payments))
//
// A protected request has up to three spans, children of the span that its
// context has (otelhttp's, say, which goes around this):
//
//	stet claim    until the claim is granted, an outcome found, or the request refused
//	stet handler  the handler; the parent of the handler's own spans
//	stet settle   until the outcome is durable, or the claim released
//
// The claim of a replay has a link to the handler's span of the run, also of
// another process and trace. The trace is stored with the outcome (observe.Trace). An outcome that
// a verifier or an operator resolved has none.
//
// Attributes are the event's name, class, state, attempt and digest of the
// operation (stet.event, stet.class, stet.state, stet.attempt, stet.id), its reference, the
// label of its scope (stet.ref, stet.scope_label) stet.replayed, and stet.reason if something went wrong. No key, scope, path or body is in a span, and no text of an
// error, which may quote them.
//
// Without the middleware (stet.Do, consumers of messages), each event of a caller becomes an event
// of the span in its context.
package stettrace

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// Names of the spans.
const (
	SpanClaim   = "stet claim"
	SpanHandler = "stet handler"
	SpanSettle  = "stet settle"
)

const (
	keyEvent    = attribute.Key("stet.event")
	keyState    = attribute.Key("stet.state")
	keyAttempt  = attribute.Key("stet.attempt")
	keyID       = attribute.Key("stet.id")
	keyReplayed = attribute.Key("stet.replayed")
	keyReason   = attribute.Key("stet.reason")
)

// Options configure a Tracer. The zero value is usable.
type Options struct {
	// Provider makes the spans. Default: otel's global one.
	Provider trace.TracerProvider
}

// Tracer is a observe.Observer, and has the middleware that goes around stethttp's.
// It is safe for concurrent use, and meant for all engines of a process.
type Tracer struct {
	tracer trace.Tracer
}

// New returns a tracer.
func New(o Options) *Tracer {
	if o.Provider == nil {
		o.Provider = otel.GetTracerProvider()
	}
	return &Tracer{tracer: o.Provider.Tracer("github.com/stet-go/stet/observe/stettrace")}
}

// Observe implements observe.Observer.
func (t *Tracer) Observe(ctx context.Context, ev observe.Event) {
	if c := callOf(ctx); c == nil || !c.observe(ev) {
		trace.SpanFromContext(ctx).AddEvent(eventName(ev), trace.WithAttributes(attributes(ev)...))
	}
}

func eventName(ev observe.Event) string { return "stet." + ev.Kind.String() }

// attributes returns the attributes of an event.
func attributes(ev observe.Event) []attribute.KeyValue {
	list := identity(ev)
	if ev.Why != nil && ev.Why.Reason != "" {
		list = append(list, keyReason.String(string(ev.Why.Reason)))
	}
	return append(list, keyEvent.String(ev.Kind.String()), keyState.String(ev.State.String()),
		keyReplayed.Bool(ev.Kind == observe.Replayed))
}

// identity returns the attributes of the operation and its attempt.
func identity(ev observe.Event) []attribute.KeyValue {
	list := make([]attribute.KeyValue, 0, 6)
	if ev.ID != (store.ID{}) {
		list = append(list, keyID.String(ev.ID.String()))
	}
	for _, name := range ev.Names() {
		if name.Key != "name" { // it can be a path
			list = append(list, attribute.String("stet."+name.Key, name.Value.String()))
		}
	}
	if ev.Attempt > 0 {
		list = append(list, keyAttempt.Int(ev.Attempt))
	}
	return list
}

// fails reports whether an event needs an operator. Refusals do not.
func fails(ev observe.Event) bool {
	switch ev.Kind {
	case observe.MarkedUnknown, observe.LeaseLost, observe.TimedOut, observe.CutOff, observe.Fenced, observe.StoreFailed, observe.Aborted, observe.FailedOpen:
		return true
	}
	return ev.Err != nil && ev.Kind != observe.InFlight && ev.Kind != observe.Mismatched
}

// describe puts an event on a span.
func describe(span trace.Span, ev observe.Event) {
	span.SetAttributes(attributes(ev)...)
	span.AddEvent(eventName(ev))
	if fails(ev) {
		span.SetStatus(codes.Error, ev.Kind.String())
	}
}

const traceparent = "traceparent" // of W3C Trace Context

// write is the stored form of the span of a run.
func write(sc trace.SpanContext) string {
	if !sc.IsValid() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), carrier)
	return carrier[traceparent]
}

// parse is the reverse of write. For another text the span is not valid.
func parse(text string) trace.SpanContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{traceparent: text})
	return trace.SpanContextFromContext(ctx)
}
