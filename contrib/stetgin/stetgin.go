package stetgin

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"reflect"

	"github.com/gin-gonic/gin"

	"github.com/stet-go/stet/stethttp"
)

// Middleware makes m a middleware of Gin's, for Use of an engine or a group, or for a
// single route. It panics if m is nil.
//
// What is registered after it runs inside, as the handler does, and only for requests that
// run: not for replays and refusals, which end the chain with gin.Context.Abort. A request
// that has no route passes through, to Gin's answer 404 or 405, unless the service has a
// handler for such requests (gin.Engine.NoRoute, NoMethod): that one is protected, too.
func Middleware(m *stethttp.Middleware) gin.HandlerFunc {
	if m == nil {
		panic("stetgin: Middleware needs what stethttp.New returns; for NewTx it is the Middleware in that")
	}
	h := protect(m, (*gin.Context).Next)
	return func(c *gin.Context) {
		if !unrouted(c) {
			h(c)
		}
	}
}

// HandleTx makes h a handler that m protects, and that gets its transaction. Its response
// decides what becomes of that, as stethttp.NewTx says; a response of 400 and above with an
// error (gin.Context.Error, AbortWithError) rolls back, and a 4xx is stored after the
// rollback (stethttp.Returned). Handlers that are registered after
// it run inside, too. A request that passes through unprotected, because of its method or
// for want of a key where it is optional, has no transaction: then it panics before h is
// called. Do not register Middleware around it: it is one.
func HandleTx[T any](m *stethttp.TxMiddleware[T], h func(*gin.Context, T)) gin.HandlerFunc {
	switch {
	case m == nil || m.Middleware == nil:
		panic("stetgin: HandleTx needs what stethttp.NewTx returns")
	case h == nil:
		panic("stetgin: HandleTx needs a handler")
	}
	return protect(m.Middleware, func(c *gin.Context) {
		h(c, stethttp.Tx[T](c.Request.Context()))
		c.Next()
	})
}

// Context returns Gin's context of a request, for the functions of stethttp.Options: a
// Scope finds in it what authentication has set, and parameters of the route. It is valid
// while the request is served. Of other requests it is nil.
func Context(r *http.Request) *gin.Context {
	if x, ok := r.Context().Value(exchangeKey{}).(*exchange); ok {
		return x.c
	}
	return nil
}

type exchangeKey struct{}

// exchange is one request on its way through stethttp, and the http.ResponseWriter that
// stethttp answers with: Gin's own, so that what is around sees the status.
type exchange struct {
	gin.ResponseWriter
	c       *gin.Context
	r       *http.Request // as stethttp gets it
	log     *slog.Logger
	calls   int         // of what is inside, protected
	wrote   bool        // content
	through bool        // it passes through unprotected
	before  gin.Context // before the first call
}

// Unwrap is for http.ResponseController.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// Write implements http.ResponseWriter.
func (x *exchange) Write(p []byte) (int, error) {
	x.wrote = true
	return x.ResponseWriter.Write(p)
}

// protect puts what inner does under m.
func protect(m *stethttp.Middleware, inner gin.HandlerFunc) gin.HandlerFunc {
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := r.Context().Value(exchangeKey{}).(*exchange)
		if w == http.ResponseWriter(x) {
			x.pass(r, inner)
			return
		}
		x.call(w, r, inner)
	}))
	return func(c *gin.Context) {
		x := &exchange{ResponseWriter: c.Writer, c: c, log: m.Log()}
		x.r = c.Request.WithContext(context.WithValue(c.Request.Context(), exchangeKey{}, x))
		if path := c.FullPath(); path != "" {
			x.r.Pattern = path
		}
		x.serve(h)
	}
}

// serve has stethttp answer, or pass the request through.
func (x *exchange) serve(h http.Handler) {
	r, returned := x.c.Request, false
	defer func() {
		if r.MultipartForm == nil {
			r.MultipartForm = x.r.MultipartForm // the server removes its files
		}
		if !x.through {
			x.seal(returned)
		}
	}()
	h.ServeHTTP(x, x.r)
	returned = true
}

// seal keeps the response unchanged, now that it stands. What has panicked without one may
// be answered by what is around; gin.Recovery leaves some panics unanswered, which must not
// end as an empty 200.
func (x *exchange) seal(returned bool) {
	if !returned {
		x.WriteHeader(http.StatusInternalServerError) // stored, unless the response has begun
	} else {
		if !x.wrote { // what is around may hold content back, to add fields for it
			x.WriteHeaderNow()
		}
		if x.calls == 0 {
			x.c.Abort()
		}
	}
	if x.Written() || x.wrote {
		x.c.Writer = &sealed{ResponseWriter: x.ResponseWriter, log: x.log, r: x.r, told: !returned}
	}
}

// pass calls what is inside, unprotected. The request differs from that which came if
// stethttp has read its body.
func (x *exchange) pass(r *http.Request, inner gin.HandlerFunc) {
	x.through = true
	if r != x.r {
		was := x.c.Request
		x.c.Request = r
		defer func() { x.c.Request = was }()
	}
	inner(x.c)
}

// call calls what is inside, with w as the writer. It may be called again for the same
// request (stethttp.NewTx, Options.Tries).
func (x *exchange) call(w http.ResponseWriter, r *http.Request, inner gin.HandlerFunc) {
	c := x.c
	if x.calls++; x.calls == 1 {
		assign(&x.before, c)
	} else {
		assign(c, &x.before) // whose handlers are yet to be called
	}
	c.Keys = maps.Clone(x.before.Keys)
	outer := c.Request
	rw := &writer{ResponseWriter: w, ctx: r.Context(), status: x.Status(), size: unwritten}
	c.Writer, c.Request = rw, r
	defer func() {
		rw.end()
		c.Writer, c.Request = x.ResponseWriter, outer
	}()
	errs := len(c.Errors)
	inner(c)
	if len(c.Errors) > errs && rw.status >= http.StatusBadRequest {
		stethttp.Returned(r.Context(), c.Errors.Last().Err)
	}
	switch {
	case rw.Written():
	case c.FullPath() == "" && rw.status == x.Status() && rw.status != http.StatusOK:
		notFound(rw)
	case rw.set:
		rw.WriteHeaderNow()
	case len(c.Errors) > errs:
		x.log.ErrorContext(r.Context(), "stetgin: gin.Context.Error was called, and nothing inside of the middleware has answered: "+
			"register the middleware that answers errors after stetgin's, so that it runs inside and its answer is the outcome",
			slog.String("route", c.FullPath()))
	}
}

// notFound answers as Gin does for a request that has no route, after handlers for such
// requests that have not answered.
func notFound(rw *writer) {
	rw.Header().Set("Content-Type", gin.MIMEPlain)
	body := "404 page not found"
	if rw.status == http.StatusMethodNotAllowed {
		body = "405 method not allowed"
	}
	_, _ = rw.WriteString(body)
}

// unrouted reports whether there is nothing to protect: the request has no route, so that
// Gin answers once all middleware has returned, and the service has no handler for such
// requests, which is not exported. Where that cannot be seen, there is one.
func unrouted(c *gin.Context) bool {
	if c.FullPath() != "" {
		return false
	}
	field := "noRoute"
	switch c.Writer.Status() {
	case http.StatusNotFound:
	case http.StatusMethodNotAllowed:
		field = "noMethod"
	default: // not by way of an engine
		return false
	}
	engine := reflect.ValueOf(c).Elem().FieldByName("engine")
	if engine.Kind() != reflect.Pointer || engine.IsNil() {
		return false
	}
	handlers := engine.Elem().FieldByName(field)
	return handlers.Kind() == reflect.Slice && handlers.Len() == 0
}

// assign makes *to what *from is: which handler is the next is not exported, and what
// is in a Context's caches and errors is that of the call which is undone. Its lock is
// not held: Gin has goroutines use gin.Context.Copy.
func assign(to, from *gin.Context) { reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from).Elem()) }
