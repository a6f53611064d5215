package stetfiber_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/recover"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetfiber"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/adaptertest"
)

var errBank = errors.New("the bank is closed")

// listen serves app on a port of its own until the test ends.
func listen(t testing.TB, app *fiber.App) (url string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- app.Listener(ln, fiber.ListenConfig{DisableStartupMessage: true}) }()
	t.Cleanup(func() {
		_ = ln.Close() // app.Shutdown waits for a tenth of a second
		if err := <-ended; err != nil {
			t.Errorf("Listener: %v", err)
		}
	})
	return "http://" + ln.Addr().String()
}

// call is an adaptertest.Call over Fiber's context.
type call struct{ c fiber.Ctx }

func (x call) Context() context.Context     { return x.c.Context() }
func (x call) Param(name string) string     { return x.c.Params(name) }
func (x call) Body() ([]byte, error)        { return x.c.Body(), nil }
func (x call) AddHeader(name, value string) { x.c.Response().Header.Add(name, value) }
func (x call) Send(status int, contentType string, body []byte) error {
	x.c.Set(fiber.HeaderContentType, contentType)
	return x.c.Status(status).Send(body)
}
func (x call) NoContent(status int) error {
	x.c.Status(status) // SendStatus would add a text
	return nil
}
func (x call) Writer() io.Writer { return x.c }
func (x call) Flush() error      { return nil }
func (x call) Status() int       { return x.c.Response().StatusCode() }
func (x call) Abort(status int, text string) error {
	if text == "" {
		return fiber.NewError(status)
	}
	return fiber.NewError(status, text)
}

// chain is stetfiber's middleware with that of a route around it and inside.
func chain(m *stethttp.Middleware, r adaptertest.Route) (list []any) {
	link := func(m adaptertest.Middleware) {
		if m != nil {
			list = append(list, func(c fiber.Ctx) error { return m(call{c}, c.Next) })
		}
	}
	link(r.Around)
	list = append(list, stetfiber.Middleware(m))
	if r.Twice {
		list = append(list, stetfiber.Middleware(m))
	}
	link(r.Inside)
	return list
}

// adapter is Fiber with a chain that wire registers, in apps that newApp makes.
func adapter(newApp func() *fiber.App, wire func(app *fiber.App, chain []any) func(method, path string, h any)) adaptertest.Adapter {
	return adaptertest.Adapter{
		Serve: func(t testing.TB, m *stethttp.Middleware, routes []adaptertest.Route) string {
			app := newApp()
			app.Use(recover.New())
			add := wire(app, chain(m, routes[0]))
			for _, r := range routes {
				add(r.Method, r.Colon(), func(c fiber.Ctx) error { return r.Handle(call{c}) })
			}
			return listen(t, app)
		},
		ServeTx: func(t testing.TB, m *stethttp.TxMiddleware[*adaptertest.Tx], routes []adaptertest.Route) string {
			app := newApp()
			app.Use(recover.New())
			for _, r := range routes {
				if r.Twice {
					app.Use(stetfiber.Middleware(m.Middleware))
				}
				app.Add([]string{r.Method}, r.Colon(), stetfiber.HandleTx(m, func(c fiber.Ctx, tx *adaptertest.Tx) error { return r.HandleTx(call{c}, tx) }))
			}
			return listen(t, app)
		},
		Chains: true, Recovers: true,
		Lacks: map[adaptertest.Ability]string{
			adaptertest.Streaming:  "Fiber sends a stream when all middleware has returned; stetfiber reads it before that, whole",
			adaptertest.LateWrites: "Fiber gives the context and its response to the next request when the handler has returned",
			adaptertest.Again:      "Fiber's Next would call the handler after it; a handler of HandleTx can be called again",
		},
	}
}

func plain() *fiber.App { return fiber.New() }

// onRoute has the middleware on each route.
func onRoute(app *fiber.App, chain []any) func(method, path string, h any) {
	return func(method, path string, h any) {
		list := append(chain[:len(chain):len(chain)], h)
		app.Add([]string{method}, path, list[0], list[1:]...)
	}
}

func TestRouteConforms(t *testing.T) { adaptertest.Run(t, adapter(plain, onRoute)) }

// beforeRouting is an adapter whose middleware runs before the app looks for a route.
func beforeRouting(wire func(app *fiber.App, chain []any) func(method, path string, h any)) adaptertest.Adapter {
	a := adapter(plain, wire)
	a.Lacks[adaptertest.Unrouted] = "Fiber finds out that there is no route when all handlers have returned"
	return a
}

func TestUseConforms(t *testing.T) {
	adaptertest.Run(t, beforeRouting(func(app *fiber.App, chain []any) func(method, path string, h any) {
		app.Use(chain...)
		return func(method, path string, h any) { app.Add([]string{method}, path, h) }
	}))
}

func TestGroupConforms(t *testing.T) {
	adaptertest.Run(t, beforeRouting(func(app *fiber.App, chain []any) func(method, path string, h any) {
		g := app.Group("/", chain...)
		return func(method, path string, h any) { g.Add([]string{method}, path, h) }
	}))
}

// ownCtx is a context of a service's own.
type ownCtx struct{ fiber.DefaultCtx }

// TestConfigurationsConform: these change how Fiber holds requests and writes responses.
func TestConfigurationsConform(t *testing.T) {
	apps := map[string]func() *fiber.App{"own context": func() *fiber.App {
		return fiber.NewWithCustomCtx(func(app *fiber.App) fiber.CustomCtx { return &ownCtx{DefaultCtx: *fiber.NewDefaultCtx(app)} })
	}}
	for name, config := range map[string]fiber.Config{
		"immutable":         {Immutable: true},
		"streamed requests": {StreamRequestBody: true, BodyLimit: 1000},
		"bare headers":      {DisableHeaderNormalizing: true, DisableDefaultContentType: true, DisableDefaultDate: true, ServerHeader: "test"},
		"no form parsing":   {DisablePreParseMultipartForm: true, ReduceMemoryUsage: true},
	} {
		apps[name] = func() *fiber.App { return fiber.New(config) }
	}
	for name, newApp := range apps {
		t.Run(name, func(t *testing.T) { adaptertest.Run(t, adapter(newApp, onRoute)) })
	}
}

// shop is an app with a bench, on a port of its own.
type shop struct {
	testing.TB
	*adaptertest.Bench
	app  *fiber.App
	url  string
	runs atomic.Int64
}

// open makes a shop. wire adds its routes, and once is the middleware.
func open(t testing.TB, config fiber.Config, eo stet.Options, o stethttp.Options, wire func(s *shop, once fiber.Handler)) *shop {
	t.Helper()
	s := &shop{TB: t, Bench: adaptertest.NewBench(t, eo, o), app: fiber.New(config)}
	wire(s, stetfiber.Middleware(s.Middleware))
	s.url = listen(t, s.app)
	return s
}

// sell makes a shop with a handler of POST /orders/:id behind the middleware.
func sell(t testing.TB, h fiber.Handler) *shop {
	t.Helper()
	return open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, once fiber.Handler) { s.app.Post("/orders/:id", once, s.count(h)) })
}

// count is h, counted.
func (s *shop) count(h fiber.Handler) fiber.Handler {
	return func(c fiber.Ctx) error {
		s.runs.Add(1)
		return h(c)
	}
}

// post sends a request under the key "k", unless header has another one.
func (s *shop) post(path, body string, header ...string) adaptertest.Reply {
	s.Helper()
	return adaptertest.Send(s, "POST", s.url+path, body, header...)
}

// order sends an order under the key "k".
func (s *shop) order(header ...string) adaptertest.Reply {
	s.Helper()
	return s.post("/orders/7", "{}", header...)
}

// want requires a response with a text in its body, which is or is not a replay.
func (s *shop) want(what string, r adaptertest.Reply, status int, text string, replayed bool) {
	s.Helper()
	if r.Err != nil || r.Status != status || !strings.Contains(r.Body, text) || r.Replayed() != replayed {
		s.Errorf("%s: got %v, replayed %v; want %d with %q, replayed %v", what, r, r.Replayed(), status, text, replayed)
	}
}

// ran requires that the handler was called n times.
func (s *shop) ran(n int64) {
	s.Helper()
	if got := s.runs.Load(); got != n {
		s.Errorf("the handler ran %d times; want %d", got, n)
	}
}

// wait waits for something that happens soon.
func wait(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatalf("waited for %s", what)
	}
}
