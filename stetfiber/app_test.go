package stetfiber_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/stettest"
	"github.com/stet-go/stet/stetfiber"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

var errBank = errors.New("the bank is closed")

// shop is an app with a handler behind the middleware, on a port of its own.
type shop struct {
	testing.TB
	app    *fiber.App
	engine *stet.Engine
	m      *stethttp.Middleware
	log    *stettest.Log
	url    string
	runs   atomic.Int64
	client *http.Client
}

// open makes a shop; wire adds its routes, and once is the middleware.
func open(t testing.TB, config fiber.Config, eo stet.Options, o stethttp.Options, wire func(s *shop, once fiber.Handler)) *shop {
	t.Helper()
	s := &shop{TB: t, log: &stettest.Log{}, app: fiber.New(config), engine: stettest.Engine(t, memory.New(memory.Options{}), eo)}
	if o.Scope == nil {
		o.Scope = stethttp.SingleTenant
	}
	o.ErrorLog = slog.New(slog.NewTextHandler(s.log, nil))
	s.m = stethttp.Must(stethttp.New(s.engine, o))
	wire(s, stetfiber.Middleware(s.m))
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	s.client = &http.Client{Transport: transport, Timeout: 20 * time.Second}
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

type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

func (r reply) replayed() bool { return r.header.Get("Idempotent-Replayed") == "true" }

// send sends a request with pairs of header names and values.
func (s *shop) send(method, path, body string, header ...string) reply {
	s.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return s.do(req)
}

func (s *shop) do(req *http.Request) reply {
	res, err := s.client.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(b), err}
}

// order sends an order under the key "k".
func (s *shop) order(header ...string) reply {
	s.Helper()
	return s.send("POST", "/orders/7", "{}", append([]string{"Idempotency-Key", "k"}, header...)...)
}

// want requires a response, which is or is not a replay.
func (s *shop) want(what string, r reply, status int, body string, replayed bool) {
	s.Helper()
	if r.err != nil || r.status != status || !strings.Contains(r.body, body) || r.replayed() != replayed {
		s.Errorf("%s: got %d %q, replayed %v (%v); want %d with %q, replayed %v\nlog: %s", what, r.status, r.body, r.replayed(), r.err, status, body, replayed, s.log)
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
