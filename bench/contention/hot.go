package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/postgres"
)

// hotKeys has all callers ask for one key at once, on two stores.
func hotKeys(ctx context.Context, server *rig.PostgresServer) error {
	pool, err := newPool(ctx, server, 10)
	if err != nil {
		return err
	}
	defer pool.Close()
	pg, err := postgres.New(ctx, pool, postgres.Options{})
	if err != nil {
		return err
	}
	for name, s := range map[string]store.Store{"memory": memory.New(memory.Options{}), "postgres": pg} {
		if err := hotKey(ctx, name, s); err != nil {
			return fmt.Errorf("one key, %s: %w", name, err)
		}
	}
	return nil
}

// newPool returns a pool to a database of its own, with stet's tables.
func newPool(ctx context.Context, server *rig.PostgresServer, conns int32) (*pgxpool.Pool, error) {
	name, err := server.CreateDatabase(ctx)
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(server.URL(name))
	if err != nil {
		return nil, err
	}
	config.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return pool, postgres.Migrate(ctx, pool, postgres.Options{})
}

func hotKey(ctx context.Context, name string, s store.Store) error {
	engine, err := stet.New(s, stet.Options{MaxWaiters: *callers})
	if err != nil {
		return err
	}
	defer engine.Close()
	var runs, replays atomic.Int64
	errs := make(chan error, *callers)
	var wg sync.WaitGroup
	var slowest atomic.Int64
	began := time.Now()
	for range *callers {
		wg.Go(func() {
			res, err := stet.Do(ctx, engine, stet.Op{Scope: "s", Key: "hot", Wait: time.Minute}, func(context.Context) (int64, error) {
				return 1000 + runs.Add(1), nil
			})
			switch {
			case err != nil:
				errs <- err
			case res.Value != 1001:
				errs <- fmt.Errorf("a caller got the outcome %d", res.Value)
			case res.Replayed:
				replays.Add(1)
			}
			for took := int64(time.Since(began)); ; {
				if before := slowest.Load(); took <= before || slowest.CompareAndSwap(before, took) {
					break
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
	}
	if runs.Load() != 1 || replays.Load() != int64(*callers-1) {
		return fmt.Errorf("%d executions, and %d callers of %d got the first outcome", runs.Load(), replays.Load(), *callers-1)
	}
	rounds.Figure("contention_hot_"+name+"_executions", float64(runs.Load()), "executions")
	rounds.Figure("contention_hot_"+name+"_slowest", time.Duration(slowest.Load()).Seconds()*1000, "ms")
	return nil
}
