// Command tier measures claim + settle of 1 KB on the tier of Redis and PostgreSQL, beside the
// pattern that one writes by hand with both, and beside each store alone; replays from Redis
// and from SQL; and the memory of Redis for settled keys, with the tier and without. It starts
// its own servers.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/redis"
	stetrueidis "github.com/stet-go/stet/store/redis/rueidis"
	"github.com/stet-go/stet/store/tier"
)

var (
	each   = flag.Duration("each", time.Second, "how long one measurement takes, about")
	n      = flag.Int("rounds", 5, "rounds")
	levels = flag.String("callers", "1,16,64,256", "numbers of concurrent callers")
	keys   = flag.Int("keys", 1_000_000, "settled keys for the memory of Redis; 0: not measured")
)

const (
	kept    = 5000 // settled records that are replayed
	conns   = 32   // to PostgreSQL
	fillers = 64   // concurrent callers that settle the keys for the memory
)

var (
	result = bytes.Repeat([]byte("r"), 1024)
	keep   = store.Retention{Result: 24 * time.Hour, Tombstone: 30 * 24 * time.Hour}
	quiet  = slog.New(slog.DiscardHandler)
)

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "tier:", err)
		os.Exit(1)
	}
}

// bench has the contenders.
type bench struct {
	server      *rig.RedisServer
	client      rueidis.Client
	pool        *pgxpool.Pool
	conn        stetrueidis.Conn
	redis       *redis.Store
	sql         *postgres.Store
	hot, cold   *tier.Store
	hots, colds []store.ClaimRequest // settled
	next        atomic.Int64
	closeAll    []func() error
}

func run(ctx context.Context) (err error) {
	r, err := rig.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	b := &bench{}
	defer b.close()
	if err := b.open(ctx, r); err != nil {
		return err
	}
	if b.hots, err = b.fill(ctx, b.hot); err != nil {
		return err
	}
	if b.colds, err = b.fill(ctx, b.cold); err != nil {
		return err
	}
	for level := range strings.SplitSeq(*levels, ",") {
		callers, err := strconv.Atoi(level)
		if err != nil || callers < 1 {
			return fmt.Errorf("-callers: %q is not a positive number", level)
		}
		if err := b.level(ctx, callers); err != nil {
			return err
		}
	}
	return b.memory(ctx)
}

func (b *bench) close() {
	for i := len(b.closeAll) - 1; i >= 0; i-- {
		_ = b.closeAll[i]()
	}
}

func (b *bench) open(ctx context.Context, r *rig.Rig) (err error) {
	if b.server, err = r.StartRedis(ctx, rig.RedisOptions{Settings: map[string]string{"appendonly": "yes"}}); err != nil {
		return err
	}
	server, err := r.StartPostgres(ctx, rig.PostgresOptions{})
	if err != nil {
		return err
	}
	name, err := server.CreateDatabase(ctx)
	if err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(server.URL(name))
	if err != nil {
		return err
	}
	config.MaxConns = conns
	if b.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	b.closeAll = append(b.closeAll, func() error { b.pool.Close(); return nil })
	if _, err = b.pool.Exec(ctx, `CREATE TABLE outcomes (id bytea PRIMARY KEY, owner bytea NOT NULL, result bytea NOT NULL, at timestamptz NOT NULL DEFAULT now())`); err != nil {
		return err
	}
	if err = postgres.Migrate(ctx, b.pool, postgres.Options{}); err != nil {
		return err
	}
	if b.sql, err = postgres.New(ctx, b.pool, postgres.Options{}); err != nil {
		return err
	}
	b.closeAll = append(b.closeAll, b.sql.Close)
	if b.client, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{b.server.Addr()}, DisableCache: true}); err != nil {
		return err
	}
	b.closeAll = append(b.closeAll, func() error { b.client.Close(); return nil })
	if b.conn, err = stetrueidis.Open(rueidis.ClientOption{InitAddress: []string{b.server.Addr()}}); err != nil {
		return err
	}
	b.closeAll = append(b.closeAll, b.conn.Close)
	if b.redis, err = b.openRedis(ctx, "alone"); err != nil {
		return err
	}
	if b.hot, err = b.openTier(ctx, "hot", time.Hour); err != nil {
		return err
	}
	b.cold, err = b.openTier(ctx, "cold", time.Millisecond)
	return err
}

func (b *bench) openRedis(ctx context.Context, prefix string) (*redis.Store, error) {
	s, err := redis.New(ctx, b.conn, redis.Options{Prefix: prefix, Logger: quiet})
	if err == nil {
		b.closeAll = append(b.closeAll, s.Close)
	}
	return s, err
}

func (b *bench) openTier(ctx context.Context, prefix string, hot time.Duration) (*tier.Store, error) {
	claims, err := b.openRedis(ctx, prefix)
	if err != nil {
		return nil, err
	}
	return tier.New(claims, b.sql, tier.Options{Hot: hot})
}

func request() store.ClaimRequest {
	return store.ClaimRequest{ID: store.Digest("bench", "s", stet.NewKey()), Owner: store.NewOwner(), Lease: 30 * time.Second}
}

// pair is one claim and one settle of a new operation.
func pair(ctx context.Context, s store.Store) (store.ClaimRequest, error) {
	req := request()
	rec, err := s.Claim(ctx, req)
	if err != nil {
		return req, err
	}
	return req, s.Settle(ctx, rec.Claim(), store.Settlement{State: store.Completed, Result: store.Result{Body: result}}, keep)
}

// byHand is the pattern that one writes with both: SET NX, a SELECT in case Redis has forgotten the key, an
// INSERT of the outcome, and a SET of it for ten minutes. It compares no fence.
func (b *bench) byHand(ctx context.Context) error {
	req := request()
	key, owner := "hand:"+req.ID.String(), string(req.Owner[:])
	if err := b.client.Do(ctx, b.client.B().Set().Key(key).Value(owner).Nx().ExSeconds(30).Build()).Error(); err != nil {
		return err
	}
	var settled bool
	if err := b.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outcomes WHERE id = $1)`, req.ID[:]).Scan(&settled); err != nil || settled {
		return fmt.Errorf("a new key is settled: %v, %w", settled, err)
	}
	if tag, err := b.pool.Exec(ctx, `INSERT INTO outcomes (id, owner, result) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`, req.ID[:], req.Owner[:], result); err != nil || tag.RowsAffected() != 1 {
		return fmt.Errorf("%d rows inserted, %w", tag.RowsAffected(), err)
	}
	return b.client.Do(ctx, b.client.B().Set().Key(key).Value(string(result)).ExSeconds(600).Build()).Error()
}

// fill settles the records that are replayed.
func (b *bench) fill(ctx context.Context, s store.Store) (settled []store.ClaimRequest, err error) {
	for range kept {
		req, err := pair(ctx, s)
		if err != nil {
			return nil, err
		}
		settled = append(settled, req)
	}
	return settled, nil
}

// replay is a claim of an operation that is settled. Another caller can hold the claim of a cold
// one for a moment: it is then claimed again.
func (b *bench) replay(ctx context.Context, s store.Store, settled []store.ClaimRequest) error {
	req := settled[int(b.next.Add(1))%len(settled)]
	for {
		req.Owner = store.NewOwner()
		rec, err := s.Claim(ctx, req)
		switch {
		case err != nil:
			return err
		case rec.State == store.Completed && len(rec.Result.Body) == len(result):
			return nil
		case rec.State != store.Running || rec.Owner == req.Owner:
			return fmt.Errorf("replayed a record in state %v", rec.State)
		}
	}
}

func (b *bench) level(ctx context.Context, callers int) error {
	contender := func(name string, op func() error) rounds.Contender {
		return rounds.Contender{Name: name, Measure: func() (float64, error) {
			rate, _, err := rounds.Load(callers, *each, func(int) error { return op() })
			return rate, err
		}}
	}
	pairs := func(s store.Store) func() error {
		return func() error { _, err := pair(ctx, s); return err }
	}
	rates, err := rounds.Compare(*n,
		contender("tier", pairs(b.hot)),
		contender("by_hand", func() error { return b.byHand(ctx) }),
		contender("postgres", pairs(b.sql)),
		contender("redis", pairs(b.redis)),
		contender("replays_hot", func() error { return b.replay(ctx, b.hot, b.hots) }),
		contender("replays_cold", func() error { return b.replay(ctx, b.cold, b.colds) }),
	)
	if err != nil {
		return err
	}
	for _, name := range []string{"tier", "by_hand", "postgres", "redis", "replays_hot", "replays_cold"} {
		rounds.Figure(fmt.Sprintf("tier_%s_%d", name, callers), rounds.Median(rates[name]), "1/s")
	}
	rounds.Figure(fmt.Sprintf("tier_ratio_%d", callers), rounds.Ratio(rates["tier"], rates["by_hand"]), "x by hand")
	return nil
}

// memory prints what Redis needs for settled keys, after those of the tier have left it.
func (b *bench) memory(ctx context.Context) error {
	for _, c := range []struct {
		name string
		s    store.Store
	}{{"tier", b.cold}, {"redis", b.redis}} {
		if *keys == 0 {
			return nil
		}
		if _, err := b.server.CLI(ctx, "FLUSHALL"); err != nil {
			return err
		}
		before, err := b.used(ctx)
		if err != nil {
			return err
		}
		var left atomic.Int64
		left.Store(int64(*keys))
		_, _, err = rounds.Load(fillers, 24*time.Hour, func(int) error {
			if left.Add(-1) < 0 {
				return errFull
			}
			_, err := pair(ctx, c.s)
			return err
		})
		if err = full(err); err != nil {
			return err
		}
		time.Sleep(2 * time.Second) // Redis deletes expired keys in the background
		after, err := b.used(ctx)
		if err != nil {
			return err
		}
		rounds.Figure(fmt.Sprintf("tier_memory_%s_%d", c.name, *keys), float64(after-before)/(1<<20), "MiB")
	}
	return nil
}

var errFull = errors.New("all keys are settled")

// full returns the errors of a load that are not errFull.
func full(err error) error {
	joined, ok := err.(interface{ Unwrap() []error }) //nolint:errorlint // what errors.Join returns
	if !ok {
		return err
	}
	for _, err := range joined.Unwrap() {
		if err != nil && !errors.Is(err, errFull) {
			return err
		}
	}
	return nil
}

// used is the memory of Redis in bytes.
func (b *bench) used(ctx context.Context) (int64, error) {
	info, err := b.server.CLI(ctx, "INFO", "memory")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(info) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); ok {
			return strconv.ParseInt(text, 10, 64)
		}
	}
	return 0, errors.New("INFO has no used_memory")
}
