package stetfiber_test

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/recover"
	"github.com/gofiber/fiber/v3/middleware/timeout"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/adaptertest"
)

// TestErrorHandlerAnswersInside, that of a mounted app too, so that a retry gets what
// the first caller got.
func TestErrorHandlerAnswersInside(t *testing.T) {
	handler := func(status int) fiber.Config {
		return fiber.Config{ErrorHandler: func(c fiber.Ctx, err error) error {
			c.Set("X-Error", err.Error())
			return c.Status(status).SendString("sorry")
		}}
	}
	s := open(t, handler(409), stet.Options{}, stethttp.Options{}, func(s *shop, once fiber.Handler) {
		s.app.Post("/orders/:id", once, s.count(func(fiber.Ctx) error { return errBank }))
		mounted := fiber.New(handler(418))
		mounted.Post("/tea", once, s.count(func(fiber.Ctx) error { return errBank }))
		s.app.Use("/mounted", mounted)
	})
	for _, replayed := range []bool{false, true} {
		r := s.order()
		s.want("an error", r, 409, "sorry", replayed)
		if r.Header.Get("X-Error") != errBank.Error() {
			t.Errorf("the header is %v", r.Header)
		}
		s.want("an error of a mounted app", s.post("/mounted/tea", "", "Idempotency-Key", "t"), 418, "sorry", replayed)
		s.ran(2)
	}
}

// TestErrorHandlerThatFails: Fiber's answer is then 500.
func TestErrorHandlerThatFails(t *testing.T) {
	s := open(t, fiber.Config{ErrorHandler: func(fiber.Ctx, error) error { return errBank }}, stet.Options{}, stethttp.Options{},
		func(s *shop, once fiber.Handler) {
			s.app.Post("/orders/:id", once, func(fiber.Ctx) error { return errBank })
		})
	s.want("the first", s.order(), 500, "Internal Server Error", false)
	s.want("the retry", s.order(), 500, "Internal Server Error", true)
}

// TestRecoverBehindTheMiddleware: the answer of the error handler is the outcome.
func TestRecoverBehindTheMiddleware(t *testing.T) {
	s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, once fiber.Handler) {
		s.app.Post("/orders/:id", once, recover.New(), func(fiber.Ctx) error { panic("in the middle") })
	})
	s.want("the first", s.order(), 500, "in the middle", false)
	s.want("the retry", s.order(), 500, "in the middle", true)
}

// TestAbortClosesTheConnection without an answer, and only that connection.
func TestAbortClosesTheConnection(t *testing.T) {
	s := sell(t, func(c fiber.Ctx) error {
		_ = c.Status(201).SendString("paid")
		panic(http.ErrAbortHandler)
	})
	if r := s.order(); r.Err == nil {
		t.Errorf("the client got %v", r)
	}
	s.want("the retry", s.order(), 500, "handler-panicked", true)
	s.ran(1)
}

// TestTimeoutBehindTheMiddlewareIsUnknown: the handler continues after any answer for
// it, also with an answer that would let a retry run.
func TestTimeoutBehindTheMiddlewareIsUnknown(t *testing.T) {
	for name, config := range map[string]timeout.Config{
		"408": {Timeout: time.Millisecond},
		"503": {Timeout: time.Millisecond, OnTimeout: func(c fiber.Ctx) error {
			c.Set("Retry-After", "1")
			return c.SendStatus(503)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			leave, left := make(chan struct{}), make(chan struct{})
			s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, once fiber.Handler) {
				s.app.Post("/orders/:id", once, timeout.New(s.count(func(c fiber.Ctx) error {
					defer close(left)
					<-leave
					for range 100 {
						_ = c.Status(201).SendString("paid " + c.Params("id"))
					}
					return nil
				}), config))
			})
			s.want("the first", s.order(), 504, "outcome-unknown", false)
			s.want("the second", s.order(), 504, "outcome-unknown", false)
			close(leave)
			wait(t, "the handler", left)
			s.ran(1)
		})
	}
}

// TestHeadersOfOthersAreNotStored: headers that outer middleware sets for each
// request, and cookies among them.
func TestHeadersOfOthersAreNotStored(t *testing.T) {
	n := 0
	s := open(t, fiber.Config{ServerHeader: "shop"}, stet.Options{}, stethttp.Options{}, func(s *shop, once fiber.Handler) {
		s.app.Use(func(c fiber.Ctx) error {
			n++
			c.Set("X-Request", fmt.Sprint(n))
			c.Set("X-Removed", "by the handler")
			c.Cookie(&fiber.Cookie{Name: "seen", Value: fmt.Sprint(n)})
			return c.Next()
		})
		s.app.Post("/orders/:id", once, s.count(func(c fiber.Ctx) error {
			c.Response().Header.Del("X-Removed")
			c.Response().Header.Add("X-Order", "a")
			c.Response().Header.Add("X-Order", "b")
			c.Cookie(&fiber.Cookie{Name: "session", Value: "secret"})
			return c.Status(201).SendString("paid")
		}))
	})
	for i, cookies := range []int{2, 1} {
		r := s.order()
		s.want("an order", r, 201, "paid", i == 1)
		h := r.Header
		if h.Get("X-Request") != fmt.Sprint(i+1) || h.Get("Server") != "shop" || h.Get("X-Removed") != "" || !slices.Equal(h["X-Order"], []string{"a", "b"}) || len(h["Set-Cookie"]) != cookies ||
			!strings.HasPrefix(h["Set-Cookie"][0], fmt.Sprintf("seen=%d", i+1)) {
			t.Errorf("the header of response %d is %v", i+1, h)
		}
	}
}

// TestResponsesAreAsFiberSendsThem, with and without the middleware.
func TestResponsesAreAsFiberSendsThem(t *testing.T) {
	handlers := map[string]fiber.Handler{
		"/text":     func(c fiber.Ctx) error { return c.SendString("paid") },
		"/json":     func(c fiber.Ctx) error { return c.JSON(fiber.Map{"paid": true}) },
		"/status":   func(c fiber.Ctx) error { return c.SendStatus(202) },
		"/none":     func(c fiber.Ctx) error { return c.SendStatus(204) },
		"/bare":     func(c fiber.Ctx) error { c.Status(202); return nil },
		"/typed":    func(c fiber.Ctx) error { c.Type("json"); c.Status(201); return nil },
		"/bytes":    func(c fiber.Ctx) error { return c.Send([]byte{0, 255, '\n'}) },
		"/redirect": func(c fiber.Ctx) error { return c.Redirect().Status(303).To("/elsewhere") },
		"/body204":  func(c fiber.Ctx) error { return c.Status(204).SendString("not sent") },
		"/encoded": func(c fiber.Ctx) error {
			c.Set("Content-Encoding", "br")
			return c.Send([]byte("xyz"))
		},
		"/cookie": func(c fiber.Ctx) error {
			c.Cookie(&fiber.Cookie{Name: "a", Value: "1", HTTPOnly: true, SameSite: "Strict"})
			c.Cookie(&fiber.Cookie{Name: "b", Value: "2"})
			return c.SendString("x")
		},
		"/trailer": func(c fiber.Ctx) error {
			_ = c.Response().Header.SetTrailer("X-Sum")
			c.Set("X-Sum", "42")
			return c.SendStream(strings.NewReader("summed"))
		},
		"/unknown": func(fiber.Ctx) error { return fiber.NewError(499, "own") },
	}
	for _, config := range []fiber.Config{{}, {DisableDefaultContentType: true}} {
		s := open(t, config, stet.Options{}, stethttp.Options{Advanced: stethttp.Advanced{StoreSetCookie: true}}, func(s *shop, once fiber.Handler) {
			for path, h := range handlers {
				s.app.Post("/plain"+path, h)
				s.app.Post("/once"+path, once, h)
			}
		})
		for path := range handlers {
			alone := s.post("/plain"+path, "")
			for range 2 {
				alone.Same(s.post("/once"+path, "", "Idempotency-Key", path))
			}
		}
	}
}

// TestHijackIsRefused: the connection would go to another protocol before the outcome
// is durable.
func TestHijackIsRefused(t *testing.T) {
	s := sell(t, func(c fiber.Ctx) error {
		c.RequestCtx().Hijack(func(net.Conn) { t.Error("the connection was hijacked") })
		c.Status(fiber.StatusSwitchingProtocols)
		return nil
	})
	s.want("the first", s.order(), 500, "cannot be hijacked", false)
	s.want("the retry", s.order(), 500, "cannot be hijacked", true)
	s.ran(1)
}

// TestNothingOfARequestIsAliased: Fiber's strings and bytes are the next request's as
// soon as a handler has returned; the stored response must not be.
func TestNothingOfARequestIsAliased(t *testing.T) {
	s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{
		Name: func(r *http.Request) string { return r.PathValue("id") },
		Ref:  func(r *http.Request) string { return r.Header.Get("X-Ref") },
	}, func(s *shop, once fiber.Handler) {
		s.app.Post("/orders/:id", once, s.count(func(c fiber.Ctx) error {
			c.Set("X-Echo", c.Get("X-Echo"))
			c.Set("X-Id", c.Params("id"))
			c.Set(fiber.HeaderContentType, c.Get("Content-Type"))
			return c.Status(201).Send(c.Body())
		}))
	})
	ask := func(n int) adaptertest.Reply {
		text := strings.Repeat(fmt.Sprintf("<%d>", n), 1+n%50)
		return s.post(fmt.Sprintf("/orders/%d", n), text, "Idempotency-Key", fmt.Sprint("k", n), "X-Echo", text, "X-Ref", fmt.Sprint("ref", n), "Content-Type", fmt.Sprintf("text/x-%d", n))
	}
	const n = 300
	for round := range 3 {
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := w; i < n; i += 8 {
					r := ask(i)
					text := strings.Repeat(fmt.Sprintf("<%d>", i), 1+i%50)
					if r.Err != nil || r.Status != 201 || r.Body != text || r.Header.Get("X-Echo") != text || r.Header.Get("X-Id") != fmt.Sprint(i) ||
						r.Header.Get("Content-Type") != fmt.Sprintf("text/x-%d", i) || r.Replayed() != (round > 0) {
						t.Errorf("round %d, order %d: got %d %q %v (%v)", round, i, r.Status, r.Body, r.Header, r.Err)
					}
				}
			})
		}
		wg.Wait()
	}
	s.ran(n)
	for i := range n {
		st, err := s.Engine().Lookup(t.Context(), s.Engine().ID("single-tenant", fmt.Sprint("k", i)))
		if err != nil || st.Op.Name != fmt.Sprint(i) || st.Op.Ref != fmt.Sprint("ref", i) {
			t.Errorf("order %d is kept as %q, %q (%v)", i, st.Op.Name, st.Op.Ref, err)
		}
	}
}
