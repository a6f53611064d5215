// Package echotest has the tests that stetecho and stetecho4 share. The types of the two
// major versions of Echo differ; the tests have them as type parameters.
package echotest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/adaptertest"
)

// Tx is a transaction of the tests.
type Tx = adaptertest.Tx

// Context has the methods that echo.Context has in both versions.
type Context interface {
	Request() *http.Request
	Param(name string) string
	Get(key string) any
	Set(key string, value any)
	Bind(into any) error
	Blob(status int, contentType string, body []byte) error
	String(status int, text string) error
	HTML(status int, text string) error
	JSON(status int, value any) error
	XML(status int, value any) error
	NoContent(status int) error
	Redirect(status int, url string) error
	Inline(file, name string) error
	Stream(status int, contentType string, r io.Reader) error
}

// Routes are an instance of Echo or a group. R is what registration returns.
type Routes[H, M, R any] interface {
	Add(method, path string, h H, m ...M) R
	RouteNotFound(path string, h H, m ...M) R
	Use(m ...M)
}

// Echo is an instance of Echo with groups of type G.
type Echo[H, M, R, G any] interface {
	Routes[H, M, R]
	http.Handler
	Pre(m ...M)
	Group(prefix string, m ...M) G
}

// Response has the methods that echo.Response has in both versions.
type Response interface {
	http.ResponseWriter
	Before(func())
	After(func())
	Flush()
	Hijack() (net.Conn, *bufio.ReadWriter, error)
	Unwrap() http.ResponseWriter
}

// State has the fields of echo.Response.
type State struct {
	Status    int
	Size      int64
	Committed bool
}

// Framework is a version of Echo and its adapter. Types: context, handler, middleware,
// result of a registration, group, instance. Every field is required apart from Lacks and Wirings.
type Framework[C Context, H ~func(C) error, M ~func(H) H, R any, G Routes[H, M, R], E Echo[H, M, R, G]] struct {
	// New returns an instance with a logger, whose output is discarded, and Recover.
	New        func() E
	Middleware func(*stethttp.Middleware) M
	HandleTx   func(*stethttp.TxMiddleware[*Tx], func(C, *Tx) error) H
	// ContextOf is the adapter's Context; ok is false for nil.
	ContextOf func(*http.Request) (c C, ok bool)
	// Bare returns a context that no router has seen.
	Bare func(*http.Request, http.ResponseWriter) C

	Writer   func(C) http.ResponseWriter // C.Response
	Response func(C) Response            // the echo.Response in that
	State    func(C) State

	SetErrorHandler func(E, func(C, error))
	HandleError     func(C, error)
	HTTPError       func(status int, text string) error
	StatusOf        func(error) int // 0 if err is no echo.HTTPError
	WrapHandler     func(http.Handler) H

	// Around and Inside are Echo's own middleware for TestUseAroundOthersConforms. Around
	// compresses.
	Around, Inside []M
	// Lacks is Adapter.Lacks for that test. It may be nil.
	Lacks map[adaptertest.Ability]string
	// Companions replace the response, and restore it before errors are handled.
	Companions map[string][]M
	// Limit allows bodies of 10 bytes.
	Limit M
	// Wirings are more ways to register middleware than a route, a group and Use. Each
	// returns the function that registers a route.
	Wirings map[string]func(e E, chain []M) func(method, path string, h H)
	// BehindOthers registers two middlewares, so that requests without a route reach them.
	BehindOthers map[string]func(e E, m ...M)
	// Panics are wrong uses, by the text of their panic.
	Panics map[string]func()
}

var errBank = errors.New("the bank is closed")

// paid answers 201.
func paid(c Context) error { return c.String(http.StatusCreated, "paid") }

// call is an adaptertest.Call over a context of Echo.
type call struct {
	c         Context
	w         http.ResponseWriter
	status    func() int
	httpError func(status int, text string) error
}

func (f *Framework[C, H, M, R, G, E]) call(c C) call {
	return call{c, f.Writer(c), func() int { return f.State(c).Status }, f.HTTPError}
}

func (c call) Context() context.Context     { return c.c.Request().Context() }
func (c call) Param(name string) string     { return c.c.Param(name) }
func (c call) Body() ([]byte, error)        { return io.ReadAll(c.c.Request().Body) }
func (c call) NoContent(status int) error   { return c.c.NoContent(status) }
func (c call) AddHeader(name, value string) { c.w.Header().Add(name, value) }
func (c call) Writer() io.Writer            { return c.w }
func (c call) Flush() error                 { return http.NewResponseController(c.w).Flush() }
func (c call) Status() int                  { return c.status() }

func (c call) Send(status int, contentType string, body []byte) error {
	return c.c.Blob(status, contentType, body)
}

func (c call) Abort(status int, text string) error { return c.httpError(status, text) }

// around is middleware that calls before and after the next handler. Both may be nil.
func (f *Framework[C, H, M, R, G, E]) around(before func(C), after func(C, error) error) M {
	return func(next H) H {
		return func(c C) error {
			if before != nil {
				before(c)
			}
			err := next(c)
			if after != nil {
				return after(c, err)
			}
			return err
		}
	}
}

// chain is the adapter's middleware with that of a route around it and inside.
func (f *Framework[C, H, M, R, G, E]) chain(m *stethttp.Middleware, r adaptertest.Route) (list []M) {
	link := func(m adaptertest.Middleware) {
		if m == nil {
			return
		}
		list = append(list, func(next H) H {
			return func(c C) error {
				// The writer that a middleware finds after next may be another one.
				x := f.call(c)
				return m(&x, func() error { defer func() { x = f.call(c) }(); return next(c) })
			}
		})
	}
	link(r.Around)
	list = append(list, f.Middleware(m))
	if r.Twice {
		list = append(list, f.Middleware(m))
	}
	link(r.Inside)
	return list
}

// adapter is Echo with a chain that wire registers.
func (f *Framework[C, H, M, R, G, E]) adapter(wire func(e E, chain []M) func(method, path string, h H)) adaptertest.Adapter {
	return adaptertest.Adapter{
		Serve: func(t testing.TB, m *stethttp.Middleware, routes []adaptertest.Route) string {
			e := f.New()
			add := wire(e, f.chain(m, routes[0]))
			for _, r := range routes {
				add(r.Method, r.Colon(), func(c C) error { return r.Handle(f.call(c)) })
			}
			return adaptertest.Serve(t, e)
		},
		ServeTx: func(t testing.TB, m *stethttp.TxMiddleware[*Tx], routes []adaptertest.Route) string {
			e := f.New()
			for _, r := range routes {
				var outer []M
				if r.Twice {
					outer = append(outer, f.Middleware(m.Middleware))
				}
				e.Add(r.Method, r.Colon(), f.HandleTx(m, func(c C, tx *Tx) error { return r.HandleTx(f.call(c), tx) }), outer...)
			}
			return adaptertest.Serve(t, e)
		},
		Chains: true, Seals: true, Recovers: true,
	}
}

// use registers the chain with Use.
func (f *Framework[C, H, M, R, G, E]) use(e E, chain []M) func(method, path string, h H) {
	e.Use(chain...)
	return func(method, path string, h H) { e.Add(method, path, h) }
}

// Run runs all tests.
func (f Framework[C, H, M, R, G, E]) Run(t *testing.T) {
	wirings := map[string]func(e E, chain []M) func(method, path string, h H){
		"Route": func(e E, chain []M) func(method, path string, h H) {
			return func(method, path string, h H) { e.Add(method, path, h, chain...) }
		},
		"Group": func(e E, chain []M) func(method, path string, h H) {
			g := e.Group("", chain...)
			return func(method, path string, h H) { g.Add(method, path, h) }
		},
	}
	for name, wire := range f.Wirings {
		wirings[name] = wire
	}
	for name, wire := range wirings {
		t.Run(name+"Conforms", func(t *testing.T) { adaptertest.Run(t, f.adapter(wire)) })
	}
	t.Run("UseConforms", func(t *testing.T) { adaptertest.Run(t, f.txInContext(f.adapter(f.use))) })
	t.Run("UseAroundOthersConforms", func(t *testing.T) {
		a := f.adapter(func(e E, chain []M) func(method, path string, h H) {
			e.Use(f.Around...)
			e.Use(chain...)
			e.Use(f.Inside...)
			return func(method, path string, h H) { e.Add(method, path, h) }
		})
		a.Seals, a.Compressed, a.Lacks = false, true, f.Lacks
		adaptertest.Run(t, a)
	})
	t.Run("CarelessErrorHandlerConforms", func(t *testing.T) {
		adaptertest.Run(t, f.adapter(func(e E, chain []M) func(method, path string, h H) {
			f.SetErrorHandler(e, f.careless)
			return f.use(e, chain)
		}))
	})
	for name, test := range map[string]func(*testing.T){
		"ErrorsAreAnsweredInside": f.errorsAreAnsweredInside, "AnsweredErrorIsNotAnsweredAgain": f.answeredErrorIsNotAnsweredAgain, "ErrorAfterAResponseRollsBack": f.errorAfterAResponseRollsBack,
		"SilentErrorHandlerIsLoud": f.silentErrorHandlerIsLoud, "ResponsesAreThoseOfEcho": f.responsesAreThoseOfEcho, "Context": f.context, "Hooks": f.hooks,
		"InformationalStatus": f.informationalStatus, "UnprotectedRequestHasEchosOwnResponse": f.unprotectedRequest, "BodyLimitAround": f.bodyLimitAround,
		"UnknownRouteBehindOthers": f.unknownRouteBehindOthers, "RouteNotFoundIsProtected": f.routeNotFoundIsProtected, "Pre": f.pre, "ContextWithoutRouter": f.contextWithoutRouter,
	} {
		t.Run(name, test)
	}
	t.Run("WrongWiringPanics", func(t *testing.T) {
		for text, wire := range f.Panics {
			adaptertest.WantPanic(t, text, wire)
		}
	})
}

// careless is an HTTPErrorHandler that does not check whether the response is committed.
func (f *Framework[C, H, M, R, G, E]) careless(c C, err error) {
	status := http.StatusInternalServerError
	if s := f.StatusOf(err); s > 0 {
		status = s
	}
	_ = c.JSON(status, map[string]any{"error": err.Error()})
}

// txInContext has handlers find their transaction in the context.
func (f *Framework[C, H, M, R, G, E]) txInContext(a adaptertest.Adapter) adaptertest.Adapter {
	a.ServeTx = func(t testing.TB, m *stethttp.TxMiddleware[*Tx], routes []adaptertest.Route) string {
		e := f.New()
		e.Use(f.chain(m.Middleware, routes[0])...)
		for _, r := range routes {
			e.Add(r.Method, r.Colon(), func(c C) error { return r.HandleTx(f.call(c), stethttp.Tx[*Tx](c.Request().Context())) })
		}
		return adaptertest.Serve(t, e)
	}
	return a
}
