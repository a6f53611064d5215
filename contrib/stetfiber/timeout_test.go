//go:build !race

// Fiber's timeout middleware writes into the response while the handler that it does not
// wait for continues: the race detector would find that.
package stetfiber_test

import (
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/timeout"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
)

// TestTimeoutAroundTheMiddlewareIsUnknown: the response is then no longer the handler's
// alone, so it is not taken for the outcome.
func TestTimeoutAroundTheMiddlewareIsUnknown(t *testing.T) {
	leave := make(chan struct{})
	s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{}, func(s *shop, once fiber.Handler) {
		s.app.Post("/orders/:id", timeout.New(once, timeout.Config{Timeout: 50 * time.Millisecond, Next: func(c fiber.Ctx) bool { return c.Get("Prefer") != "" }}),
			s.count(func(c fiber.Ctx) error {
				<-leave
				return c.Status(201).SendString("paid")
			}))
	})
	s.want("the first", s.order(), 408, "", false)
	close(leave)
	s.want("the retry", s.order("Prefer", "wait=1"), 504, "outcome-unknown", false)
	s.ran(1)
}
