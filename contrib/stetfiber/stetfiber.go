package stetfiber

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// Errors that the app's error handler gets, and answers with 500.
var (
	errNoTx = errors.New("stetfiber: a request reached a handler of HandleTx unprotected, so it has no transaction and was not executed: " +
		"its method is not one of Options.Methods, or Options.Optional let it through without a key, or Options.Skip did")
	errHijack = errors.New("stetfiber: a response that is kept for retries cannot be hijacked, as for a WebSocket; Options.Skip lets such requests through")
)

// Middleware returns m as middleware of Fiber, for App.Use, a group or a route. It
// panics if m is nil, and with Prefork if its store is store/memory.
func Middleware(m *stethttp.Middleware) fiber.Handler {
	if m == nil {
		panic("stetfiber: Middleware needs what stethttp.New makes")
	}
	check(m)
	return func(c fiber.Ctx) error { return serve(m, &exchange{c: c}) }
}

// HandleTx protects h, the last handler of a route, which gets its transaction as an
// argument. An error that it returns rolls back. The app's error handler answers it, and a
// 4xx is stored after the rollback. Where it returns nil, its response decides, see stethttp.NewTx. h may be called
// again for the same request, with a new transaction, the body from its beginning and a new
// response.
//
// A request that passes through unprotected, because of its method or for want of a key
// where it is optional, has no transaction: h is not called, and the error handler is
// asked for the answer, by default 500. HandleTx panics if m or h is nil, and as Middleware does.
func HandleTx[T any](m *stethttp.TxMiddleware[T], h func(c fiber.Ctx, tx T) error) fiber.Handler {
	if m == nil || h == nil {
		panic("stetfiber: HandleTx needs what stethttp.NewTx makes, and a handler")
	}
	check(m.Middleware)
	return func(c fiber.Ctx) error {
		return serve(m.Middleware, &exchange{c: c, handle: func(ctx context.Context) error { return h(c, stethttp.Tx[T](ctx)) }})
	}
}

// check panics in the processes of an app with Prefork if each has a store of its own.
func check(m *stethttp.Middleware) {
	if _, ok := store.Base(m.Engine().Store()).(*memory.Store); ok && fiber.IsChild() {
		panic("stetfiber: with Prefork, each process has a store/memory of its own, and would run what another one has run: use a store that the processes share")
	}
}

// ctxKey finds the Fiber context of a request, requestKey in its Locals the request that
// a middleware around has read (within).
type (
	ctxKey     struct{}
	requestKey struct{}
)

// Context returns the Fiber context of the request that stethttp calls Options.Scope, Class,
// Name, Ref and Skip with: for what middleware before has put into its Locals, for one. It
// is nil for other requests. Neither it nor a string of its must be kept.
func Context(r *http.Request) fiber.Ctx {
	c, _ := r.Context().Value(ctxKey{}).(fiber.Ctx)
	return c
}

// exchange is one request, and what is answered.
type exchange struct {
	c      fiber.Ctx
	handle func(context.Context) error // of HandleTx; nil is the next handler

	body   *requestBody
	before *fasthttp.Response // has the header as it was before the handler
	w      writer

	at       position // in the app's routes
	calls    int      // of the handler
	hijacked bool     // before it, if not by an earlier request, as Fiber's adaptor of apps has it
	passed   bool
	err      error              // of a handler that was passed through to
	late     *fasthttp.Response // what timeout middleware behind answers
	lost     bool               // timeout middleware around has answered
}

// serve answers a request as m decides.
func serve(m *stethttp.Middleware, x *exchange) error {
	x.at = positionOf(x.c)
	x.before = fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(x.before)
	x.c.Response().Header.CopyTo(&x.before.Header)
	x.w.header, x.w.outer = make(http.Header), make(http.Header)
	fill(x.w.header, &x.before.Header, true)
	fill(x.w.outer, &x.before.Header, true)

	r := x.request()
	defer x.body.close()
	returned := false
	defer func() {
		if !returned {
			x.broken(recover())
		}
	}()
	m.Handler(http.HandlerFunc(x.next)).ServeHTTP(&x.w, r)
	returned = true
	if x.passed {
		return x.err
	}
	x.respond()
	return nil
}

// next is the handler that stethttp calls.
func (x *exchange) next(w http.ResponseWriter, r *http.Request) {
	if w == http.ResponseWriter(&x.w) {
		x.passed = true
		x.err = x.pass(r)
		return
	}
	if x.calls++; x.calls > 1 {
		if x.handle == nil {
			again(w) // c.Next would call the handler after it
			return
		}
		x.restore(x.c.Response())
	}
	x.lend(r)
	x.run(w, r)
}

// pass calls the handler of a request that is not protected.
func (x *exchange) pass(r *http.Request) error {
	if x.handle != nil {
		return errNoTx
	}
	x.lend(r)
	return x.c.Next()
}

// run calls the handler, and gives its response to stethttp.
func (x *exchange) run(w http.ResponseWriter, r *http.Request) {
	c, ctx, parent := x.c, r.Context(), x.c.Context()
	around := c.Locals(requestKey{})
	defer func() {
		if x.late == nil && !x.lost {
			c.SetContext(parent)
			c.Locals(requestKey{}, around)
		}
	}()
	x.hijacked = c.RequestCtx().Hijacked()
	c.SetContext(ctx)
	c.Locals(requestKey{}, &within{r, x.at})

	var err error
	if x.handle != nil {
		err = x.handle(ctx)
	} else {
		err = c.Next()
	}
	x.answer(parent, w, r, err)
}

// answer gives the response of a handler that has returned err to stethttp.
func (x *exchange) answer(parent context.Context, w http.ResponseWriter, r *http.Request, err error) {
	c, ctx := x.c, r.Context()
	run := stet.FromContext(ctx)
	if x.timedOut(parent) {
		run.Declare(stet.MayHaveExecuted, 0)
		return
	}
	if !x.hijacked {
		if err == nil && c.RequestCtx().Hijacked() {
			err = errHijack
		}
		c.RequestCtx().Hijack(nil)
	}
	if err != nil {
		if !c.Matched() && (errors.Is(err, fiber.ErrNotFound) || errors.Is(err, fiber.ErrMethodNotAllowed)) {
			stethttp.NoRoute(ctx) // the router has found no handler
		}
		stethttp.Returned(ctx, err)
		x.answerError(err)
	}
	switch err := write(ctx, w, c.Response()); {
	case err == nil:
	case ctx.Err() != nil: // it says nothing of the effect
		run.Declare(stet.MayHaveExecuted, 0)
	default:
		stethttp.Returned(ctx, err)
		x.restore(c.Response())
		x.answerError(err)
		if write(ctx, w, c.Response()) != nil {
			http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		}
	}
	if x.timedOut(parent) { // what was written may be half the one and half the other
		run.Declare(stet.MayHaveExecuted, 0)
	}
}

// answerError answers an error as Fiber would once all handlers have returned it.
func (x *exchange) answerError(err error) {
	if failed := x.c.App().ErrorHandler(x.c, err); failed != nil {
		_ = x.c.SendStatus(fiber.StatusInternalServerError)
	}
}

// timedOut reports whether timeout middleware has answered in place of this handler, or
// is about to: then the response and its outcome are not the handler's. If that is around
// this one, parent has ended, and the context is not ours any more; if it is behind, its
// handler continues.
func (x *exchange) timedOut(parent context.Context) bool {
	if x.c.IsAbandoned() {
		x.lost = parent.Err() != nil
		if !x.lost {
			x.late = x.c.RequestCtx().LastTimeoutErrorResponse()
		}
	}
	return x.lost || x.late != nil
}

// respond makes what stethttp has written the response.
func (x *exchange) respond() {
	if x.lost {
		return
	}
	resp := x.c.Response()
	if x.late != nil {
		resp = &fasthttp.Response{}
		defer func() { x.c.RequestCtx().TimeoutErrorWithResponse(resp) }()
	}
	x.restore(resp)
	x.w.send(resp)
	if !x.body.read() {
		resp.SetConnectionClose() // so that the next request does not begin with the rest of it
	}
}

// restore makes a response what it was before the handler.
func (x *exchange) restore(resp *fasthttp.Response) {
	x.before.Header.CopyTo(&resp.Header)
	resp.ResetBody()
	resp.SkipBody, resp.ImmediateHeaderFlush = false, false
}

// broken ends a request whose handler has panicked, with v, or has left by runtime.Goexit.
// http.ErrAbortHandler ends the connection without a response; others continue.
func (x *exchange) broken(v any) {
	ctx := x.c.RequestCtx()
	if x.late == nil && !x.lost && !x.passed {
		x.restore(&ctx.Response)
	}
	switch {
	case v == nil, x.lost && v == any(http.ErrAbortHandler):
	case v != any(http.ErrAbortHandler) || x.passed:
		panic(v)
	default:
		resp := &fasthttp.Response{}
		resp.SetStatusCode(fiber.StatusInternalServerError) // for servers that have no connection to end
		resp.SetConnectionClose()
		if x.late != nil {
			ctx.TimeoutErrorWithResponse(resp)
			return
		}
		resp.CopyTo(&ctx.Response)
		ctx.HijackSetNoResponse(true)
		ctx.Hijack(func(net.Conn) {})
	}
}
