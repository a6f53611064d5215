package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	storage "github.com/gofiber/storage/redis/v3"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	goredislib "github.com/redis/go-redis/v9"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
)

const childEnv = "STET_BENCH_COMPARE_CHILD"

// order is what a child process does: it is a service in Go.
type order struct {
	Way, Postgres, Redis string
	Lease                time.Duration
}

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

type service struct {
	order
	pool *pgxpool.Pool // of the business writes
	runs *pgxpool.Pool // a handler in a transaction takes a second connection, which must not be of the same pool
}

// serve serves payments until the parent ends it.
func serve(ctx context.Context, o order) error {
	pool, err := pgxpool.New(ctx, o.Postgres)
	if err != nil {
		return err
	}
	runs, err := pgxpool.New(ctx, o.Postgres)
	if err != nil {
		return err
	}
	s := &service{o, pool, runs}
	way, ok := map[string]func(context.Context) (func(net.Listener) error, error){"stet_tx": s.transaction, "stet_lease": s.lease, "stet_redis": s.redis, "fiber": s.fiber}[o.Way]
	if !ok {
		return fmt.Errorf("there is no service %q in Go", o.Way)
	}
	run, err := way(ctx)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is this machine
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- run(l) }()
	child.Ready(os.Stdout, l.Addr().String())
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	}
}

var scope = stethttp.Options{Scope: func(r *http.Request) (string, error) { return r.Header.Get("X-Account"), nil }}

func (s *service) engine(st store.Store) (*stet.Engine, error) {
	return stet.New(st, stet.Options{Policy: stet.Policy{Lease: s.Lease}})
}

func (s *service) transaction(ctx context.Context) (func(net.Listener) error, error) {
	st, err := postgres.New(ctx, s.pool, postgres.Options{})
	if err != nil {
		return nil, err
	}
	engine, err := s.engine(st)
	if err != nil {
		return nil, err
	}
	te, err := stet.WithTx(engine, st)
	if err != nil {
		return nil, err
	}
	m, err := stethttp.NewTx(te, scope)
	if err != nil {
		return nil, err
	}
	return serving(m.HandleTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) { s.handle(w, r, tx) })), nil
}

func (s *service) lease(ctx context.Context) (func(net.Listener) error, error) {
	st, err := postgres.New(ctx, s.pool, postgres.Options{})
	if err != nil {
		return nil, err
	}
	return s.protect(st)
}

func (s *service) redis(ctx context.Context) (func(net.Listener) error, error) {
	client, err := goredis.Open(&goredislib.UniversalOptions{Addrs: []string{s.Redis}})
	if err != nil {
		return nil, err
	}
	st, err := redis.New(ctx, client, redis.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	return s.protect(st)
}

// protect puts a lease around the handler, whose write is a commit of its own.
func (s *service) protect(st store.Store) (func(net.Listener) error, error) {
	engine, err := s.engine(st)
	if err != nil {
		return nil, err
	}
	m, err := stethttp.New(engine, scope)
	if err != nil {
		return nil, err
	}
	return serving(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.handle(w, r, s.pool) }))), nil
}

func serving(h http.Handler) func(net.Listener) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	return server.Serve
}

func (s *service) fiber(context.Context) (func(net.Listener) error, error) {
	app := fiber.New(fiber.Config{BodyLimit: 8 << 20})
	client := goredislib.NewUniversalClient(&goredislib.UniversalOptions{Addrs: []string{s.Redis}})
	app.Use(idempotency.New(idempotency.Config{Storage: storage.NewFromConnection(client), KeyHeader: "Idempotency-Key", KeyHeaderValidate: func(string) error { return nil }, Lifetime: 24 * time.Hour}))
	app.Post("/:what", func(c fiber.Ctx) error {
		status, header, body, err := s.pay(c.Context(), s.pool, c.Get("Idempotency-Key"), c.Get("X-Account"), c.Body())
		if err != nil {
			return err
		}
		for name, value := range header {
			c.Set(name, value)
		}
		return c.Status(status).Send(body)
	})
	return func(l net.Listener) error { return app.Listener(l, fiber.ListenConfig{DisableStartupMessage: true}) }, nil
}

func (s *service) handle(w http.ResponseWriter, r *http.Request, q querier) {
	asked, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	status, header, body, err := s.pay(r.Context(), q, r.Header.Get("Idempotency-Key"), r.Header.Get("X-Account"), asked)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	for name, value := range header {
		w.Header().Set(name, value)
	}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// pay is the payment of services/pay.py. The write goes to q.
func (s *service) pay(ctx context.Context, q querier, key, account string, asked []byte) (status int, header map[string]string, body []byte, err error) {
	var what struct {
		Do      string
		Seconds float64
	}
	if err := json.Unmarshal(asked, &what); err != nil {
		return 0, nil, nil, err
	}
	if _, err := s.runs.Exec(ctx, "INSERT INTO runs (key, account) VALUES ($1, $2)", key, account); err != nil {
		return 0, nil, nil, err
	}
	var n, id int64
	if err := s.runs.QueryRow(ctx, "SELECT count(*) FROM runs WHERE key = $1", key).Scan(&n); err != nil {
		return 0, nil, nil, err
	}
	unlucky := func(when string) error {
		switch {
		case n == 1 && what.Do == "die "+when:
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case n == 1 && what.Do == "fail "+when:
			return errors.New("unlucky")
		}
		return nil
	}
	if err := unlucky("before"); err != nil {
		return 0, nil, nil, err
	}
	if what.Do == "decline" {
		return http.StatusPaymentRequired, map[string]string{"Content-Type": "application/json"}, fmt.Appendf(nil, `{"declined": %d}`, time.Now().UnixNano()), nil
	}
	time.Sleep(time.Duration(what.Seconds * float64(time.Second)))
	if err := q.QueryRow(ctx, "INSERT INTO effects (key, account) VALUES ($1, $2) RETURNING id", key, account).Scan(&id); err != nil {
		return 0, nil, nil, err
	}
	if err := unlucky("after"); err != nil {
		return 0, nil, nil, err
	}
	status, header, body = reply(what.Do, id)
	return status, header, body, nil
}

func reply(do string, id int64) (int, map[string]string, []byte) {
	header := map[string]string{"Content-Type": "application/json"}
	body := fmt.Appendf(nil, `{"payment": %d}`, id)
	switch do {
	case "nothing":
		return http.StatusNoContent, nil, nil
	case "bytes":
		header["Content-Type"] = "application/octet-stream"
		for b := range 256 {
			body = append(body, byte(b))
		}
	case "text":
		header["Content-Type"] = "text/plain; charset=utf-8"
		body = fmt.Appendf(nil, "bezahlt: %d €", id)
	case "large":
		body = fmt.Appendf(nil, `{"payment": %d, "note": "%0700000d"}`, id, 0)
	case "headers":
		header["Location"], header["X-Receipt"] = fmt.Sprint("/payments/", id), fmt.Sprint("r-", id)
	}
	return http.StatusCreated, header, body
}
