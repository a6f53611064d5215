package stetecho

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/labstack/echo/v5"

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
		panic("stetecho: Middleware needs what stethttp.New returns; for NewTx it is the Middleware in that")
	}
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		if next == nil {
			panic("stetecho: Middleware needs a handler")
		}
		h, last := protect(m, next), isEchosOwn(next)
		return func(c *echo.Context) error {
			if last || unrouted(c) {
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
func HandleTx[T any](m *stethttp.TxMiddleware[T], h func(*echo.Context, T) error) echo.HandlerFunc {
	switch {
	case m == nil || m.Middleware == nil:
		panic("stetecho: HandleTx needs what stethttp.NewTx returns")
	case h == nil:
		panic("stetecho: HandleTx needs a handler")
	}
	return protect(m.Middleware, func(c *echo.Context) error { return h(c, stethttp.Tx[T](c.Request().Context())) })
}

// Context returns Echo's context of a request, for the functions of stethttp.Options: a
// Scope finds in it what authentication has set, and parameters of the route. It is valid
// while the request is served. Of other requests it is nil.
func Context(r *http.Request) *echo.Context {
	if x, ok := r.Context().Value(exchangeKey{}).(*exchange); ok {
		return x.c
	}
	return nil
}

type exchangeKey struct{}

// exchange is one request on its way through stethttp.
type exchange struct {
	c       *echo.Context
	outer   http.ResponseWriter // that of what is around, and what stethttp answers with
	r       *http.Request       // as stethttp gets it
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
	return func(c *echo.Context) error {
		x := &exchange{c: c, outer: c.Response(), log: m.Log()}
		x.r = c.Request().WithContext(context.WithValue(c.Request().Context(), exchangeKey{}, x))
		if path := c.Path(); path != "" {
			x.r.Pattern = path
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
	f := &front{x: x}
	h.ServeHTTP(f, x.r)
	if !x.through {
		res := echo.NewResponse(&sealed{ResponseWriter: x.outer, x: x}, x.c.Logger())
		res.Status, res.Size, res.Committed = f.status, f.size, true
		x.c.SetResponse(res)
		x.withhold(f.status)
	}
	return x.err
}

// withhold keeps an error that is answered from what is around, where something there has
// put a writer of its own in the place of Echo's response. Gzip and BodyDump put that back
// on their way out, past what seals it: the error would be answered a second time.
func (x *exchange) withhold(status int) {
	if _, ok := x.outer.(*echo.Response); ok || x.err == nil {
		return
	}
	level := slog.LevelInfo
	if status >= http.StatusInternalServerError {
		level = slog.LevelWarn
	}
	x.log.LogAttrs(x.r.Context(), level, "stetecho: a handler has returned an error; it is answered, and not handed to what is around, where something has replaced the response (as Gzip and BodyDump do)",
		slog.Int("status", status), slog.String("route", x.r.Pattern), slog.Any("error", x.err))
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
	res := echo.NewResponse(w, c.Logger())
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
	if !committed(c.Response()) && echosOwn(c, x.err) {
		stethttp.NoRoute(r.Context())
	}
	stethttp.Returned(r.Context(), x.err)
	c.Echo().HTTPErrorHandler(c, x.err)
}

// committed reports whether a response has begun.
func committed(w http.ResponseWriter) bool {
	res, err := echo.UnwrapResponse(w)
	return err == nil && res.Committed
}
