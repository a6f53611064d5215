package stetecho4

import (
	"context"
	"log/slog"
	"net/http"
	"reflect"

	"github.com/labstack/echo/v4"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
)

// Middleware makes m a middleware of Echo's, for Use of an instance or a group, or for a
// single route. It panics if m is nil.
//
// What is registered after it runs inside, as the handler does, and only for requests that
// run: not for replays and refusals. An error that comes from inside is answered there, by
// Echo's HTTPErrorHandler, and returned to what is around, for its logs. A request that has
// no route passes through to Echo's 404 or 405; where other middleware is inside, which may
// answer by itself, it is protected, but Echo's own answer is not kept, and its key is free.
func Middleware(m *stethttp.Middleware) echo.MiddlewareFunc {
	if m == nil {
		panic("stetecho4: Middleware needs what stethttp.New returns; for NewTx it is the Middleware in that")
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

// HandleTx makes h a handler that m protects, and that gets its transaction. An error that
// h returns rolls back, also after h has written a response, which is then sent only if it
// reports a failure. A 4xx that Echo's HTTPErrorHandler makes of the error is stored after
// the rollback (stethttp.Returned). Where
// h returns nil, its response decides, as stethttp.NewTx says. A request that
// passes through unprotected, because of its method or for want of a key where it is
// optional, has no transaction: then it panics before h is called. Do not register
// Middleware around it: it is one.
func HandleTx[T any](m *stethttp.TxMiddleware[T], h func(echo.Context, T) error) echo.HandlerFunc {
	switch {
	case m == nil || m.Middleware == nil:
		panic("stetecho4: HandleTx needs what stethttp.NewTx returns")
	case h == nil:
		panic("stetecho4: HandleTx needs a handler")
	}
	return protect(m.Middleware, func(c echo.Context) error { return h(c, stethttp.Tx[T](c.Request().Context())) })
}

// Context returns Echo's context of a request, for the functions of stethttp.Options: a
// Scope finds in it what authentication has set, and parameters of the route. It is valid
// while the request is served. Of other requests it is nil.
func Context(r *http.Request) echo.Context {
	if x, ok := r.Context().Value(exchangeKey{}).(*exchange); ok {
		return x.c
	}
	return nil
}

type exchangeKey struct{}

// exchange is one request on its way through stethttp.
type exchange struct {
	c       echo.Context
	outer   *echo.Response // what is around, and what stethttp answers with
	r       *http.Request  // as stethttp gets it
	log     *slog.Logger
	through bool  // it passes through unprotected
	err     error // of what is inside
}

// protect puts inner under m.
func protect(m *stethttp.Middleware, inner echo.HandlerFunc) echo.HandlerFunc {
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := r.Context().Value(exchangeKey{}).(*exchange)
		if _, ok := w.(*front); ok {
			x.pass(r, inner)
			return
		}
		x.call(w, r, inner)
	}))
	return func(c echo.Context) error {
		x := &exchange{c: c, outer: c.Response(), log: m.Log()}
		x.r = c.Request().WithContext(context.WithValue(c.Request().Context(), exchangeKey{}, x))
		if path := c.Path(); path != "" {
			x.r.Pattern = path
		}
		if x.r.Body != nil && x.r.Body != http.NoBody && x.r.ContentLength < 0 && stet.FromContext(x.r.Context()) == nil {
			x.r.Body = &limited{x.r.Body}
		}
		return x.serve(h)
	}
}

// serve has stethttp answer, or pass the request through. The error is for what is around:
// if the request is protected, it has been answered.
func (x *exchange) serve(h http.Handler) error {
	r := x.c.Request()
	defer func() {
		if r.MultipartForm == nil {
			r.MultipartForm = x.r.MultipartForm // the server removes its files
		}
	}()
	h.ServeHTTP(&front{x}, x.r)
	if !x.through {
		timed := underTimeout(x.outer.Writer)
		seal := &sealed{ResponseWriter: x.outer.Writer, x: x}
		x.outer.Writer = seal
		res := echo.NewResponse(seal, x.c.Echo()) // which Gzip, around, does not put its writer back into
		res.Status, res.Size, res.Committed = x.outer.Status, x.outer.Size, true
		x.c.SetResponse(res)
		if timed {
			x.withhold()
		}
	}
	return x.err
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

// withhold keeps an error that is answered from Echo's middleware Timeout, which would drop
// the answer, and the client would get an empty 200.
func (x *exchange) withhold() {
	if x.err == nil {
		return
	}
	level := slog.LevelInfo
	if x.outer.Status >= http.StatusInternalServerError {
		level = slog.LevelWarn
	}
	x.log.LogAttrs(x.r.Context(), level, "stetecho4: a handler has returned an error; it is answered, and not handed to what is around, where Timeout would drop the answer",
		slog.Int("status", x.outer.Status), slog.String("route", x.r.Pattern), slog.Any("error", x.err))
	x.err = nil
}

// pass calls what is inside, unprotected. The request differs from that which came if
// stethttp has read its body.
func (x *exchange) pass(r *http.Request, inner echo.HandlerFunc) {
	x.through = true
	if r != x.r {
		was := x.c.Request()
		x.c.SetRequest(r)
		defer x.c.SetRequest(was)
	}
	x.err = inner(x.c)
}

// call calls what is inside, with w as the writer, and answers its error. It may be called
// again for the same request (stethttp.NewTx, Options.Tries).
func (x *exchange) call(w http.ResponseWriter, r *http.Request, inner echo.HandlerFunc) {
	c, outer := x.c, x.c.Request()
	res := echo.NewResponse(w, c.Echo())
	res.Status = http.StatusOK // as Echo's own begin
	c.SetResponse(res)
	c.SetRequest(r)
	defer func() {
		c.SetResponse(x.outer)
		c.SetRequest(outer)
	}()
	x.err = inner(c)
	if x.err == nil {
		return
	}
	if !c.Response().Committed && echosOwn(c, x.err) {
		stethttp.NoRoute(r.Context())
	}
	stethttp.Returned(r.Context(), x.err)
	c.Error(x.err)
}
