package stetecho4

import (
	"log/slog"
	"net/http"
	"reflect"

	"github.com/labstack/echo/v4"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/exchange"
	"github.com/stet-go/stet/stethttp"
)

// Middleware returns m as middleware of Echo, for Use of an instance or a group, or for a single
// route. It panics if m is nil.
//
// Middleware and handlers that are registered after it run inside, and only for requests that
// run, not for replays and refusals. Echo's HTTPErrorHandler responds to their errors inside.
// The error is then returned to outer middleware, for its logs. A request without a route passes
// through to Echo's 404 or 405. If other middleware is inside, which may respond itself, such a
// request is protected, but Echo's own response is not stored and its key stays free.
func Middleware(m *stethttp.Middleware) echo.MiddlewareFunc {
	if m == nil {
		panic("stetecho4: Middleware needs the result of stethttp.New; for NewTx it is the Middleware in that")
	}
	routes := &routes{}
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		if next == nil {
			panic("stetecho4: Middleware needs a handler")
		}
		h := protect(m, next)
		return func(c echo.Context) error {
			if routes.without(c, next) {
				return next(c)
			}
			return h(c)
		}
	}
}

// HandleTx returns a handler that m protects, and that calls h with its transaction. An error
// of h rolls back, also after h has written a response, which is then sent only if it reports a
// failure. A 4xx that Echo's HTTPErrorHandler makes of the error is stored after the rollback
// (stethttp.Returned). If h returns nil, its response decides the end of the transaction, see
// stethttp.NewTx.
//
// It panics without calling h if a request passes unprotected, because of its method or of
// Options.Optional: there is no transaction. Do not register Middleware around it.
func HandleTx[T any](m *stethttp.TxMiddleware[T], h func(echo.Context, T) error) echo.HandlerFunc {
	switch {
	case m == nil || m.Middleware == nil:
		panic("stetecho4: HandleTx needs the result of stethttp.NewTx")
	case h == nil:
		panic("stetecho4: HandleTx needs a handler")
	}
	return protect(m.Middleware, func(c echo.Context) error { return h(c, stethttp.Tx[T](c.Request().Context())) })
}

// Context returns Echo's context of a request, for the functions of stethttp.Options: with the
// values that authentication has set, and the parameters of the route. It is valid until the
// request ends. It is nil for other requests.
func Context(r *http.Request) echo.Context { return exchange.Context[echo.Context](r) }

// call is one request.
type call struct {
	exchange.Exchange
	c     echo.Context
	inner echo.HandlerFunc
	outer *echo.Response // of outer middleware
	log   *slog.Logger
	err   error // of inner
}

// protect returns inner, protected by m.
func protect(m *stethttp.Middleware, inner echo.HandlerFunc) echo.HandlerFunc {
	h := exchange.Handler(m)
	return func(c echo.Context) error {
		x := &call{c: c, inner: inner, outer: c.Response(), log: m.Log()}
		x.Exchange = exchange.Exchange{Framework: c, Call: x.call, Pass: x.pass}
		x.Begin(c.Request(), c.Path())
		if r := x.Request; r.Body != nil && r.Body != http.NoBody && r.ContentLength < 0 && stet.FromContext(r.Context()) == nil {
			r.Body = &limitedBody{r.Body}
		}
		x.Serve(h, &front{x})
		if !x.Passed {
			x.seal()
		}
		return x.err
	}
}

// sealed returns the writer of outer middleware, after the end of the response.
func (x *call) sealed(w http.ResponseWriter) http.ResponseWriter {
	return &exchange.Sealed{ResponseWriter: w, Adapter: "stetecho4", Log: x.log, Request: x.Request,
		Advice: "register middleware that adds to responses after stetecho4's; an HTTPErrorHandler must return if the response is committed"}
}

// seal puts a sealed response into the context.
func (x *call) seal() {
	timed := underTimeout(x.outer.Writer)
	w := x.sealed(x.outer.Writer)
	x.outer.Writer = w
	res := echo.NewResponse(w, x.c.Echo()) // outer Gzip does not put its writer back into it
	res.Status, res.Size, res.Committed = x.outer.Status, x.outer.Size, true
	x.c.SetResponse(res)
	if timed {
		x.withhold()
	}
}

// underTimeout reports whether w leads to the writer of http.TimeoutHandler.
func underTimeout(w http.ResponseWriter) bool {
	for {
		if reflect.TypeOf(w).String() == "*http.timeoutWriter" {
			return true
		}
		inner, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = inner.Unwrap()
	}
}

// withhold drops an error from Echo's middleware Timeout. It would discard the response, and the
// client would get an empty 200.
func (x *call) withhold() {
	if x.err == nil {
		return
	}
	level := slog.LevelInfo
	if x.outer.Status >= http.StatusInternalServerError {
		level = slog.LevelWarn
	}
	x.log.LogAttrs(x.Request.Context(), level, "stetecho4: a handler has returned an error; its response was sent, and the error is not returned to outer middleware, where Timeout would discard the response",
		slog.Int("status", x.outer.Status), slog.String("route", x.Request.Pattern), slog.Any("error", x.err))
	x.err = nil
}

// pass calls inner, unprotected.
func (x *call) pass(r *http.Request) {
	if r != x.Request {
		was := x.c.Request()
		x.c.SetRequest(r)
		defer x.c.SetRequest(was)
	}
	x.err = x.inner(x.c)
}

// call calls inner with w as the writer, and Echo's HTTPErrorHandler for its error. stethttp can
// call it again for the same request (stethttp.NewTx, Options.Tries).
func (x *call) call(w http.ResponseWriter, r *http.Request) {
	c, outer := x.c, x.c.Request()
	res := echo.NewResponse(w, c.Echo())
	res.Status = http.StatusOK // like Echo's own
	c.SetResponse(res)
	c.SetRequest(r)
	defer func() {
		c.SetResponse(x.outer)
		c.SetRequest(outer)
	}()
	x.err = x.inner(c)
	if x.err == nil {
		return
	}
	if !c.Response().Committed && echosOwn(c, x.err) {
		stethttp.NoRoute(r.Context())
	}
	stethttp.Returned(r.Context(), x.err)
	c.Error(x.err)
}
