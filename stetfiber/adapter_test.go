package stetfiber_test

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/gofiber/fiber/v3"

	"github.com/stet-go/stet/stetfiber"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/adaptertest"
)

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

// call is a adaptertest.Call over Fiber's context.
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
func (x call) Abort(status int, text string) error {
	if text == "" {
		return fiber.NewError(status)
	}
	return fiber.NewError(status, text)
}

// skin is Fiber with the middleware as wire has it, in apps of config.
func skin(config fiber.Config, wire func(app *fiber.App, h fiber.Handler, r adaptertest.Route, handle fiber.Handler)) adaptertest.Adapter {
	return adaptertest.Adapter{
		Serve: func(t testing.TB, m *stethttp.Middleware, routes []adaptertest.Route) string {
			app := fiber.New(config)
			for _, r := range routes {
				wire(app, stetfiber.Middleware(m), r, func(c fiber.Ctx) error { return r.Handle(call{c}) })
			}
			return listen(t, app)
		},
		ServeTx: func(t testing.TB, m *stethttp.TxMiddleware[*adaptertest.Tx], routes []adaptertest.Route) string {
			app := fiber.New(config)
			for _, r := range routes {
				app.Add([]string{r.Method}, r.Colon(), stetfiber.HandleTx(m, func(c fiber.Ctx, tx *adaptertest.Tx) error { return r.HandleTx(call{c}, tx) }))
			}
			return listen(t, app)
		},
		Lacks: map[adaptertest.Ability]string{
			adaptertest.Streaming:  "Fiber sends a stream when all middleware has returned; stetfiber reads it before that, whole",
			adaptertest.LateWrites: "Fiber gives the context and its response to the next request when the handler has returned",
		},
	}
}

// onRoute has the middleware on the route itself.
func onRoute(app *fiber.App, m fiber.Handler, r adaptertest.Route, h fiber.Handler) {
	app.Add([]string{r.Method}, r.Colon(), m, h)
}

func TestRouteConforms(t *testing.T) { adaptertest.Run(t, skin(fiber.Config{}, onRoute)) }

func TestUseConforms(t *testing.T) {
	adaptertest.Run(t, skin(fiber.Config{}, func(app *fiber.App, m fiber.Handler, r adaptertest.Route, h fiber.Handler) {
		app.Use(m)
		app.Add([]string{r.Method}, r.Colon(), h)
	}))
}

func TestGroupConforms(t *testing.T) {
	adaptertest.Run(t, skin(fiber.Config{}, func(app *fiber.App, m fiber.Handler, r adaptertest.Route, h fiber.Handler) {
		app.Group("/", m).Add([]string{r.Method}, r.Colon(), h)
	}))
}

// TestConfigurationsConform are those that change how Fiber holds requests and writes
// responses.
func TestConfigurationsConform(t *testing.T) {
	for name, config := range map[string]fiber.Config{
		"immutable":         {Immutable: true},
		"streamed requests": {StreamRequestBody: true, BodyLimit: 1000},
		"bare headers":      {DisableHeaderNormalizing: true, DisableDefaultContentType: true, DisableDefaultDate: true, ServerHeader: "test"},
		"no form parsing":   {DisablePreParseMultipartForm: true, ReduceMemoryUsage: true},
	} {
		t.Run(name, func(t *testing.T) { adaptertest.Run(t, skin(config, onRoute)) })
	}
}
