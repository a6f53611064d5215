// Command sweep measures, on a PostgreSQL table of many records of which a part
// has expired and a part is stuck, how long an operator waits for a page of
// them, and what a sweep costs the foreground: the rate of claims and settles
// without a sweep and while one runs.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/rig"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
)

var (
	rows    = flag.Int("rows", 5_000_000, "records in the table")
	expired = flag.Int("expired", 1_000_000, "of them past the time of their result")
	stuck   = flag.Int("stuck", 100_000, "of them unknown")
	callers = flag.Int("callers", 16, "concurrent callers in the foreground")
	each    = flag.Duration("each", 3*time.Second, "how long one measurement takes")
	n       = flag.Int("rounds", 5, "rounds")
)

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "sweep:", err)
		os.Exit(1)
	}
}

// fill makes records of 100 bytes, settled some hours ago and in part expired an
// hour ago, and at the end some that are stuck, in the form in which the store
// leaves them.
const fill = `
INSERT INTO stet.records (id, scope, fingerprint, owner, fence, attempt, state, gone, body, claimed_at, settled_at, expires_at, forget_at, due_at)
SELECT substr(scope, 1, 8) || substr(sha256(int8send(i)), 1, 24), scope, '\x01'::bytea || sha256(int8send(i)), substr(sha256(int8send(-i)), 1, 16), i, 1,
	CASE WHEN open THEN 5 ELSE 2 END, false, CASE WHEN NOT open THEN decode(repeat('72', 100), 'hex') END,
	at, at, e, CASE WHEN NOT open THEN now() + interval '29 days' END, e
FROM generate_series($1::bigint, $2::bigint) i, LATERAL (SELECT i > $5 AS open, sha256(int8send(i % $4)) AS scope,
	now() - interval '25 hours' + i * interval '10 milliseconds' AS at) t,
	LATERAL (SELECT CASE WHEN open THEN NULL WHEN i <= $3 THEN now() - interval '1 hour' ELSE now() + interval '23 hours' END e) u`

// scopes is how many there are; the digest of one is the SHA-256 of its number.
const scopes = 1000

func run(ctx context.Context) (err error) {
	r, err := rig.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	server, err := r.StartPostgres(ctx, rig.PostgresOptions{Settings: map[string]string{"shared_buffers": "1GB", "max_wal_size": "4GB"}})
	if err != nil {
		return err
	}
	name, err := server.CreateDatabase(ctx)
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, server.URL(name))
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := postgres.Migrate(ctx, pool, postgres.Options{}); err != nil {
		return err
	}
	const step = 250_000
	for from := 1; from <= *rows; from += step {
		if _, err := pool.Exec(ctx, fill, from, min(from+step-1, *rows), *expired, scopes, *rows-*stuck); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%d of %d records\n", min(from+step-1, *rows), *rows)
	}
	if _, err := pool.Exec(ctx, `ALTER SEQUENCE stet.records_fence RESTART WITH `+fmt.Sprint(*rows+1)); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, `VACUUM ANALYSE stet.records`); err != nil {
		return err
	}
	store, err := postgres.New(ctx, pool, postgres.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := browse(ctx, store); err != nil {
		return err
	}
	if err := measure(ctx, store); err != nil {
		return err
	}
	return vacuums(ctx, pool)
}

// vacuums prints what autovacuum has done about what settling and sweeping left
// behind, which is a matter of luck in a run of less than a minute.
func vacuums(ctx context.Context, pool *pgxpool.Pool) error {
	var live, dead, times int64
	var size string
	err := pool.QueryRow(ctx, `SELECT n_live_tup, n_dead_tup, autovacuum_count, pg_size_pretty(pg_total_relation_size(relid))
		FROM pg_stat_user_tables WHERE relid = 'stet.records'::regclass`).Scan(&live, &dead, &times, &size)
	fmt.Printf("%d records, %d dead versions, %s; autovacuum has come by %d times\n", live, dead, size, times)
	return err
}

func measure(ctx context.Context, store *postgres.Store) error {
	var swept atomic.Int64
	var dry atomic.Bool // nothing was left to sweep
	var failed atomic.Pointer[error]
	observe := observe.Func(func(_ context.Context, ev observe.Event) {
		if ev.Kind != observe.Swept {
			return
		}
		if ev.Err != nil {
			failed.Store(&ev.Err)
		}
		swept.Add(int64(ev.Swept.Expired + ev.Swept.Purged + ev.Swept.Parked))
		if !ev.Swept.More {
			dry.Store(true)
		}
	})
	rates, err := rounds.Compare(*n,
		rounds.Contender{Name: "alone", Measure: func() (float64, error) { return load(ctx, store) }},
		rounds.Contender{Name: "sweeping", Measure: func() (float64, error) {
			// The engine's own sweeper, which never comes to rest here.
			engine, err := stet.New(store, stet.Options{SweepEvery: 20 * time.Millisecond, Observer: observe})
			if err != nil {
				return 0, err
			}
			rate, err := load(ctx, store)
			if e := failed.Load(); e != nil {
				err = errors.Join(err, *e)
			}
			return rate, errors.Join(err, engine.Close())
		}})
	if err != nil {
		return err
	}
	if dry.Load() {
		return errors.New("the sweep ended before the measurement did: give more -expired, or less -each or -rounds")
	}
	ratio := rounds.Ratio(rates["sweeping"], rates["alone"])
	fmt.Printf("%d callers on %d records: %.0f pairs/s, %.0f while %d records were swept\n",
		*callers, *rows, rounds.Median(rates["alone"]), rounds.Median(rates["sweeping"]), swept.Load())
	rounds.Figure("postgres_sweep_foreground_ratio", ratio, "x without a sweep")
	rounds.Figure("postgres_swept", float64(swept.Load())/(float64(*n+1)*each.Seconds()), "records/s")
	return nil
}

var result = bytes.Repeat([]byte("r"), 1024)

func load(ctx context.Context, st *postgres.Store) (float64, error) {
	var wg sync.WaitGroup
	var done atomic.Int64
	errs := make([]error, *callers)
	began := time.Now()
	for i := range *callers {
		wg.Go(func() {
			for time.Since(began) < *each && errs[i] == nil {
				rec, err := st.Claim(ctx, store.ClaimRequest{ID: store.Digest("bench", "s", stet.NewKey()), Owner: store.NewOwner(), Lease: 30 * time.Second})
				if err == nil {
					err = st.Settle(ctx, rec.Claim(), store.Settlement{State: store.Completed, Result: store.Result{Body: result}},
						store.Retention{Result: 24 * time.Hour, Tombstone: 30 * 24 * time.Hour})
				}
				errs[i] = err
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(began).Seconds(), errors.Join(errs...)
}
