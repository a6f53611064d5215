package stetfiber_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetfiber"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/adaptertest"
	"github.com/stet-go/stet/store/memory"
)

// TestUse_HandlerThatAnswers404: a handler in App.Use answers itself, which is an outcome.
func TestUse_HandlerThatAnswers404(t *testing.T) {
	s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, once fiber.Handler) {
		s.app.Use(once)
		s.app.Use("/own", s.count(func(c fiber.Ctx) error { return c.Status(404).SendString("own") }))
	})
	for _, replayed := range []bool{false, true} {
		s.want("a 404", s.post("/own", "{}"), 404, "own", replayed)
	}
	s.ran(1)
}

// TestNameIsThatOfTheRoute: it is known on a route only.
func TestNameIsThatOfTheRoute(t *testing.T) {
	name := func(c fiber.Ctx) error { return c.SendString(stet.FromContext(c.Context()).Op().Name) }
	s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, once fiber.Handler) {
		s.app.Post("/orders/:id", once, name)
		s.app.Group("/v1", once).Post("/orders/:id", name)
	})
	s.want("on a route", s.order(), 200, "POST /orders/:id", false)
	s.want("on a group", s.post("/v1/orders/8", "", "Idempotency-Key", "k2"), 200, "POST /v1/orders/8", false)
}

// TestRestartRouting_DoesNotRunTwice: if the routes lead to the middleware again, it cannot
// say that nothing was executed.
func TestRestartRouting_DoesNotRunTwice(t *testing.T) {
	for name, wire := range map[string]func(s *shop, once, restart, other fiber.Handler){
		"by Use": func(s *shop, once, restart, other fiber.Handler) {
			s.app.Use(once)
			s.app.Post("/orders/:id", restart)
			s.app.Post("/other", other)
		},
		"by route": func(s *shop, once, restart, other fiber.Handler) {
			s.app.Post("/orders/:id", once, restart)
			s.app.Post("/other", once, other)
		},
	} {
		s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, once fiber.Handler) {
			wire(s, once, s.count(func(c fiber.Ctx) error { c.Path("/other"); return c.RestartRouting() }), func(c fiber.Ctx) error { return c.SendString("other") })
		})
		s.want(name, s.order(), 500, "misconfigured", false)
		s.want(name+": the retry", s.order(), 500, "misconfigured", true)
		s.ran(1)
	}
}

// TestAbortDoesNotAffectOtherRequests: an adaptor that serves the app gives them the same
// context, which still has an earlier hijacking.
func TestAbortDoesNotAffectOtherRequests(t *testing.T) {
	s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, once fiber.Handler) {
		s.app.Post("/abort", once, func(fiber.Ctx) error { panic(http.ErrAbortHandler) })
		s.app.Post("/orders/:id", once, func(c fiber.Ctx) error { return c.Status(201).SendString("paid") })
	})
	h := adaptor.FiberApp(s.app)
	for i := range 20 {
		for path, status := range map[string]int{"/abort": 500, "/orders/7": 201} {
			r := httptest.NewRequest("POST", path, strings.NewReader("{}"))
			r.Header.Set("Idempotency-Key", path+strconv.Itoa(i))
			w := httptest.NewRecorder()
			if h(w, r); w.Code != status {
				t.Fatalf("%s: got %d %q", path, w.Code, w.Body)
			}
		}
	}
}

// TestHandlerThatCannotBeCalledAgain: Fiber's Next would call the one after it.
func TestHandlerThatCannotBeCalledAgain(t *testing.T) {
	s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, _ fiber.Handler) {
		s.app.Use(stetfiber.Middleware(s.Tx.Middleware))
		s.app.Post("/orders/:id", s.count(func(c fiber.Ctx) error { return c.Status(201).SendString("paid") }), func(fiber.Ctx) error {
			t.Error("the next handler was called")
			return nil
		})
	})
	s.Overtake()
	s.want("an order", s.order("Prefer", "wait=10"), 503, "not-executed", false)
	s.ran(1)
}

// TestHandleTx_RequestWithoutTransaction is answered by the error handler: Fiber does not
// recover a panic.
func TestHandleTx_RequestWithoutTransaction(t *testing.T) {
	s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, _ fiber.Handler) {
		s.app.Put("/orders/:id", stetfiber.HandleTx(s.Tx, func(fiber.Ctx, *adaptertest.Tx) error { s.runs.Add(1); return nil }))
	})
	s.want("a PUT", adaptertest.Send(t, "PUT", s.url+"/orders/7", ""), 500, "stetfiber: a request reached a handler of HandleTx unprotected", false)
	s.ran(0)
}

func TestWrongWiringPanics(t *testing.T) {
	b := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{})
	adaptertest.WantPanic(t, "Middleware needs the result of stethttp.New", func() { stetfiber.Middleware(nil) })
	adaptertest.WantPanic(t, "HandleTx needs the result of stethttp.NewTx", func() { stetfiber.HandleTx(nil, func(fiber.Ctx, *adaptertest.Tx) error { return nil }) })
	adaptertest.WantPanic(t, "and a handler", func() { stetfiber.HandleTx(b.Tx, nil) })
	req, _ := http.NewRequest(http.MethodPost, "/", http.NoBody) //nolint:noctx // it is not sent
	if stetfiber.Context(req) != nil {
		t.Error("a request of another server has a context of Fiber's")
	}
}

// TestPreforkNeedsASharedStore: what one process has run, another would run again.
func TestPreforkNeedsASharedStore(t *testing.T) {
	m := stethttp.Must(stethttp.New(stettest.Engine(t, memory.New(memory.Options{}), stet.Options{}), stethttp.Options{Scope: stethttp.SingleTenant}))
	stetfiber.Middleware(m)
	t.Setenv("FIBER_PREFORK_CHILD", "1")
	adaptertest.WantPanic(t, "use a store that the processes share", func() { stetfiber.Middleware(m) })
}
