package stetgin

import (
	"log/slog"
	"maps"
	"net/http"
	"reflect"

	"github.com/gin-gonic/gin"

	"github.com/stet-go/stet/internal/exchange"
	"github.com/stet-go/stet/stethttp"
)

// Middleware returns m as middleware of Gin, for Use of an engine or a group, or for a single
// route. It panics if m is nil.
//
// Handlers that are registered after it run inside, and only for requests that run. Replays and
// refusals end the chain with gin.Context.Abort. A request without a route passes through to
// Gin's 404 or 405. If the service has a handler for such requests (gin.Engine.NoRoute,
// NoMethod), it is protected.
func Middleware(m *stethttp.Middleware) gin.HandlerFunc {
	if m == nil {
		panic("stetgin: Middleware needs the result of stethttp.New; for NewTx it is the Middleware in that")
	}
	h := protect(m, (*gin.Context).Next)
	return func(c *gin.Context) {
		if !unrouted(c) {
			h(c)
		}
	}
}

// HandleTx returns a handler that m protects, and that calls h with its transaction. The
// response of h decides the end of the transaction, see stethttp.NewTx. A response of 400 and
// above with an error (gin.Context.Error, AbortWithError) rolls back, and a 4xx is stored after
// the rollback (stethttp.Returned). Handlers that are registered after it run inside.
//
// It panics without calling h if a request passes unprotected, because of its method or of
// Options.Optional: there is no transaction. Do not register Middleware around it.
func HandleTx[T any](m *stethttp.TxMiddleware[T], h func(*gin.Context, T)) gin.HandlerFunc {
	switch {
	case m == nil || m.Middleware == nil:
		panic("stetgin: HandleTx needs the result of stethttp.NewTx")
	case h == nil:
		panic("stetgin: HandleTx needs a handler")
	}
	return protect(m.Middleware, func(c *gin.Context) {
		h(c, stethttp.Tx[T](c.Request.Context()))
		c.Next()
	})
}

// Context returns Gin's context of a request, for the functions of stethttp.Options: with the
// values that authentication has set, and the parameters of the route. It is valid until the
// request ends. It is nil for other requests.
func Context(r *http.Request) *gin.Context { return exchange.Context[*gin.Context](r) }

// call is one request, and the http.ResponseWriter of stethttp: Gin's own, so that outer
// middleware sees the status.
type call struct {
	gin.ResponseWriter
	exchange.Exchange
	c      *gin.Context
	inner  gin.HandlerFunc
	log    *slog.Logger
	calls  int         // of inner, protected
	wrote  bool        // content
	before gin.Context // before the first call
}

// Unwrap is for http.ResponseController.
func (x *call) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// Write implements http.ResponseWriter.
func (x *call) Write(p []byte) (int, error) {
	x.wrote = true
	return x.ResponseWriter.Write(p)
}

// protect returns inner, protected by m.
func protect(m *stethttp.Middleware, inner gin.HandlerFunc) gin.HandlerFunc {
	h := exchange.Handler(m)
	return func(c *gin.Context) {
		x := &call{ResponseWriter: c.Writer, c: c, inner: inner, log: m.Log()}
		x.Exchange = exchange.Exchange{Framework: c, Call: x.call, Pass: x.pass}
		returned := false
		defer func() {
			if !x.Passed {
				x.seal(returned)
			}
		}()
		x.Begin(c.Request, c.FullPath())
		x.Serve(h, x)
		returned = true
	}
}

// seal ends the response. After a panic it is a 500, unless outer middleware responds:
// gin.Recovery leaves some panics without a response, which would be an empty 200.
func (x *call) seal(returned bool) {
	if !returned {
		x.WriteHeader(http.StatusInternalServerError) // stored, unless the response has begun
	} else {
		if !x.wrote { // outer middleware can hold content back, to add fields for it
			x.WriteHeaderNow()
		}
		if x.calls == 0 {
			x.c.Abort()
		}
	}
	if x.Written() || x.wrote {
		x.c.Writer = &sealed{x.ResponseWriter, exchange.Sealed{ResponseWriter: x.ResponseWriter, Adapter: "stetgin", Log: x.log, Request: x.Request, Logged: !returned,
			Advice: "register middleware that adds to responses, or responds to errors, after stetgin's"}}
	}
}

// pass calls the handlers inside, unprotected.
func (x *call) pass(r *http.Request) {
	if r != x.Request {
		was := x.c.Request
		x.c.Request = r
		defer func() { x.c.Request = was }()
	}
	x.inner(x.c)
}

// call calls the handlers inside, with w as the writer. stethttp can call it again for the same
// request (stethttp.NewTx, Options.Tries).
func (x *call) call(w http.ResponseWriter, r *http.Request) {
	c := x.c
	if x.calls++; x.calls == 1 {
		assign(&x.before, c)
	} else {
		assign(c, &x.before) // its handlers were not called
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
	x.inner(c)
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
		x.log.ErrorContext(r.Context(), "stetgin: gin.Context.Error was called, and no handler inside of the middleware has responded: "+
			"register the middleware that responds to errors after stetgin's, so that its response is the outcome",
			slog.String("route", c.FullPath()))
	}
}

// notFound writes Gin's response to a request without a route, if the service's handlers for
// such requests have not responded.
func notFound(rw *writer) {
	rw.Header().Set("Content-Type", gin.MIMEPlain)
	body := "404 page not found"
	if rw.status == http.StatusMethodNotAllowed {
		body = "405 method not allowed"
	}
	_, _ = rw.WriteString(body)
}

// unrouted reports whether there is no handler to protect: the request has no route, and the
// service no handler for such requests. Gin does not export that; if reflection does not find
// the field, the request is protected.
func unrouted(c *gin.Context) bool {
	if c.FullPath() != "" {
		return false
	}
	field := "noRoute"
	switch c.Writer.Status() {
	case http.StatusNotFound:
	case http.StatusMethodNotAllowed:
		field = "noMethod"
	default: // not from an engine
		return false
	}
	engine := reflect.ValueOf(c).Elem().FieldByName("engine")
	if engine.Kind() != reflect.Pointer || engine.IsNil() {
		return false
	}
	handlers := engine.Elem().FieldByName(field)
	return handlers.Kind() == reflect.Slice && handlers.Len() == 0
}

// assign copies *from to *to, by reflection because the index of the next handler is not
// exported. Caches and errors of the first call are undone. The lock of a Context is not held:
// goroutines must use gin.Context.Copy.
func assign(to, from *gin.Context) { reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from).Elem()) }
