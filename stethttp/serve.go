package stethttp

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// maxWaitingBody is the most bytes of a body that a waiting request holds. One client could
// otherwise use stet.Options.MaxWaiters times MaxBody of memory.
const maxWaitingBody = 64 << 10

// guard is a protected handler.
type guard struct {
	m      *Middleware
	next   http.Handler
	wrong  string      // the fault of the wiring, or ""
	logged atomic.Bool // that a request with a key passed
}

// call is one request that is protected.
type call struct {
	*guard
	w     http.ResponseWriter
	r     *http.Request
	op    stet.Op
	limit int // of the stored result, in bytes
	received
	waiting
	ctx   *callContext  // of the handler's last call
	later bool          // it is run by a worker
	inner *http.Request // the handler's
	claim string        // of the run, under stet.Policy.Outside
	reply
}

// received is the body of a request.
type received struct {
	sent     []byte
	body     *body   // as the handler reads it
	pointed  pointed // the key at KeyPolicy.Pointer
	passedOn bool    // from another middleware of this package, and it was not read in between
}

// waiting is Prefer: wait.
type waiting struct {
	begun time.Time // only if the request prefers to wait
	wait  time.Duration
	waits bool
}

// reply is what a response says about its operation.
type reply struct {
	expires string       // the value of expiresHeader for a stored response; "" for none
	reason  store.Reason // of a stored response
	says    class
}

// ServeHTTP implements http.Handler.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m := g.m
	keys := r.Header[m.header]
	if len(keys) > 0 && !m.protects(r.Method) && !g.logged.Swap(true) {
		m.log().WarnContext(r.Context(), "stethttp: a request with a key passed unprotected, because its method is not among Options.Methods: a retry runs again. This is logged once for each handler",
			slog.String("method", r.Method), slog.String("pattern", r.Pattern))
	}
	if !m.protects(r.Method) || len(keys) == 0 && m.o.Optional && m.pointer == nil || m.o.Skip != nil && m.o.Skip(r) || g.unrouted(r) {
		g.next.ServeHTTP(w, r)
		return
	}
	if g.wrong != "" {
		g.refuseWiring(w, r)
		return
	}
	c := &call{guard: g, w: w, r: r}
	if m.pointer != nil && !c.readFirst(m.o.MaxBody) {
		return
	}
	defer c.end()
	if len(keys) == 0 && !c.pointed.there && m.o.Optional {
		g.next.ServeHTTP(w, c.request(r.Context()))
		return
	}
	if problem, detail := c.name(keys); problem != nil {
		m.refuse(w, problem, detail, 0)
		return
	}
	if m.pointer == nil && !c.read(m.o.MaxBody) {
		return
	}
	c.refer()
	if len(c.sent) > maxWaitingBody {
		c.op.Wait = stet.NoWait
	}
	if m.transact != nil {
		c.serveTx()
		return
	}
	c.serve()
}

// protects reports whether a method is protected. It ignores case, as some handlers do.
func (m *Middleware) protects(method string) bool {
	return slices.ContainsFunc(m.o.Methods, func(protected string) bool { return strings.EqualFold(protected, method) })
}

// read reads the body, up to limit bytes, and digests the request. It is false
// if that was refused.
func (c *call) read(limit int64) bool {
	if outer, ok := c.r.Body.(*body); ok {
		c.passedOn = outer.whole()
	}
	sent, err := readBody(c.w, c.r, limit)
	if err == nil {
		err = consumed(c.r, len(sent))
	}
	if err != nil {
		c.unread(err, limit)
		return false
	}
	c.sent = sent
	return c.digest(sent)
}

// unread refuses a request whose body was not read.
func (c *call) unread(err error, limit int64) {
	if errors.Is(err, errConsumed) {
		c.m.log().ErrorContext(c.r.Context(), "stethttp: requests cannot be distinguished, so they are refused; nothing was executed", slog.Any("error", err))
		c.m.refuse(c.w, &misconfigured, "", 0)
		return
	}
	if outer, ok := errors.AsType[*http.MaxBytesError](err); ok {
		limit, err = outer.Limit, errBodyTooLarge
	}
	if errors.Is(err, errBodyTooLarge) {
		c.m.refuse(c.w, &bodyTooLarge, "The request body is larger than "+strconv.FormatInt(limit, 10)+" bytes.", 0)
		return
	}
	var limited interface{ StatusCode() int } // what limits bodies around, in frameworks
	if errors.As(err, &limited) && limited.StatusCode() == http.StatusRequestEntityTooLarge {
		c.m.refuse(c.w, &bodyTooLarge, "", 0)
		return
	}
	c.m.refuse(c.w, &bodyUnreadable, "", 0)
}

// name finds the operation of the request. Unless KeyPolicy.Pointer is set, the body was not read:
// a client that waits for 100 Continue is refused before it sends its body.
func (c *call) name(keys []string) (problem *condition, detail string) {
	m, r := c.m, c.r
	key, problem, detail := c.key(keys)
	if problem != nil {
		return problem, detail
	}
	if problem := c.findScope(); problem != nil {
		return problem, ""
	}
	c.op.Key = key
	if m.o.Class != nil {
		c.op.Class = m.o.Class(r)
	}
	c.op.Name, c.op.Ref = c.label(r)
	policy, ok := m.engine.Policy(c.op.Class)
	if !ok {
		m.log().ErrorContext(r.Context(), "stethttp: Options.Class named a class that is not among stet.Options.Classes; nothing was executed",
			slog.String("class", c.op.Class))
		return &misconfigured, ""
	}
	c.limit = policy.MaxResult
	if c.prefer(); c.waits {
		c.op.Wait = max(c.wait, stet.NoWait)
	}
	return nil, ""
}

// label returns the name of the operation, and its reference.
func (g *guard) label(r *http.Request) (name, ref string) {
	m := g.m
	switch {
	case m.o.Name != nil:
		name = m.o.Name(r)
	case strings.HasPrefix(r.Pattern, r.Method+" "):
		name = r.Pattern
	default:
		name = store.LabelText(r.Method + " " + cmp.Or(r.Pattern, r.URL.Path))
	}
	if m.o.Ref != nil {
		ref = strings.TrimPrefix(store.LabelText(m.o.Ref(r)), "sealed:") // which is the engine's mark
	}
	return store.LabelText(name), ref
}

// findScope finds the owner of the key.
func (c *call) findScope() *condition {
	scope, err := c.m.o.Scope(c.r)
	if err != nil {
		c.m.log().ErrorContext(c.r.Context(), "stethttp: Options.Scope failed; nothing was executed", slog.Any("error", err))
		return &scopeFailed
	}
	if scope == "" {
		return &scopeMissing
	}
	if len(scope) > store.MaxScope {
		c.m.log().WarnContext(c.r.Context(), "stethttp: a scope is longer than store.MaxScope; nothing was executed", slog.Int("bytes", len(scope)))
		return &scopeTooLong
	}
	c.op.Scope = scope
	return nil
}

// prefer finds how long the request prefers to wait.
func (c *call) prefer() {
	if prefer := c.r.Header["Prefer"]; len(prefer) > 0 && c.m.o.MaxWait > 0 {
		if c.wait, c.waits = preferredWait(prefer); c.waits {
			c.begun = time.Now()
			c.wait = min(c.wait, c.m.o.MaxWait)
		}
	}
}

// request returns the request for a call of the handler, of which there may be
// more than one, with the body from its beginning.
func (c *call) request(ctx context.Context) *http.Request {
	c.close()
	if c.inner != nil && c.inner.MultipartForm != nil && c.inner.MultipartForm != c.r.MultipartForm {
		_ = c.inner.MultipartForm.RemoveAll()
	}
	c.body = &body{}
	c.body.rest.Reset(c.sent)
	c.ctx = &callContext{Context: ctx}
	c.inner = c.r.WithContext(c.ctx)
	c.inner.Body = c.body
	if c.claim != "" {
		c.inner.Header = c.r.Header.Clone()
		c.inner.Header[HeaderClaim] = []string{c.claim}
	}
	return c.inner
}

// close closes the body that the handler reads.
func (c *call) close() {
	if c.body != nil {
		_ = c.body.Close()
	}
}

// end closes the body, and keeps a form of the handler for its removal.
func (c *call) end() {
	c.close()
	if c.inner != nil && c.r.MultipartForm == nil {
		c.r.MultipartForm = c.inner.MultipartForm // the server removes its files
	}
}

// serve runs or replays an operation in lease mode.
func (c *call) serve() {
	run, err := c.m.engine.Begin(c.r.Context(), c.op)
	if err != nil {
		if c.m.o.FailOpen && stet.KindOf(err) == stet.KindStore && stet.ExecutionOf(err) == stet.NotExecuted {
			c.failOpen(err)
			return
		}
		c.refuse(err)
		return
	}
	if run.Replayed() {
		c.replay(run)
		return
	}
	if run.Claim != (store.Claim{}) {
		c.serveOutside(run)
		return
	}
	rw := c.capture(c.limit, false)
	defer rw.free()
	rw.attend(run.Context(), c.r)
	c.run(run, rw)
}

// failOpen runs the handler unprotected.
func (c *call) failOpen(err error) {
	ctx := c.r.Context()
	id := c.m.engine.ID(c.op.Scope, c.op.Key)
	c.m.engine.Observe(ctx, observe.Event{Kind: observe.FailedOpen, ID: id, Class: c.op.Class, Err: err})
	c.m.log().WarnContext(ctx, "stethttp: the store cannot be used; a request runs unprotected (Options.FailOpen)",
		slog.String("id", id.String()), slog.Any("error", err))
	c.next.ServeHTTP(c.w, c.request(ctx))
}

// run runs the handler under the lease, and sends its response, or the rest of it, once
// the run has ended.
func (c *call) run(run *stet.Lease, rw *capture) {
	unknown := false   // the handler has declared so
	var returned error // by the handler, if it counts
	out, err := run.Do(c.r.Context(), c.again, func(ctx context.Context) (stet.Outcome, error) {
		c.handle(ctx, rw)
		c.says = c.classify(run.Run, rw)
		unknown = run.Declared() == stet.MayHaveExecuted
		returned = c.failure().counts()
		return c.outcome(run.Run, rw), returned
	})
	if own, ok := err.(*stet.Error); err != nil && (!ok || own.Cause != nil && own.Cause != returned) { //nolint:errorlint // the outermost
		what := "an outcome was not stored; its response was not sent"
		if stet.KindOf(err) == stet.KindRetryable {
			what = "a claim was not released yet; if that fails until its lease ends, the operation becomes unknown"
		}
		c.failed(run, what, err)
	}
	switch {
	case stet.KindOf(err) == stet.KindRetryable:
		c.sendReleased(rw, stet.ExecutionOf(err) == stet.NotExecuted)
	case err == nil && out.Gone && rw.over && rw.held && rw.retract():
		c.refuse(out.Decode(nil))
	case err == nil:
		c.expires, c.reason = expiry(run.ForgottenAt), out.Reason
		c.send(rw, false)
	case c.says == absent && !unknown:
		c.send(rw, false)
	default:
		c.unknown(rw)
	}
}

// handle calls the handler. If it panics, the response is cut off.
func (c *call) handle(ctx context.Context, rw *capture) {
	returned := false
	defer func() {
		rw.finish()
		if !returned && !rw.retract() {
			cutOff(c.w)
		}
	}()
	c.next.ServeHTTP(rw, c.request(ctx))
	returned = true
}

// outcome returns the outcome of a finished response, or declares that there is none.
func (c *call) outcome(run *stet.Run, rw *capture) stet.Outcome {
	switch {
	case run.Declared() != stet.Executed:
		return stet.Outcome{}
	case c.says == absent:
		run.Declare(stet.MayHaveExecuted, 0)
		return stet.Outcome{}
	case c.says == undone:
		run.Explain(observe.Why{Status: rw.status})
		run.Declare(stet.NotExecuted, 0)
		return stet.Outcome{}
	case rw.invalid:
		return c.m.invalid
	}
	out, err := rw.response(&c.m.filter)
	if err != nil {
		out.Gone = true
	}
	out.Failed = c.says == failed
	return out
}

// failed logs a failure of a run. The ID is a digest.
func (c *call) failed(run *stet.Lease, what string, err error) {
	c.m.log().ErrorContext(c.r.Context(), "stethttp: "+what, slog.String("id", run.ID().String()),
		slog.String("class", c.op.Class), slog.Int64("fence", run.Fence()), slog.Any("error", err))
}
