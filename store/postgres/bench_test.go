package postgres

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet"
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
		return s.Settle(ctx, rec.Claim(), stet.Outcome{State: stet.Completed, Result: kilobyte}, keep)
	})
}

// BenchmarkTransactions measures one business insert and a record of 1 KB in a
// transaction.
func BenchmarkTransactions(b *testing.B) {
	s := benchStore(b)
	execSQL(b, s.Pool(), "CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text)")
	callers(b, func(ctx context.Context) error {
		_, err := s.RunTx(ctx, request(stet.NewKey()), keep, func(ctx context.Context, tx pgx.Tx, _ stet.Record) (stet.Outcome, error) {
			_, err := tx.Exec(ctx, "INSERT INTO effects (name) VALUES ($1)", "payment")
			return stet.Outcome{State: stet.Completed, Result: kilobyte}, err
		})
		return err
	})
}

// BenchmarkReplays measures reads of settled records of 1 KB, and claims of
// them.
func BenchmarkReplays(b *testing.B) {
	s := benchStore(b)
	reqs := make([]stet.ClaimRequest, 10_000)
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
	pick := func() *stet.ClaimRequest { return &reqs[int(next.Add(1))%len(reqs)] }
	b.Run("Read", func(b *testing.B) {
		callers(b, func(ctx context.Context) error {
			rec, err := s.Read(ctx, pick().ID)
			if err == nil && rec.State != stet.Completed {
				err = fmt.Errorf("read %v", rec.State)
			}
			return err
		})
	})
	b.Run("Claim", func(b *testing.B) {
		callers(b, func(ctx context.Context) error {
			req := *pick()
			req.Owner = stet.NewOwner()
			_, err := s.Claim(ctx, req)
			return err
		})
	})
}
