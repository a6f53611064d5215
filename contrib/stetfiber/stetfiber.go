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

// Errors for the app's error handler, which responds with 500.
var (
	errNoTx = errors.New("stetfiber: a request reached a handler of HandleTx unprotected, so it has no transaction and was not executed: " +
		"its method is not one of Options.Methods, or Options.Optional let it through without a key, or Options.Skip did")
	errHijack = errors.New("stetfiber: a response that is stored for retries cannot be hijacked, as for a WebSocket; Options.Skip passes such requests")
)

// Middleware returns m as middleware of Fiber, for App.Use, a group or a route. It
// panics if m is nil, and with Prefork if its store is store/memory.
func Middleware(m *stethttp.Middleware) fiber.Handler {
	if m == nil {
		panic("stetfiber: Middleware needs the result of stethttp.New")
	}
	check(m)
	return func(c fiber.Ctx) error { return serve(m, &exchange{c: c}) }
}

// HandleTx protects h, the last handler of a route, and calls it with its transaction. An error
// of h rolls back. The app's error handler responds to it, and a 4xx is stored after the
// rollback. If h returns nil, its response decides, see stethttp.NewTx. h may be called again
// for the same request, with a new transaction, the body from its beginning and a new response.
//
// If a request passes unprotected, because of its method or of Options.Optional, there is no
// transaction. h is not called, and the error handler responds, by default with 500. HandleTx
// panics if m or h is nil, and as Middleware does.
func HandleTx[T any](m *stethttp.TxMiddleware[T], h func(c fiber.Ctx, tx T) error) fiber.Handler {
	if m == nil || h == nil {
		panic("stetfiber: HandleTx needs the result of stethttp.NewTx, and a handler")
	}
	check(m.Middleware)
	return func(c fiber.Ctx) error {
		return serve(m.Middleware, &exchange{c: c, handle: func(ctx context.Context) error { return h(c, stethttp.Tx[T](ctx)) }})
	}
}

// check panics in the processes of an app with Prefork if each has a store of its own.
func check(m *stethttp.Middleware) {
	if _, ok := store.Base(m.Engine().Store()).(*memory.Store); ok && fiber.IsChild() {
		panic("stetfiber: with Prefork, each process has its own store/memory, and would run operations of another process again: use a store that the processes share")
	}
}

// ctxKey is the key of the Fiber context of a request, requestKey that of within in its Locals.
type (
	ctxKey     struct{}
	requestKey struct{}
)

// Context returns the Fiber context of a request in Options.Scope, Class, Name, Ref and Skip, for
// example to read Locals. It is nil for other requests. Do not retain it or its strings.
func Context(r *http.Request) fiber.Ctx {
	c, _ := r.Context().Value(ctxKey{}).(fiber.Ctx)
	return c
}

// exchange is one request and its response.
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

// next is the handler for stethttp.
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
	x.setBody(r)
	x.run(w, r)
}

// pass calls the handler of a request that is not protected.
func (x *exchange) pass(r *http.Request) error {
	if x.handle != nil {
		return errNoTx
	}
	x.setBody(r)
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

// answer gives the response of a handler, which has returned err, to stethttp.
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
	case ctx.Err() != nil: // the effect is not known
		run.Declare(stet.MayHaveExecuted, 0)
	default:
		stethttp.Returned(ctx, err)
		x.restore(c.Response())
		x.answerError(err)
		if write(ctx, w, c.Response()) != nil {
			http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		}
	}
	if x.timedOut(parent) { // the response may be a mix of both
		run.Declare(stet.MayHaveExecuted, 0)
	}
}

// answerError responds to an error as Fiber does after the last handler.
func (x *exchange) answerError(err error) {
	if failed := x.c.App().ErrorHandler(x.c, err); failed != nil {
		_ = x.c.SendStatus(fiber.StatusInternalServerError)
	}
}

// timedOut reports whether timeout middleware has responded in place of this handler, or will:
// the outcome is then unknown. If that middleware is around this one, parent has ended, and the
// context must not be used. If it is behind, its handler continues.
func (x *exchange) timedOut(parent context.Context) bool {
	if x.c.IsAbandoned() {
		x.lost = parent.Err() != nil
		if !x.lost {
			x.late = x.c.RequestCtx().LastTimeoutErrorResponse()
		}
	}
	return x.lost || x.late != nil
}

// respond sends the response of stethttp.
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

// restore undoes the handler's response.
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
