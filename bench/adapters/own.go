package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gofiber/fiber/v3/middleware/idempotency"
	goredislib "github.com/redis/go-redis/v9"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/contrib/stetfiber"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
)

// storage is a fiber.Storage on Redis, as that of github.com/gofiber/storage.
type storage struct{ client goredislib.UniversalClient }

func (s storage) GetWithContext(ctx context.Context, key string) ([]byte, error) {
	b, err := s.client.Get(ctx, key).Bytes()
	if errors.Is(err, goredislib.Nil) {
		return nil, nil
	}
	return b, err
}

func (s storage) SetWithContext(ctx context.Context, key string, val []byte, exp time.Duration) error {
	return s.client.Set(ctx, key, val, exp).Err()
}

func (s storage) DeleteWithContext(ctx context.Context, key string) error {
	return s.client.Del(ctx, key).Err()
}
func (s storage) ResetWithContext(ctx context.Context) error { return s.client.FlushDB(ctx).Err() }
func (s storage) Get(key string) ([]byte, error)             { return s.GetWithContext(context.Background(), key) }
func (s storage) Set(key string, val []byte, exp time.Duration) error {
	return s.SetWithContext(context.Background(), key, val, exp)
}
func (s storage) Delete(key string) error { return s.DeleteWithContext(context.Background(), key) }
func (s storage) Reset() error            { return s.ResetWithContext(context.Background()) }
func (s storage) Close() error            { return nil }

// own is Fiber's own middleware.
func own(client goredislib.UniversalClient) any {
	return idempotency.New(idempotency.Config{
		Storage: storage{client}, KeyHeader: "Idempotency-Key", KeyHeaderValidate: func(string) error { return nil }, Lifetime: 24 * time.Hour,
	})
}

// stetOn is stetfiber's, on the same server.
func stetOn(ctx context.Context, addr string) (middleware any, end func(), err error) {
	client, err := goredis.Open(&goredislib.UniversalOptions{Addrs: []string{addr}, PoolSize: 64})
	if err != nil {
		return nil, nil, err
	}
	s, err := redis.New(ctx, client, redis.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	engine, err := stet.New(s, stet.Options{})
	if err != nil {
		return nil, nil, errors.Join(err, s.Close(), client.Close())
	}
	end = func() { _ = errors.Join(engine.Close(), s.Close(), client.Close()) }
	m, err := stethttp.New(engine, options)
	if err != nil {
		end()
		return nil, nil, err
	}
	return stetfiber.Middleware(m), end, nil
}

// besideOwn measures Fiber's own middleware and stetfiber's on one Redis server.
func besideOwn(ctx context.Context, addr string) error {
	client := goredislib.NewUniversalClient(&goredislib.UniversalOptions{Addrs: []string{addr}, PoolSize: 64})
	defer client.Close()
	protected, end, err := stetOn(ctx, addr)
	if err != nil {
		return err
	}
	defer end()
	var all []rounds.Contender
	bare, err := serveApp("fiber")
	if err != nil {
		return err
	}
	defer bare.close()
	for _, c := range []struct {
		name       string
		middleware any
	}{{"own", own(client)}, {"stet", protected}} {
		t, err := serveApp(c.name, c.middleware)
		if err != nil {
			return err
		}
		defer t.close()
		if err := t.warm(); err != nil {
			return err
		}
		all = append(all, contenders(c.name, bare, t)...)
	}
	rates, err := rounds.Compare(*n, all...)
	if err != nil {
		return err
	}
	fmt.Printf("\nFiber's middleware/idempotency, and stetfiber; Redis with appendfsync always. Echo and Gin have none of their own\n")
	for _, name := range []string{"own", "stet"} {
		fmt.Printf("%-9s first %7.0f, replay %7.0f requests/s\n", name, rounds.Median(rates[name+" first"]), rounds.Median(rates[name+" replay"]))
	}
	rounds.Figure("skin_fiber_redis_first_ratio", rounds.Ratio(rates["stet first"], rates["own first"]), "x Fiber's own")
	rounds.Figure("skin_fiber_redis_replay_ratio", rounds.Ratio(rates["stet replay"], rates["own replay"]), "x Fiber's own")
	return nil
}
