package stetfiber_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gofiber/fiber/v3"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
)

// TestStreamIsReadBeforeItIsSent, so that its outcome is durable first, and a retry gets
// all of it.
func TestStreamIsReadBeforeItIsSent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "receipt.txt")
	if err := os.WriteFile(file, []byte("the receipt"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		stream fiber.Handler
		want   string
	}{
		"writer": {func(c fiber.Ctx) error {
			c.Set("Content-Type", "text/event-stream")
			return c.SendStreamWriter(func(w *bufio.Writer) {
				for i := range 3 {
					fmt.Fprintf(w, "data: %d\n\n", i)
					_ = w.Flush()
				}
			})
		}, "data: 0\n\ndata: 1\n\ndata: 2\n\n"},
		"reader":          {func(c fiber.Ctx) error { return c.SendStream(strings.NewReader("streamed")) }, "streamed"},
		"reader, sized":   {func(c fiber.Ctx) error { return c.SendStream(strings.NewReader("streamed and more"), 8) }, "streamed"},
		"reader of bytes": {func(c fiber.Ctx) error { return c.SendStream(iotest.OneByteReader(strings.NewReader("streamed"))) }, "streamed"},
		"nothing":         {func(c fiber.Ctx) error { return c.SendStream(strings.NewReader("")) }, ""},
		"nothing, sized":  {func(c fiber.Ctx) error { return c.SendStream(strings.NewReader("x"), 0) }, ""},
		"file":            {func(c fiber.Ctx) error { return c.SendFile(file) }, "the receipt"},
		"just as long as is read": {func(c fiber.Ctx) error {
			return c.SendStream(io.LimitReader(zeros{}, 16<<20))
		}, strings.Repeat("0", 16<<20)},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, fiber.Config{}, stet.Options{Policy: stet.Policy{MaxResult: 17 << 20}}, stethttp.Options{}, func(s *shop, once fiber.Handler) {
				s.app.Post("/orders/:id", once, s.count(c.stream))
			})
			for _, replayed := range []bool{false, true} {
				if r := s.order(); r.Err != nil || r.Status != 200 || r.Body != c.want || r.Replayed() != replayed {
					t.Errorf("got %d, %d bytes %.50q, replayed %v (%v)", r.Status, len(r.Body), r.Body, r.Replayed(), r.Err)
				}
			}
			s.ran(1)
		})
	}
}

// zeros is endless.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

// TestStreamThatFailsIsAnError, and never a part of it that looks whole.
func TestStreamThatFailsIsAnError(t *testing.T) {
	for name, stream := range map[string]fiber.Handler{
		"longer than is read":                      func(c fiber.Ctx) error { return c.SendStream(zeros{}) },
		"longer than is read, with Content-Length": func(c fiber.Ctx) error { return c.SendStream(zeros{}, 17<<20) },
		"shorter than its Content-Length":          func(c fiber.Ctx) error { return c.SendStream(strings.NewReader("short"), 10) },
		"broken": func(c fiber.Ctx) error {
			return c.SendStream(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("xyz"))))
		},
		"broken writer that continues": func(c fiber.Ctx) error {
			return c.SendStreamWriter(func(w *bufio.Writer) {
				for {
					if _, err := w.WriteString("more and more"); err != nil {
						return
					}
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := sell(t, func(c fiber.Ctx) error {
				c.Set("X-Handler", "1")
				return stream(c)
			})
			for _, replayed := range []bool{false, true} {
				r := s.order()
				s.want("a stream", r, 500, "stetfiber: the stream of a response", replayed)
				if r.Header.Get("X-Handler") != "" {
					t.Error("the header of the stream is in the answer of the error handler")
				}
			}
			s.ran(1)
		})
	}
}

// TestStreamWithoutEndEndsWithTheRun, and its writer gets an error.
func TestStreamWithoutEndEndsWithTheRun(t *testing.T) {
	ended := make(chan struct{})
	s := open(t, fiber.Config{}, stet.Options{Policy: stet.Policy{RunTimeout: 300 * time.Millisecond}}, stethttp.Options{}, func(s *shop, once fiber.Handler) {
		s.app.Post("/orders/:id", once, s.count(func(c fiber.Ctx) error {
			return c.SendStreamWriter(func(w *bufio.Writer) {
				defer close(ended)
				tick := time.NewTicker(time.Millisecond)
				defer tick.Stop()
				for range tick.C {
					_, _ = w.WriteString("tick\n")
					if w.Flush() != nil {
						return
					}
				}
			})
		}))
	})
	s.want("the first", s.order(), 504, "outcome-unknown", false)
	wait(t, "what writes the stream", ended)
	s.want("the retry", s.order(), 504, "outcome-unknown", false)
	s.ran(1)
}

// TestUnprotectedRequestsStream as they do without the middleware.
func TestUnprotectedRequestsStream(t *testing.T) {
	seen := make(chan struct{})
	s := open(t, fiber.Config{}, stet.Options{}, stethttp.Options{Optional: true}, func(s *shop, once fiber.Handler) {
		s.app.Use(once)
		events := func(c fiber.Ctx) error {
			return c.SendStreamWriter(func(w *bufio.Writer) {
				_, _ = w.WriteString("begun\n")
				_ = w.Flush()
				select {
				case <-seen:
				case <-time.After(20 * time.Second):
				}
				_, _ = w.WriteString("ended\n")
			})
		}
		s.app.Get("/events", events)
		s.app.Post("/error", func(fiber.Ctx) error { return errBank })
	})
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.url+"/events", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	r := bufio.NewReader(res.Body)
	if line, err := r.ReadString('\n'); err != nil || line != "begun\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	close(seen)
	if rest, err := io.ReadAll(r); err != nil || string(rest) != "ended\n" {
		t.Errorf("then %q, %v", rest, err)
	}
	if r := s.post("/error", "", "Idempotency-Key", "-"); r.Status != 500 || r.Body != errBank.Error() {
		t.Errorf("an error without a key: %d %q", r.Status, r.Body)
	}
}
