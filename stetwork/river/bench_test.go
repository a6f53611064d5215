package river_test

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetwork"
	stetriver "github.com/stet-go/stet/stetwork/river"
	"github.com/stet-go/stet/store/postgres"
)

const (
	callers = 16
	workers = 64
)

// BenchmarkOrders is an order with its row and its job in one commit, and a
// shipment with its row and the job's end in another: through River alone, and
// with stet.
func BenchmarkOrders(b *testing.B) {
	b.Run("river", alone)
	b.Run("stet", withStet)
}

func benchPool(b *testing.B) *pgxpool.Pool {
	b.Helper()
	config, err := pgxpool.ParseConfig(rig.Postgres(b).Database(b))
	check(b, err)
	config.MaxConns = callers + workers + 8
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	check(b, err)
	b.Cleanup(pool.Close)
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet()})
	check(b, err)
	_, err = migrator.Migrate(b.Context(), rivermigrate.DirectionUp, nil)
	check(b, err)
	_, err = pool.Exec(b.Context(), `CREATE TABLE orders (book text); CREATE TABLE shipments (book text)`)
	check(b, err)
	return pool
}

func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func client(b *testing.B, pool *pgxpool.Pool, ws *river.Workers) *river.Client[pgx.Tx] {
	b.Helper()
	c, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: slog.New(slog.DiscardHandler), Workers: ws,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}}})
	check(b, err)
	check(b, c.Start(context.Background()))
	b.Cleanup(func() { check(b, c.Stop(context.Background())) })
	return c
}

type plainArgs struct {
	Book string `json:"book"`
}

func (plainArgs) Kind() string { return "plain" }

type plainWorker struct {
	river.WorkerDefaults[plainArgs]
	pool *pgxpool.Pool
	done func()
}

func (w *plainWorker) Work(ctx context.Context, job *river.Job[plainArgs]) error {
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO shipments VALUES ($1)`, job.Args.Book); err != nil {
			return err
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
	if err == nil {
		w.done()
	}
	return err
}

func alone(b *testing.B) {
	pool := benchPool(b)
	ws := river.NewWorkers()
	done, over := countdown(b.N)
	river.AddWorker(ws, &plainWorker{pool: pool, done: done})
	c := client(b, pool, ws)
	orders(b, over, func(ctx context.Context, book string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO orders VALUES ($1)`, book); err != nil {
				return err
			}
			_, err := c.InsertTx(ctx, tx, plainArgs{book}, nil)
			return err
		})
	})
}

func withStet(b *testing.B) {
	pool := benchPool(b)
	check(b, postgres.Migrate(b.Context(), pool, postgres.Options{}))
	store, err := postgres.New(b.Context(), pool, postgres.Options{})
	check(b, err)
	defer store.Close()
	engine, err := stet.New(store, stet.Options{SweepEvery: -1})
	check(b, err)
	defer engine.Close()
	insert, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet()})
	check(b, err)
	queue, err := stetriver.New(insert, stetriver.Options{})
	check(b, err)
	worker, err := stetwork.New(engine, stetwork.Options{Queue: queue, Concurrency: workers, ErrorLog: quiet(), RecoverEvery: -1})
	check(b, err)
	done, over := countdown(b.N)
	check(b, stetwork.HandleTx(worker, stettest.TxEngine(engine, store), "ship", func(ctx context.Context, tx pgx.Tx, p parcel) (receipt, error) {
		_, err := tx.Exec(ctx, `INSERT INTO shipments VALUES ($1)`, p.Book)
		done()
		return receipt{}, err
	}))
	ws := river.NewWorkers()
	check(b, stetriver.AddWorker(ws, worker))
	client(b, pool, ws)
	work, err := stetwork.NewWork("ship", parcel{"Emma"})
	check(b, err)
	orders(b, over, func(ctx context.Context, book string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO orders VALUES ($1)`, book); err != nil {
				return err
			}
			_, err := queue.AcceptTx(ctx, stettest.TxEngine(engine, store), tx, stet.Op{Scope: "shop", Key: book}, work)
			return err
		})
	})
	check(b, worker.Shutdown(context.Background()))
}

// countdown is closed over when done was called n times.
func countdown(n int) (done func(), over chan struct{}) {
	var left atomic.Int64
	left.Store(int64(n))
	over = make(chan struct{})
	return func() {
		if left.Add(-1) == 0 {
			close(over)
		}
	}, over
}

// orders has b.N orders placed, and waits until all are shipped.
func orders(b *testing.B, over chan struct{}, place func(context.Context, string) error) {
	b.Helper()
	b.ResetTimer()
	began := time.Now()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if err := place(b.Context(), strconv.FormatInt(i, 10)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "accepted/s")
	<-over
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "ended/s")
}
