// Command postgres measures, side by side on one private PostgreSQL server with
// default durability: claim + settle of 1 KB as commonly written by hand and in
// stet's lease mode; an application's transaction bare, with a table by hand, and
// through stet's transactional mode; and replays, also from a cache in front of the store.
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
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/cache"
	"github.com/stet-go/stet/store/postgres"
)

var (
	each   = flag.Duration("each", time.Second, "how long one measurement takes")
	n      = flag.Int("rounds", 3, "rounds")
	levels = flag.String("callers", "1,16,64,256", "numbers of concurrent callers")
	only   = flag.String("only", "", "measure only these contenders, by their letters: cdgij for transactions; empty: all")
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
	// A checkpoint has pages written to the log in full afterwards, for the first transaction that changes them.
	server, err := r.StartPostgres(ctx, rig.PostgresOptions{Settings: map[string]string{"checkpoint_timeout": "1h", "max_wal_size": "16GB"}})
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
	if _, err := pool.Exec(ctx, tables+handTable); err != nil {
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
	b := &bench{pool: pool, store: store, cached: cached, meter: &meter{pool, server}}
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

// figures are the printed costs, by contender.
var figures = map[string]string{"a' insert + update": "plain", "b stet, lease": "lease", "c bare transaction": "bare", "d stet, transaction": "tx",
	"e replay": "replay", "g replay in RunTx": "tx_replay", "i transaction by hand": "hand", "j replay by hand": "hand_replay"}

func collect(all []cost, of func(cost) float64) (values []float64) {
	for _, c := range all {
		values = append(values, of(c))
	}
	return values
}

const tables = `
CREATE TABLE plain (id bytea PRIMARY KEY, state int, at timestamptz DEFAULT now(), result bytea);
CREATE TABLE payments (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account text, amount int);`

// bench measures one server.
type bench struct {
	pool    *pgxpool.Pool
	store   *postgres.Store
	cached  store.Store // a cache in front of store
	settled []store.ClaimRequest
	next    atomic.Int64
	meter   *meter
}

var (
	result = bytes.Repeat([]byte("r"), 1024)
	keep   = store.Retention{Result: 24 * time.Hour, Tombstone: 30 * 24 * time.Hour}
)

func request() store.ClaimRequest {
	return store.ClaimRequest{ID: store.Digest("bench", "s", stet.NewKey()), Owner: store.NewOwner(), Lease: 30 * time.Second}
}

// contender is one of the ways that are compared.
type contender struct {
	name string
	op   func(context.Context) error
}

func (b *bench) contenders() (chosen []contender) {
	for _, c := range []contender{
		{"a common pattern", b.common}, {"a' insert + update", b.plain}, {"b stet, lease", b.lease},
		{"c bare transaction", b.bare}, {"d stet, transaction", b.transaction}, {"i transaction by hand", b.hand},
		{"e replay", b.replay}, {"f replay, cached", b.cachedReplay}, {"g replay in RunTx", b.replayTx}, {"j replay by hand", b.replayHand},
	} {
		if *only == "" || strings.Contains(*only, c.name[:1]) {
			chosen = append(chosen, c)
		}
	}
	return chosen
}

// ratios are the printed ratios of rates.
var ratios = []struct{ figure, of, to, unit string }{
	{"lease_ratio", "b stet, lease", "a common pattern", "x common pattern"},
	{"lease_plain_ratio", "b stet, lease", "a' insert + update", "x plain insert + update"},
	{"tx_ratio", "d stet, transaction", "c bare transaction", "x bare transaction"},
	{"tx_hand_ratio", "d stet, transaction", "i transaction by hand", "x transaction by hand"},
	{"replays_ratio", "e replay", bareReads, "x bare reads by = ANY"},
	{"replays_cached_ratio", "f replay, cached", "e replay", "x uncached"},
	{"tx_replays_hand_ratio", "g replay in RunTx", "j replay by hand", "x replay by hand"},
}

const bareReads = "h bare reads"

func (b *bench) level(ctx context.Context, callers int) error {
	latency := make(map[string][]time.Duration)
	costs := make(map[string][]cost)
	var cs []rounds.Contender
	for _, c := range b.contenders() {
		cs = append(cs, rounds.Contender{Name: c.name, Measure: func() (float64, error) {
			before, err := b.meter.read(ctx)
			if err != nil {
				return 0, err
			}
			rate, took, err := rounds.Load(callers, *each, func(int) error { return c.op(ctx) })
			if err != nil {
				return 0, err
			}
			after, err := b.meter.read(ctx)
			latency[c.name], costs[c.name] = took, append(costs[c.name], before.each(after, len(took)))
			return rate, err
		}})
	}
	if *only == "" || strings.Contains(*only, bareReads[:1]) {
		cs = append(cs, rounds.Contender{Name: bareReads, Measure: func() (float64, error) { return b.bareReads(ctx, callers) }})
	}
	rates, err := rounds.Compare(*n, cs...)
	if err != nil {
		return err
	}
	fmt.Printf("%d callers\n", callers)
	for _, c := range b.contenders() {
		took := latency[c.name]
		spent := costs[c.name][1:] // the first round does not count
		server := rounds.Median(collect(spent, func(c cost) float64 { return c.cpu }))
		client := rounds.Median(collect(spent, func(c cost) float64 { return c.client }))
		wal := rounds.Median(collect(spent, func(c cost) float64 { return c.wal }))
		fmt.Printf("  %-22s %9.0f/s   p50 %8v   p99 %8v   server %6.1f us   client %6.1f us   WAL %6.0f bytes\n", c.name, rounds.Median(rates[c.name]),
			took[len(took)/2].Round(time.Microsecond), took[len(took)*99/100].Round(time.Microsecond), server, client, wal)
		if name, ok := figures[c.name]; ok {
			rounds.Figure(fmt.Sprintf("postgres_%s_%d", name, callers), rounds.Median(rates[c.name]), "operations/s")
			rounds.Figure(fmt.Sprintf("postgres_%s_server_%d", name, callers), server, "us of the server's CPU")
			rounds.Figure(fmt.Sprintf("postgres_%s_client_%d", name, callers), client, "us of the client's CPU")
			rounds.Figure(fmt.Sprintf("postgres_%s_wal_%d", name, callers), wal, "bytes")
		}
	}
	for _, r := range ratios {
		if len(rates[r.of]) > 0 && len(rates[r.to]) > 0 {
			rounds.Figure(fmt.Sprintf("postgres_%s_%d", r.figure, callers), rounds.Ratio(rates[r.of], rates[r.to]), r.unit)
		}
	}
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

// replayTx is a replay through the transactional mode.
func (b *bench) replayTx(ctx context.Context) error {
	req := b.settled[int(b.next.Add(1))%len(b.settled)]
	req.Owner = store.NewOwner()
	rec, err := b.store.RunTx(ctx, req, keep, func(context.Context, pgx.Tx, store.Record) (store.Settlement, error) {
		return store.Settlement{}, errors.New("a replay ran")
	})
	if err == nil && (rec.State != store.Completed || len(rec.Result.Body) != len(result)) {
		err = fmt.Errorf("read a record in state %v", rec.State)
	}
	return err
}

// readers is how many connections the store reads on.
const readers = 2

// bareReads reads the same rows on as many connections as the store, in batches of as many
// as there would be if all callers waited.
func (b *bench) bareReads(ctx context.Context, callers int) (float64, error) {
	batch := max(1, callers/readers)
	rate, _, err := rounds.Load(min(readers, callers), *each, func(int) error {
		ids := make([][]byte, batch)
		for i := range ids {
			ids[i] = b.settled[int(b.next.Add(1))%len(b.settled)].ID[:]
		}
		rows, err := b.pool.Query(ctx, "SELECT id, fingerprint, state, head, body FROM stet.records WHERE id = ANY ($1)", ids)
		if err != nil {
			return err
		}
		n := 0
		var id, fingerprint, head, body []byte
		var state int16
		_, err = pgx.ForEachRow(rows, []any{&id, &fingerprint, &state, &head, &body}, func() error { n++; return nil })
		if err == nil && n != batch {
			err = fmt.Errorf("read %d of %d rows", n, batch)
		}
		return err
	})
	return rate * float64(batch), err
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
				if err == nil {
					_, err = b.byHand(ctx, req)
				}
				errs[part] = err
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
