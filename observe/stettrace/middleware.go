package stettrace

import (
	"context"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// Middleware returns protect, the Handler of a stethttp.Middleware whose engine
// has the tracer for its observer, with spans around and within. Requests that it
// passes through unprotected have none.
func (t *Tracer) Middleware(protect func(http.Handler) http.Handler) func(http.Handler) http.Handler {
	if protect == nil {
		panic("stettrace: Middleware needs the Handler of a stethttp.Middleware")
	}
	return func(next http.Handler) http.Handler {
		inner := protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := callOf(r.Context())
			if c == nil || stet.FromContext(r.Context()) == nil {
				next.ServeHTTP(w, r)
				return
			}
			returned := false
			ctx := c.enter(r.Context())
			defer func() { c.leave(r.Context(), returned) }()
			next.ServeHTTP(w, r.WithContext(ctx))
			returned = true
		}))
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := &call{tracer: t.tracer, ctx: r.Context(), began: time.Now()}
			defer c.end()
			ctx := observe.WithTrace(r.Context(), &observe.Trace{Run: c.trace, Replayed: c.link})
			inner.ServeHTTP(w, r.WithContext(context.WithValue(ctx, callKey{}, c)))
		})
	}
}

type callKey struct{}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// call is one request in the middleware. Its first span begins with its first event: a request that
// is not protected has none.
type call struct {
	tracer trace.Tracer
	ctx    context.Context // of the request, around the middleware

	mu      sync.Mutex
	began   time.Time     // the start of the next span
	span    trace.Span    // the claim's, and then the settling's; nil while there is none
	over    time.Time     // when it was done
	handler trace.Span    // nil until the handler is called
	last    observe.Event // of the operation; zero while there was none
}

// observe puts an event on the span that it belongs to. It is false for an event
// of another operation, which the handler has begun.
func (c *call) observe(ev observe.Event) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.ID != (store.ID{}) && c.last.ID != ev.ID {
		return false
	}
	c.last = ev
	if c.span == nil {
		name := SpanClaim
		if c.handler != nil {
			name = SpanSettle
		}
		_, c.span = c.tracer.Start(c.ctx, name, trace.WithTimestamp(c.began))
	}
	describe(c.span, ev)
	c.over = time.Now()
	return true
}

// close ends the open span, if there is one. The caller holds mu.
func (c *call) close() {
	if c.span != nil {
		c.span.End(trace.WithTimestamp(c.over))
		c.span = nil
	}
}

// enter begins the handler's span, and returns its context.
func (c *call) enter(ctx context.Context) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.close()
	c.began = time.Now()
	ctx, c.handler = c.tracer.Start(ctx, SpanHandler, trace.WithAttributes(identity(c.last)...))
	return ctx
}

// leave ends the handler's span. ctx is the run's.
func (c *call) leave(ctx context.Context, returned bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !returned:
		c.handler.SetStatus(codes.Error, "panic")
	case ctx.Err() != nil: // not its client's leaving
		c.handler.SetStatus(codes.Error, "the run's lease was lost, or its time was up")
	}
	c.handler.End()
	c.began = time.Now()
}

// end ends the remaining spans.
func (c *call) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.close()
}

// trace is an observe.Trace.Run.
func (c *call) trace() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.handler == nil {
		return ""
	}
	return write(c.handler.SpanContext())
}

// link is an observe.Trace.Replayed.
func (c *call) link(text string) {
	sc := parse(text)
	c.mu.Lock()
	defer c.mu.Unlock()
	if sc.IsValid() && c.span != nil {
		c.span.AddLink(trace.Link{SpanContext: sc})
	}
}
