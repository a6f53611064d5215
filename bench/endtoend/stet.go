package main

import (
	"context"
	"log/slog"
	"net/http"
	"path/filepath"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
	"github.com/stet-go/stet/store/sqlite"
)

var options = stethttp.Options{Scope: stethttp.SingleTenant}

func serveStetTx(ctx context.Context, s *service) (handler, error) {
	st, err := postgres.New(ctx, s.pool, postgres.Options{})
	if err != nil {
		return nil, err
	}
	engine, err := stet.New(st, stet.Options{})
	if err != nil {
		return nil, err
	}
	te, err := stet.WithTx(engine, st)
	if err != nil {
		return nil, err
	}
	m, err := stethttp.NewTx(te, options)
	if err != nil {
		return nil, err
	}
	return serveHTTP(m.HandleTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) {
		p, ok := decode(w, r)
		if !ok {
			return
		}
		paid, err := s.insert(r.Context(), tx, r.Header.Get("Idempotency-Key"), p)
		respond(w, paid, err)
	})), nil
}

func serveStetLease(ctx context.Context, s *service) (handler, error) {
	st, err := postgres.New(ctx, s.pool, postgres.Options{})
	if err != nil {
		return nil, err
	}
	return s.protect(st)
}

func serveStetRedis(ctx context.Context, s *service) (handler, error) {
	client, err := goredis.Open(s.redisOptions())
	if err != nil {
		return nil, err
	}
	st, err := redis.New(ctx, client, redis.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	return s.protect(st)
}

// serveStetSQLite keeps leases in a file of the service's machine, which all its processes share.
func serveStetSQLite(ctx context.Context, s *service) (handler, error) {
	st, err := sqlite.Open(ctx, filepath.Join(s.files, "stet.db"), sqlite.Options{})
	if err != nil {
		return nil, err
	}
	return s.protect(st)
}

// protect puts a lease of a store around the handler whose insert commits itself.
func (s *service) protect(st store.Store) (handler, error) {
	engine, err := stet.New(st, stet.Options{})
	if err != nil {
		return nil, err
	}
	m, err := stethttp.New(engine, options)
	if err != nil {
		return nil, err
	}
	return serveHTTP(m.Handler(s.handle(false))), nil
}
