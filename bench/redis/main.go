// Command redis measures claim + settle of 1 KB on the Redis store, through both
// client libraries, beside redis-benchmark sending the same scripts over as many
// connections with as many commands in flight; and replays, with and without the
// local cache. It starts its own servers: one without persistence, and one
// with appendfsync always.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	goredislib "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/cache"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
	stetrueidis "github.com/stet-go/stet/store/redis/rueidis"
)

var (
	each   = flag.Duration("each", time.Second, "how long one measurement takes, about")
	n      = flag.Int("rounds", 5, "rounds")
	levels = flag.String("callers", "1,16,64,256", "numbers of concurrent callers")
	disks  = flag.String("persistence", "none,always", "none, always or both")
)

const (
	goRedisConns = 64
	rueidisConns = 4      // its default
	kept         = 10_000 // settled records that are replayed
)

var (
	result = bytes.Repeat([]byte("r"), 1024)
	keep   = store.Retention{Result: 24 * time.Hour, Tombstone: 30 * 24 * time.Hour}
)

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "redis:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	r, err := rig.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for _, persistence := range strings.Split(*disks, ",") {
		settings := map[string]string{}
		switch persistence {
		case "none":
		case "always":
			settings["appendonly"], settings["appendfsync"] = "yes", "always"
		default:
			return fmt.Errorf("-persistence: %q is neither none nor always", persistence)
		}
		server, err := r.StartRedis(ctx, rig.RedisOptions{Settings: settings})
		if err != nil {
			return err
		}
		if err := measure(ctx, server, persistence); err != nil {
			return err
		}
		if err := server.Close(); err != nil {
			return err
		}
	}
	return nil
}

// bench measures one server.
type bench struct {
	server          *rig.RedisServer
	rueidis, goOnes *redis.Store
	cached          store.Store
	claim, settle   []string // commands, as the store sends them
	settled         []store.ClaimRequest
	next            atomic.Int64
}

func measure(ctx context.Context, server *rig.RedisServer, persistence string) error {
	goClient, err := goredis.Open(&goredislib.UniversalOptions{Addrs: []string{server.Addr()}, PoolSize: goRedisConns})
	if err != nil {
		return err
	}
	defer goClient.Close()
	ruClient, err := stetrueidis.Open(rueidis.ClientOption{InitAddress: []string{server.Addr()}})
	if err != nil {
		return err
	}
	defer ruClient.Close()
	b := &bench{server: server}
	quiet := redis.Options{Logger: slog.New(slog.DiscardHandler)}
	if b.goOnes, err = redis.New(ctx, goClient, quiet); err != nil {
		return err
	}
	defer b.goOnes.Close()
	if b.rueidis, err = redis.New(ctx, ruClient, quiet); err != nil {
		return err
	}
	defer b.rueidis.Close()
	if b.cached, err = cache.New(b.rueidis, cache.Options{}); err != nil {
		return err
	}
	if err := b.learn(ctx, ruClient, quiet); err != nil {
		return err
	}
	if err := b.fill(ctx); err != nil {
		return err
	}
	for _, level := range strings.Split(*levels, ",") {
		callers, err := strconv.Atoi(level)
		if err != nil || callers < 1 {
			return fmt.Errorf("-callers: %q is not a positive number", level)
		}
		if err := b.level(ctx, persistence, callers); err != nil {
			return err
		}
	}
	return nil
}

// spy is a client that remembers the scripts it is to run, and their text: it has the
// server forget them before.
type spy struct {
	redis.Client
	commands [][]string
	sources  []string
}

func (s *spy) Do(ctx context.Context, key string, args ...string) (any, error) {
	switch args[0] {
	case "EVALSHA":
		s.commands = append(s.commands, slices.Clone(args))
		if _, err := s.Client.Do(ctx, key, "SCRIPT", "FLUSH"); err != nil {
			return nil, err
		}
	case "EVAL":
		s.sources = append(s.sources, args[1])
	}
	return s.Client.Do(ctx, key, args...)
}

// learn finds out which commands the store sends.
func (b *bench) learn(ctx context.Context, c redis.Client, o redis.Options) error {
	s := &spy{Client: c}
	store, err := redis.New(ctx, s, o)
	if err != nil {
		return err
	}
	defer store.Close()
	s.commands, s.sources = nil, nil // what New has asked the server for
	if err := pair(ctx, store); err != nil {
		return err
	}
	if len(s.commands) != 2 || len(s.sources) != 2 {
		return fmt.Errorf("claim and settle are %d commands and %d scripts; want 2", len(s.commands), len(s.sources))
	}
	b.claim, b.settle = s.commands[0], s.commands[1]
	// A fence begins with NUL, which a command line cannot have: the script has it.
	settle, err := c.Do(ctx, b.settle[3], "SCRIPT", "LOAD", strings.ReplaceAll(s.sources[1], "ARGV[2]", preparedFence))
	if err != nil {
		return err
	}
	digest, ok := settle.(string)
	if !ok {
		return fmt.Errorf("SCRIPT LOAD returned %T", settle)
	}
	b.settle[1] = digest
	if _, err := c.Do(ctx, b.settle[3], "SCRIPT", "LOAD", s.sources[0]); err != nil { // which was forgotten for the settle
		return err
	}
	return nil
}

func request() store.ClaimRequest {
	return store.ClaimRequest{ID: store.Digest("bench", "s", stet.NewKey()), Owner: store.NewOwner(), Lease: 30 * time.Second}
}

// pair is one claim and one settle of a new operation.
func pair(ctx context.Context, s store.Store) error {
	rec, err := s.Claim(ctx, request())
	if err != nil {
		return err
	}
	return s.Settle(ctx, rec.Claim(), store.Settlement{State: store.Completed, Result: store.Result{Body: result}}, keep)
}

// fill settles the records that are replayed.
func (b *bench) fill(ctx context.Context) error {
	for range kept {
		req := request()
		b.settled = append(b.settled, req)
		rec, err := b.rueidis.Claim(ctx, req)
		if err != nil {
			return err
		}
		if err := b.rueidis.Settle(ctx, rec.Claim(), store.Settlement{State: store.Completed, Result: store.Result{Body: result}}, keep); err != nil {
			return err
		}
	}
	return nil
}

// replay is a claim of an operation that is settled.
func (b *bench) replay(ctx context.Context, s store.Store) error {
	req := b.settled[int(b.next.Add(1))%len(b.settled)]
	req.Owner = store.NewOwner()
	rec, err := s.Claim(ctx, req)
	if err == nil && (rec.State != store.Completed || len(rec.Result.Body) != len(result)) {
		err = fmt.Errorf("replayed a record in state %v", rec.State)
	}
	return err
}

func (b *bench) level(ctx context.Context, persistence string, callers int) error {
	contender := func(name string, op func(context.Context) error) rounds.Contender {
		return rounds.Contender{Name: name, Measure: func() (float64, error) { return load(ctx, callers, op) }}
	}
	native := func(name string, conns int) rounds.Contender {
		return rounds.Contender{Name: name, Measure: func() (float64, error) { return b.native(ctx, min(conns, callers), callers) }}
	}
	rates, err := rounds.Compare(*n,
		contender("rueidis", func(ctx context.Context) error { return pair(ctx, b.rueidis) }),
		native("redis-benchmark as rueidis", rueidisConns),
		contender("go-redis", func(ctx context.Context) error { return pair(ctx, b.goOnes) }),
		native("redis-benchmark as go-redis", goRedisConns),
		contender("replays", func(ctx context.Context) error { return b.replay(ctx, b.rueidis) }),
		rounds.Contender{Name: "replays, cached", Measure: func() (float64, error) {
			if err := pair(ctx, b.cached); err != nil { // so that it knows the store's clock
				return 0, err
			}
			return load(ctx, callers, func(ctx context.Context) error { return b.replay(ctx, b.cached) })
		}},
	)
	if err != nil {
		return err
	}
	name := func(what string) string { return fmt.Sprintf("redis_%s_%s_%d", what, persistence, callers) }
	for _, c := range []string{"rueidis", "go-redis"} {
		short := strings.ReplaceAll(c, "-", "")
		rounds.Figure(name(short), rounds.Median(rates[c]), "pairs/s")
		rounds.Figure(name(short+"_benchmark"), rounds.Median(rates["redis-benchmark as "+c]), "pairs/s")
		rounds.Figure(name(short+"_ratio"), rounds.Ratio(rates[c], rates["redis-benchmark as "+c]), "x redis-benchmark")
	}
	rounds.Figure(name("replays"), rounds.Median(rates["replays"]), "replays/s")
	rounds.Figure(name("replays_cached"), rounds.Median(rates["replays, cached"]), "replays/s")
	rounds.Figure(name("replays_cached_ratio"), rounds.Ratio(rates["replays, cached"], rates["replays"]), "x network")
	return nil
}

// load calls op with so many callers for a while.
func load(ctx context.Context, callers int, op func(context.Context) error) (rate float64, err error) {
	rate, _, err = rounds.Load(callers, *each, func(int) error { return op(ctx) })
	return rate, err
}
