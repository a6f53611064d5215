package postgres

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet"
)

var kilobyte = make([]byte, 1024)

// callers runs op from n goroutines, b.N times in all, and reports rates.
func callers(b *testing.B, n int, op func(ctx context.Context) error) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	took := make([][]time.Duration, n)
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	b.ResetTimer()
	for i := range n {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				begun := time.Now()
				if err := op(context.Background()); err != nil {
					failed.Store(&err)
					return
				}
				took[i] = append(took[i], time.Since(begun))
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	if err := failed.Load(); err != nil {
		b.Fatal(*err)
	}
	all := slices.Sorted(slices.Values(slices.Concat(took...)))
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(0, "ns/op")
}

func levels(b *testing.B, run func(b *testing.B, n int)) {
	for _, n := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", n), func(b *testing.B) { run(b, n) })
	}
}

// benchPool is a pool as a service would have it.
func benchPool(b *testing.B) *pgxpool.Pool {
	pool := database(b)
	config := pool.Config()
	config.MaxConns = 64
	big, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(big.Close)
	return big
}

// BenchmarkPairs measures a claim and a settle with 1 KB: through the store, and
// as they are commonly written by hand.
func BenchmarkPairs(b *testing.B) {
	b.Run("store", func(b *testing.B) {
		s := open(b, benchPool(b), Options{})
		levels(b, func(b *testing.B, n int) {
			callers(b, n, func(ctx context.Context) error {
				req := request(stet.NewKey())
				rec, err := s.Claim(ctx, req)
				if err != nil {
					return err
				}
				return s.Settle(ctx, rec.Claim(), stet.Outcome{State: stet.Completed, Result: kilobyte}, keep)
			})
		})
	})
	b.Run("plain", func(b *testing.B) {
		pool := plainTable(b)
		levels(b, func(b *testing.B, n int) {
			callers(b, n, func(ctx context.Context) error {
				id := sha256.Sum256([]byte(stet.NewKey()))
				if _, err := pool.Exec(ctx, "INSERT INTO plain (id, state) VALUES ($1, 1) ON CONFLICT DO NOTHING", id[:]); err != nil {
					return err
				}
				_, err := pool.Exec(ctx, "UPDATE plain SET state = 2, result = $2 WHERE id = $1", id[:], kilobyte)
				return err
			})
		})
	})
	b.Run("common", func(b *testing.B) {
		pool := plainTable(b)
		levels(b, func(b *testing.B, n int) {
			callers(b, n, func(ctx context.Context) error { return commonPattern(ctx, pool) })
		})
	})
}

func plainTable(b *testing.B) *pgxpool.Pool {
	pool := benchPool(b)
	execSQL(b, pool, "CREATE TABLE plain (id bytea PRIMARY KEY, state int, at timestamptz DEFAULT now(), result bytea)")
	return pool
}

// commonPattern is what idempotency tables are usually used by.
func commonPattern(ctx context.Context, pool *pgxpool.Pool) error {
	id := sha256.Sum256([]byte(stet.NewKey()))
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
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
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE plain SET state = 2, result = $2 WHERE id = $1", id[:], kilobyte)
		return err
	})
}

// BenchmarkTransactions measures one business insert in a transaction: bare, and
// with a record of 1 KB through RunTx.
func BenchmarkTransactions(b *testing.B) {
	business := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO effects (name) VALUES ($1)", "payment")
		return err
	}
	const table = "CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text)"
	b.Run("store", func(b *testing.B) {
		s := open(b, benchPool(b), Options{})
		execSQL(b, s.Pool(), table)
		levels(b, func(b *testing.B, n int) {
			callers(b, n, func(ctx context.Context) error {
				_, err := s.RunTx(ctx, request(stet.NewKey()), keep, func(ctx context.Context, tx pgx.Tx, _ stet.Record) (stet.Outcome, error) {
					return stet.Outcome{State: stet.Completed, Result: kilobyte}, business(ctx, tx)
				})
				return err
			})
		})
	})
	b.Run("bare", func(b *testing.B) {
		pool := benchPool(b)
		execSQL(b, pool, table)
		levels(b, func(b *testing.B, n int) {
			callers(b, n, func(ctx context.Context) error {
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return business(ctx, tx) })
			})
		})
	})
}

// BenchmarkReplays measures reads of settled records of 1 KB, and claims of
// them.
func BenchmarkReplays(b *testing.B) {
	s := open(b, benchPool(b), Options{})
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
		levels(b, func(b *testing.B, n int) {
			callers(b, n, func(ctx context.Context) error {
				rec, err := s.Read(ctx, pick().ID)
				if err == nil && rec.State != stet.Completed {
					err = fmt.Errorf("read %v", rec.State)
				}
				return err
			})
		})
	})
	b.Run("Claim", func(b *testing.B) {
		levels(b, func(b *testing.B, n int) {
			callers(b, n, func(ctx context.Context) error {
				req := *pick()
				req.Owner = stet.NewOwner()
				_, err := s.Claim(ctx, req)
				return err
			})
		})
	})
}
