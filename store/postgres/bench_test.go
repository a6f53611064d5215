package postgres

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// These are for profiles. What the store is compared with is in bench/postgres.

var kilobyte = make([]byte, 1024)

// callers runs op from about n goroutines at a time.
func callers(b *testing.B, op func(ctx context.Context) error) {
	b.Helper()
	for _, n := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", n), func(b *testing.B) {
			b.SetParallelism((n + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := op(b.Context()); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// benchStore is a store with a pool as a service would have it.
func benchStore(b *testing.B) *Store {
	config := database(b).Config()
	config.MaxConns = 64
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return open(b, pool, Options{})
}

// BenchmarkPairs measures a claim and a settle with 1 KB.
func BenchmarkPairs(b *testing.B) {
	s := benchStore(b)
	callers(b, func(ctx context.Context) error {
		rec, err := s.Claim(ctx, request(stet.NewKey()))
		if err != nil {
			return err
		}
		return s.Settle(ctx, rec.Claim(), store.Settlement{State: store.Completed, Result: store.Result{Body: kilobyte}}, keep)
	})
}

// BenchmarkTransactions measures one business insert and a record of 1 KB in a
// transaction.
func BenchmarkTransactions(b *testing.B) {
	s := benchStore(b)
	execSQL(b, s.Pool(), "CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text)")
	callers(b, func(ctx context.Context) error {
		_, err := s.RunTx(ctx, request(stet.NewKey()), keep, func(ctx context.Context, tx pgx.Tx, _ store.Record) (store.Settlement, error) {
			_, err := tx.Exec(ctx, "INSERT INTO effects (name) VALUES ($1)", "payment")
			return store.Settlement{State: store.Completed, Result: store.Result{Body: kilobyte}}, err
		})
		return err
	})
}

// BenchmarkReplays measures reads of settled records of 1 KB, and claims of
// them.
func BenchmarkReplays(b *testing.B) {
	s := benchStore(b)
	reqs := make([]store.ClaimRequest, 10_000)
	var wg sync.WaitGroup
	for part := range 100 {
		wg.Go(func() {
			for i := part; i < len(reqs); i += 100 {
				reqs[i] = request(fmt.Sprint(i))
				mustSettle(b, s, mustClaim(b, s, reqs[i]).Claim(), string(kilobyte))
			}
		})
	}
	wg.Wait()
	var next atomic.Int64
	pick := func() *store.ClaimRequest { return &reqs[int(next.Add(1))%len(reqs)] }
	b.Run("Read", func(b *testing.B) {
		callers(b, func(ctx context.Context) error {
			rec, err := s.Read(ctx, pick().ID)
			if err == nil && rec.State != store.Completed {
				err = fmt.Errorf("read %v", rec.State)
			}
			return err
		})
	})
	b.Run("Claim", func(b *testing.B) {
		callers(b, func(ctx context.Context) error {
			req := *pick()
			req.Owner = store.NewOwner()
			_, err := s.Claim(ctx, req)
			return err
		})
	})
}

// BenchmarkWork measures an acceptance of 1 KB, a worker's claim of it, and a settle.
func BenchmarkWork(b *testing.B) {
	s := benchStore(b)
	callers(b, func(ctx context.Context) error {
		req := request(stet.NewKey())
		if _, err := s.Accept(ctx, req, kilobyte, 0); err != nil {
			return err
		}
		rec, err := s.Take(ctx, store.TakeRequest{ID: req.ID, Owner: store.NewOwner(), Lease: time.Minute})
		if err != nil {
			return err
		}
		return s.Settle(ctx, rec.Claim(), completed("done"), keep)
	})
}

// BenchmarkDue measures how 100 accepted operations of 10,000 are returned, in a
// table of a million records.
func BenchmarkDue(b *testing.B) {
	s := benchStore(b)
	execSQL(b, s.Pool(), `INSERT INTO stet.records (id, scope, fingerprint, owner, fence, claimed_at, settled_at, expires_at, forget_at, due_at, attempt, state, body, work, run_due)
		SELECT sha256(n::text::bytea), sha256(''), '\x01'::bytea || sha256(''), substr(sha256(n::text::bytea), 1, 16), n, now(),
			CASE WHEN n % 100 > 0 THEN now() END, CASE WHEN n % 100 > 0 THEN now() + interval '1 day' END, CASE WHEN n % 100 > 0 THEN now() + interval '1 day' END,
			CASE WHEN n % 100 > 0 THEN now() + interval '1 day' END, 1, CASE WHEN n % 100 > 0 THEN 2 ELSE 6 END,
			CASE WHEN n % 100 > 0 THEN decode(repeat('00', 64), 'hex') END, CASE WHEN n % 100 = 0 THEN decode(repeat('00', 1024), 'hex') END, CASE WHEN n % 100 = 0 THEN now() END
		FROM generate_series(1, 1000000) n`)
	for b.Loop() {
		// Due again at once, behind the others.
		recs, err := s.Due(b.Context(), 100, 0)
		if err != nil || len(recs) != 100 {
			b.Fatalf("%d records, %v", len(recs), err)
		}
	}
}
