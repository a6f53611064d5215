package main

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	goredislib "github.com/redis/go-redis/v9"
)

// contender is a way to serve payments. Each has a table of payments of its own.
type contender struct {
	name  string // in figures
	says  string // for people
	redis bool   // uses Redis
	near  bool   // its records are on the service's machine, without a network between
	keeps bool   // replays stored outcomes
	ours  bool
	serve func(ctx context.Context, s *service) (handler, error)
}

// handler serves on a listener until it is closed.
type handler interface{ Serve(net.Listener) error }

// contenders are all that is compared, in the order of their turns.
var contenders = []contender{
	{name: "bare", says: "(a) bare handler: BEGIN, INSERT, COMMIT", serve: serveBare(true)},
	{name: "bare_auto", says: "(a') bare handler: INSERT alone", serve: serveBare(false)},
	{name: "byhand", says: "(b) table by hand, pipelined", keeps: true, serve: serveByHand(true)},
	{name: "byhand_plain", says: "(b') table by hand, a trip for each statement", keeps: true, serve: serveByHand(false)},
	{name: "stet_tx", says: "stethttp.NewTx, PostgreSQL", keeps: true, ours: true, serve: serveStetTx},
	{name: "stet_lease", says: "stethttp.New, PostgreSQL", keeps: true, ours: true, serve: serveStetLease},
	{name: "stet_redis", says: "stethttp.New, Redis", redis: true, keeps: true, ours: true, serve: serveStetRedis},
	{name: "stet_sqlite", says: "stethttp.New, SQLite", near: true, keeps: true, ours: true, serve: serveStetSQLite},
	{name: "fiber3_redis", says: "(c) Fiber v3 middleware/idempotency, Redis", redis: true, keeps: true, serve: serveFiber3},
	{name: "fiber2_redis", says: "(c) Fiber v2 middleware/idempotency, Redis", redis: true, keeps: true, serve: serveFiber2},
}

// named finds a contender.
func named(name string) (contender, bool) {
	for _, c := range contenders {
		if c.name == name {
			return c, true
		}
	}
	return contender{}, false
}

// connections is how many each service may have to each store: as many as there are callers
// at most, so that none waits for one.
const connections = 64

// service is what a service process has.
type service struct {
	kind  string
	pool  *pgxpool.Pool
	redis string // address
	files string // folder
	pay   string // the statement
}

// table is the table of payments of a contender.
func table(kind string) string { return "payments_" + kind }

// schema makes the tables of all contenders.
func schema() (sql string) {
	for _, c := range contenders {
		sql += "CREATE TABLE " + table(c.name) + " (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text NOT NULL, account text NOT NULL, amount bigint NOT NULL);\n"
		if c.name == "byhand" || c.name == "byhand_plain" {
			sql += keysTable(c.name)
		}
	}
	return sql
}

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// insert is the effect of a request.
func (s *service) insert(ctx context.Context, q querier, key string, p *payment) (receipt, error) {
	r := receipt{payment: *p}
	err := q.QueryRow(ctx, s.pay, key, p.Account, p.Amount).Scan(&r.ID)
	return r, err
}

func newService(ctx context.Context, o order) (*service, error) {
	config, err := pgxpool.ParseConfig(o.Postgres)
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MaxConnIdleTime = connections, time.Hour
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return &service{
		kind: o.Kind, pool: pool, redis: o.Redis, files: o.Files,
		pay: "INSERT INTO " + table(o.Kind) + " (key, account, amount) VALUES ($1, $2, $3) RETURNING id",
	}, nil
}

// redisOptions are those of all clients of Redis.
func (s *service) redisOptions() *goredislib.UniversalOptions {
	return &goredislib.UniversalOptions{Addrs: []string{s.redis}, PoolSize: connections}
}

// net/http is how all but Fiber's serve.
func serveHTTP(h http.Handler) handler {
	mux := http.NewServeMux()
	mux.Handle("POST "+path, h)
	return &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
}
