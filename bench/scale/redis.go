package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
	stetrueidis "github.com/stet-go/stet/store/redis/rueidis"
)

const (
	fillers = 256 // callers that fill Redis
	rounded = 16  // sweeps that go once through all that can be stuck
)

// openRedis starts a server of its own: all that it keeps counts.
func openRedis(ctx context.Context, r *rig.Rig) (st *redis.Store, server *rig.RedisServer, closing func() error, err error) {
	if server, err = r.StartRedis(ctx, rig.RedisOptions{}); err != nil {
		return nil, nil, nil, err
	}
	client, err := stetrueidis.Open(rueidis.ClientOption{InitAddress: []string{server.Addr()}})
	if err != nil {
		return nil, nil, nil, errors.Join(err, server.Close())
	}
	if st, err = redis.New(ctx, client, redis.Options{Logger: slog.New(slog.DiscardHandler)}); err != nil {
		return nil, nil, nil, errors.Join(err, client.Close(), server.Close())
	}
	return st, server, func() error { return errors.Join(st.Close(), client.Close(), server.Close()) }, nil
}

// fillRedis makes a server with records, all of which are written through the store: nothing
// else is as quick. It writes to disk from then on, before it answers.
func fillRedis(ctx context.Context, r *rig.Rig, size int) (p *place, err error) {
	st, server, closing, err := openRedis(ctx, r)
	if err != nil {
		return nil, err
	}
	p = &place{size: size, st: st, close: closing, steps: rounded}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	empty, err := info(ctx, server, "used_memory")
	if err != nil {
		return nil, err
	}
	first, err := specimen(ctx, st)
	if err != nil {
		return nil, err
	}
	p.result = first.Result
	out := store.Settlement{State: store.Completed, Result: first.Result}
	err = spread(fillers, size-1, func(i int) error {
		rec, err := st.Claim(ctx, request(filled(i+1)))
		if err != nil {
			return err
		}
		if (i+1)%100_000 == 0 {
			progress("Redis: %d of %d records written", i+1, size)
		}
		return st.Settle(ctx, rec.Claim(), out, keep)
	})
	if err != nil {
		return nil, err
	}
	if err := durable(ctx, server); err != nil {
		return nil, err
	}
	p.weigh = func(ctx context.Context) ([]weight, error) {
		memory, err := info(ctx, server, "used_memory")
		if err != nil {
			return nil, err
		}
		file, err := info(ctx, server, "aof_base_size")
		return []weight{{"", memory - empty}, {"file", file}}, err
	}
	p.held = func(ctx context.Context) (float64, error) { return info(ctx, server, "aof_current_size") }
	return p, nil
}

// durable makes the server write all data to disk, and later writes before it answers.
func durable(ctx context.Context, server *rig.RedisServer) error {
	for _, set := range [][]string{{"appendfsync", "always"}, {"appendonly", "yes"}} {
		if _, err := server.CLI(ctx, "CONFIG", "SET", set[0], set[1]); err != nil {
			return err
		}
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		busy, err := info(ctx, server, "aof_rewrite_in_progress")
		if err != nil || busy == 0 {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// info is a number that the server tells of itself.
func info(ctx context.Context, server *rig.RedisServer, name string) (float64, error) {
	all, err := server.CLI(ctx, "INFO")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(all) {
		if is, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && is == name {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("redis does not tell its %s", name)
}
