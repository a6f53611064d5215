// Command postgres measures, side by side on one private PostgreSQL server with
// default durability: claim + settle of 1 KB as commonly written by hand and in
// stet's lease mode, an application's bare transaction and the same through
// stet's transactional mode, and replays, also from a cache in front of the store.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/cache"
	"github.com/stet-go/stet/store/postgres"
)

var (
	each   = flag.Duration("each", time.Second, "how long one measurement takes")
	n      = flag.Int("rounds", 3, "rounds")
	levels = flag.String("callers", "1,16,64,256", "numbers of concurrent callers")
)

const (
	connections = 64 // of the application's pool
	kept        = 20_000
)

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "postgres:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	r, err := rig.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
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
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := postgres.Migrate(ctx, pool, postgres.Options{}); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, tables); err != nil {
		return err
	}
	store, err := postgres.New(ctx, pool, postgres.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	cached, err := cache.New(store, cache.Options{})
	if err != nil {
		return err
	}
	b := &bench{pool: pool, store: store, cached: cached}
	if err := b.fill(ctx); err != nil {
		return err
	}
	for _, level := range strings.Split(*levels, ",") {
		callers, err := strconv.Atoi(level)
		if err != nil || callers < 1 {
			return fmt.Errorf("-callers: %q is not a positive number", level)
		}
		if err := b.level(ctx, callers); err != nil {
			return err
		}
	}
	return nil
}

const tables = `
CREATE TABLE plain (id bytea PRIMARY KEY, state int, at timestamptz DEFAULT now(), result bytea);
CREATE TABLE payments (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account text, amount int);`

// bench is what is measured.
type bench struct {
	pool    *pgxpool.Pool
	store   *postgres.Store
	cached  store.Store // a cache in front of store
	settled []store.ClaimRequest
	next    atomic.Int64
}

var (
	result = bytes.Repeat([]byte("r"), 1024)
	keep   = store.Retention{Result: 24 * time.Hour, Tombstone: 30 * 24 * time.Hour}
)

func request() store.ClaimRequest {
	return store.ClaimRequest{ID: store.Digest("bench", "s", stet.NewKey()), Owner: store.NewOwner(), Lease: 30 * time.Second}
}

func (b *bench) level(ctx context.Context, callers int) error {
	contenders := []struct {
		name string
		op   func(context.Context) error
	}{
		{"a common pattern", b.common}, {"a' insert + update", b.plain}, {"b stet, lease", b.lease},
		{"c bare transaction", b.bare}, {"d stet, transaction", b.transaction}, {"e replay", b.replay}, {"f replay, cached", b.cachedReplay},
	}
	latency := make(map[string][]time.Duration)
	var cs []rounds.Contender
	for _, c := range contenders {
		cs = append(cs, rounds.Contender{Name: c.name, Measure: func() (float64, error) {
			rate, took, err := rounds.Load(callers, *each, func(int) error { return c.op(ctx) })
			latency[c.name] = took
			return rate, err
		}})
	}
	rates, err := rounds.Compare(*n, cs...)
	if err != nil {
		return err
	}
	fmt.Printf("%d callers\n", callers)
	for _, c := range contenders {
		took := latency[c.name]
		fmt.Printf("  %-20s %9.0f/s   p50 %8v   p99 %8v\n", c.name, rounds.Median(rates[c.name]),
			took[len(took)/2].Round(time.Microsecond), took[len(took)*99/100].Round(time.Microsecond))
	}
	ratio := func(a, b string) float64 { return rounds.Ratio(rates[a], rates[b]) }
	rounds.Figure(fmt.Sprintf("postgres_lease_%d", callers), rounds.Median(rates["b stet, lease"]), "pairs/s")
	rounds.Figure(fmt.Sprintf("postgres_lease_ratio_%d", callers), ratio("b stet, lease", "a common pattern"), "x common pattern")
	rounds.Figure(fmt.Sprintf("postgres_lease_plain_ratio_%d", callers), ratio("b stet, lease", "a' insert + update"), "x plain insert + update")
	rounds.Figure(fmt.Sprintf("postgres_tx_ratio_%d", callers), ratio("d stet, transaction", "c bare transaction"), "x bare transaction")
	rounds.Figure(fmt.Sprintf("postgres_replays_%d", callers), rounds.Median(rates["e replay"]), "replays/s")
	rounds.Figure(fmt.Sprintf("postgres_replays_cached_ratio_%d", callers), ratio("f replay, cached", "e replay"), "x uncached")
	return nil
}

// common is how idempotency tables are usually used: two transactions.
func (b *bench) common(ctx context.Context) error {
	id := request().ID
	err := pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		var state int
		err := tx.QueryRow(ctx, "SELECT state FROM plain WHERE id = $1 FOR UPDATE", id[:]).Scan(&state)
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO plain (id, state) VALUES ($1, 1)", id[:])
		return err
	})
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE plain SET state = 2, result = $2 WHERE id = $1", id[:], result)
		return err
	})
}

// plain is the least that a claim and a settle can be, one by one.
func (b *bench) plain(ctx context.Context) error {
	id := request().ID
	if _, err := b.pool.Exec(ctx, "INSERT INTO plain (id, state) VALUES ($1, 1) ON CONFLICT DO NOTHING", id[:]); err != nil {
		return err
	}
	_, err := b.pool.Exec(ctx, "UPDATE plain SET state = 2, result = $2 WHERE id = $1", id[:], result)
	return err
}

func (b *bench) lease(ctx context.Context) error {
	rec, err := b.store.Claim(ctx, request())
	if err != nil {
		return err
	}
	return b.store.Settle(ctx, rec.Claim(), store.Settlement{State: store.Completed, Result: store.Result{Body: result}}, keep)
}

func pay(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "INSERT INTO payments (account, amount) VALUES ($1, $2)", "acct_1", 100)
	return err
}

func (b *bench) bare(ctx context.Context) error {
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error { return pay(ctx, tx) })
}

func (b *bench) transaction(ctx context.Context) error {
	_, err := b.store.RunTx(ctx, request(), keep, func(ctx context.Context, tx pgx.Tx, _ store.Record) (store.Settlement, error) {
		return store.Settlement{State: store.Completed, Result: store.Result{Body: result}}, pay(ctx, tx)
	})
	return err
}

func (b *bench) replay(ctx context.Context) error { return b.read(ctx, b.store) }

func (b *bench) cachedReplay(ctx context.Context) error { return b.read(ctx, b.cached) }

func (b *bench) read(ctx context.Context, st store.Store) error {
	rec, err := st.Read(ctx, b.settled[int(b.next.Add(1))%len(b.settled)].ID)
	if err == nil && (rec.State != store.Completed || len(rec.Result.Body) != len(result)) {
		err = fmt.Errorf("read a record in state %v", rec.State)
	}
	return err
}

// fill settles the records that are replayed.
func (b *bench) fill(ctx context.Context) error {
	b.settled = make([]store.ClaimRequest, kept)
	errs := make([]error, connections)
	var wg sync.WaitGroup
	for part := range connections {
		wg.Go(func() {
			for i := part; i < kept && errs[part] == nil; i += connections {
				req := request()
				b.settled[i] = req
				rec, err := b.cached.Claim(ctx, req) // from which the cache learns the time
				if err == nil {
					err = b.store.Settle(ctx, rec.Claim(), store.Settlement{State: store.Completed, Result: store.Result{Body: result}}, keep)
				}
				errs[part] = err
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
