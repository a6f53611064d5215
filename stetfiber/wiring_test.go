package stetfiber_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/stettest"
	"github.com/stet-go/stet/stetfiber"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// TestRouteThatIsMissingIsNoOutcome: once there is one, the key can be used. What a
// handler in App.Use answers itself is an outcome, also if it is 404.
func TestRouteThatIsMissingIsNoOutcome(t *testing.T) {
	var m *stethttp.Middleware
	before := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, once fiber.Handler) {
		m = s.m
		s.app.Use(once)
		s.app.Get("/orders/:id", func(c fiber.Ctx) error { return c.SendString("order") })
		s.app.Use("/own", s.count(func(c fiber.Ctx) error { return c.Status(404).SendString("own") }))
	})
	for range 2 {
		before.want("405", before.order(), 405, "Method Not Allowed", false)
		before.want("404", before.send("POST", "/nothing", "{}", "Idempotency-Key", "k2"), 404, "", false)
		before.want("404 of another path", before.send("POST", "/typo", "{}", "Idempotency-Key", "k2"), 404, "", false)
	}
	for _, replayed := range []bool{false, true} {
		before.want("a 404 of a handler's", before.send("POST", "/own", "{}", "Idempotency-Key", "k3"), 404, "own", replayed)
	}
	before.ran(1)

	own := sell(t, func(fiber.Ctx) error { return fiber.ErrNotFound })
	for _, replayed := range []bool{false, true} {
		own.want("a 404 that a route's handler returns", own.order(), 404, "Not Found", replayed)
	}
	own.ran(1)

	after := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, _ fiber.Handler) {
		s.app.Use(stetfiber.Middleware(m))
		paid := s.count(func(c fiber.Ctx) error { return c.Status(201).SendString("paid") })
		s.app.Post("/orders/:id", paid).Post("/nothing", paid)
	})
	after.want("the route that refused", after.order(), 201, "paid", false)
	after.want("the route that was missing", after.send("POST", "/nothing", "{}", "Idempotency-Key", "k2"), 201, "paid", false)
	after.ran(2)
}

// TestNameIsThatOfTheRoute, where it is known.
func TestNameIsThatOfTheRoute(t *testing.T) {
	name := func(c fiber.Ctx) error { return c.SendString(stet.FromContext(c.Context()).Op().Name) }
	s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, once fiber.Handler) {
		s.app.Post("/orders/:id", once, name)
		s.app.Group("/v1", once).Post("/orders/:id", name)
	})
	s.want("on a route", s.order(), 200, "POST /orders/:id", false)
	s.want("on a group", s.send("POST", "/v1/orders/8", "", "Idempotency-Key", "k2"), 200, "POST /v1/orders/8", false)
}

// TestTwiceIsLoud: the handler is not called, and the key can be used when the wiring
// is mended.
func TestTwiceIsLoud(t *testing.T) {
	s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, once fiber.Handler) {
		s.app.Use("/twice", once)
		paid := s.count(func(c fiber.Ctx) error { return c.Status(201).Send(c.Body()) })
		s.app.Post("/twice/:id", once, paid)
	})
	for range 2 {
		s.want("twice", s.send("POST", "/twice/7", "{}", "Idempotency-Key", "k"), 500, "misconfigured", false)
	}
	s.ran(0)
	if !strings.Contains(s.log.String(), "level=ERROR") {
		t.Error("the log does not say so")
	}
}

// TestTwiceOnARouteIsLoud, as by Use.
func TestTwiceOnARouteIsLoud(t *testing.T) {
	s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, once fiber.Handler) {
		s.app.Post("/orders/:id", once, once, s.count(func(c fiber.Ctx) error { return c.SendStatus(201) }))
	})
	for range 2 {
		s.want("twice", s.order(), 500, "misconfigured", false)
	}
	s.ran(0)

	s = open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, once fiber.Handler) {
		s.app = fiber.NewWithCustomCtx(func(app *fiber.App) fiber.CustomCtx { return &ownCtx{DefaultCtx: *fiber.NewDefaultCtx(app)} })
		s.app.Post("/orders/:id", once, once, s.count(func(c fiber.Ctx) error { return c.SendStatus(201) }))
	})
	for range 2 {
		s.want("twice, with a context of the service's own", s.order(), 500, "misconfigured", false)
	}
	s.ran(0)
}

// ownCtx is a context of a service's own.
type ownCtx struct{ fiber.DefaultCtx }

// TestHandlerThatRestartsRoutingDoesNotRunTwice: where the routes lead to the middleware
// again, it cannot say that nothing was executed.
func TestHandlerThatRestartsRoutingDoesNotRunTwice(t *testing.T) {
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

// TestAbortSaysNothingOfOtherRequests, also where an adaptor serves the app: it gives them
// the same context, in which an earlier hijacking still is.
func TestAbortSaysNothingOfOtherRequests(t *testing.T) {
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

// TestReplayCallsNothingBehind, also no middleware.
func TestReplayCallsNothingBehind(t *testing.T) {
	behind := 0
	s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, once fiber.Handler) {
		s.app.Post("/orders/:id", once, func(c fiber.Ctx) error { behind++; return c.Next() }, s.count(func(c fiber.Ctx) error { return c.SendStatus(201) }),
			func(fiber.Ctx) error { behind++; return nil })
	})
	for _, replayed := range []bool{false, true, true} {
		s.want("an order", s.order(), 201, "Created", replayed)
	}
	if s.ran(1); behind != 1 {
		t.Errorf("other handlers were called %d times", behind)
	}
}

// twice is a store whose first transaction finds, when it commits, that another one has
// been faster. The other is then rolled back.
type twice struct {
	*memory.Store
	calls int
}

func (s *twice) RunTx(ctx context.Context, req store.ClaimRequest, _ store.Retention, fn func(context.Context, *int, store.Record) (store.Settlement, error)) (store.Record, error) {
	rec := store.Record{ID: req.ID, Scope: req.Scope, State: store.Running, Owner: req.Owner, Fence: 1, Attempt: 1, Fingerprint: req.Fingerprint, InTx: true}
	s.calls++
	n := s.calls
	out, err := fn(ctx, &n, rec)
	switch {
	case err != nil:
		return rec, err
	case n == 1:
		rec.Owner[0]++
		return rec, nil
	}
	rec.State, rec.Result, rec.Gone = out.State, out.Result, out.Gone
	return rec, nil
}

func (s *twice) SettleTx(ctx context.Context, _ *int, c store.Claim, out store.Settlement, keep store.Retention) error {
	return s.Settle(ctx, c, out, keep)
}

func twiceTx(t testing.TB) *stethttp.TxMiddleware[*int] {
	t.Helper()
	s := &twice{Store: memory.New(memory.Options{})}
	te, err := stet.WithTx(stettest.Engine(t, s, stet.Options{}), s)
	if err != nil {
		t.Fatal(err)
	}
	return stethttp.Must(stethttp.NewTx(te, stethttp.Options{Scope: stethttp.SingleTenant}))
}

// TestSecondCallStartsAgain: with the body from its beginning and a new response.
func TestSecondCallStartsAgain(t *testing.T) {
	for name, config := range map[string]fiber.Config{"": {}, "streamed requests": {StreamRequestBody: true}} {
		m := twiceTx(t)
		s := open(t, config, stet.Options{}, stethttp.Options{}, func(s *shop, _ fiber.Handler) {
			s.app.Post("/orders/:id", stetfiber.HandleTx(m, func(c fiber.Ctx, tx *int) error {
				s.runs.Add(1)
				if *tx == 1 {
					c.Set("X-First", "1")
					copy(c.Body(), "~~~~~~~~~")
					return c.Status(202).SendString("first")
				}
				return c.Status(201).SendString(c.Params("id") + string(c.Body()))
			}))
		})
		r := s.order("Prefer", "wait=10")
		s.want(name, r, 201, "7{}", false)
		if r.header.Get("X-First") != "" {
			t.Error("the response of the first call is in that of the second")
		}
		s.ran(2)
	}
}

// TestHandlerThatCannotBeCalledAgainSaysSo: Fiber's Next would call the one after it.
func TestHandlerThatCannotBeCalledAgainSaysSo(t *testing.T) {
	m := twiceTx(t)
	s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, _ fiber.Handler) {
		s.app.Use(stetfiber.Middleware(m.Middleware))
		s.app.Post("/orders/:id", s.count(func(c fiber.Ctx) error { return c.Status(201).SendString("paid") }), func(fiber.Ctx) error {
			t.Error("the next handler was called")
			return nil
		})
	})
	s.want("an order", s.order("Prefer", "wait=10"), 503, "not-executed", false)
	s.ran(1)
}

// TestRequestWithoutTransactionIsRefused: a panic, as in stethttp, would end the process,
// as Fiber recovers none.
func TestRequestWithoutTransactionIsRefused(t *testing.T) {
	m := twiceTx(t)
	s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, _ fiber.Handler) {
		s.app.Put("/orders/:id", stetfiber.HandleTx(m, func(fiber.Ctx, *int) error {
			s.runs.Add(1)
			return nil
		}))
	})
	s.want("a PUT", s.send("PUT", "/orders/7", "", "Idempotency-Key", "k"), 500, "stetfiber: a request reached a handler of HandleTx unprotected", false)
	s.ran(0)
}

// TestPreforkNeedsASharedStore: what one process has run, another would run again.
func TestPreforkNeedsASharedStore(t *testing.T) {
	m := stethttp.Must(stethttp.New(stettest.Engine(t, memory.New(memory.Options{}), stet.Options{}), stethttp.Options{Scope: stethttp.SingleTenant}))
	stetfiber.Middleware(m)
	t.Setenv("FIBER_PREFORK_CHILD", "1")
	defer func() {
		if said, _ := recover().(string); !strings.Contains(said, "use a store that the processes share") {
			t.Errorf("it said %q", said)
		}
	}()
	stetfiber.Middleware(m)
}

// TestNilIsRefusedAtOnce, and not at the first request.
func TestNilIsRefusedAtOnce(t *testing.T) {
	for name, wire := range map[string]func(){
		"Middleware":              func() { stetfiber.Middleware(nil) },
		"HandleTx, no middleware": func() { stetfiber.HandleTx(nil, func(fiber.Ctx, *int) error { return nil }) },
		"HandleTx, no handler":    func() { stetfiber.HandleTx(twiceTx(t), nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: nothing was said", name)
				}
			}()
			wire()
		}()
	}
	req, _ := http.NewRequest(http.MethodPost, "/", http.NoBody) //nolint:noctx // it is not sent
	if stetfiber.Context(req) != nil {
		t.Error("a request of another server has a context of Fiber's")
	}
}
