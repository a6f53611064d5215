package river_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetwork"
	stetriver "github.com/stet-go/stet/stetwork/river"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(rig.Main(m)) }

const patience = 2 * time.Minute // for what a loaded machine does

type parcel struct{ Book string }

type receipt struct{ Number int }

var errBroken = errors.New("the lorry broke down")

// bench is a PostgreSQL with River and stet in it.
type bench struct {
	t      *testing.T
	pool   *pgxpool.Pool
	store  *postgres.Store
	engine *stet.Engine
	queue  *stetriver.Queue[pgx.Tx]
	worker *stetwork.Worker
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newBench(t *testing.T, again time.Duration) *bench {
	t.Helper()
	ctx := t.Context()
	b := &bench{t: t}
	var err error
	b.pool, err = pgxpool.New(context.Background(), rig.Postgres(t).Database(t))
	must(t, err)
	t.Cleanup(b.pool.Close)
	migrator, err := rivermigrate.New(riverpgxv5.New(b.pool), &rivermigrate.Config{Logger: quiet()})
	must(t, err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	must(t, err)
	_, err = b.pool.Exec(ctx, `CREATE TABLE orders (book text); CREATE TABLE shipments (book text)`)
	must(t, err)
	must(t, postgres.Migrate(ctx, b.pool, postgres.Options{}))
	b.store, err = postgres.New(ctx, b.pool, postgres.Options{})
	must(t, err)
	t.Cleanup(func() { _ = b.store.Close() })
	b.engine, err = stet.New(b.store, stet.Options{SweepEvery: -1})
	must(t, err)
	t.Cleanup(func() { _ = b.engine.Close() })
	insert, err := river.NewClient(riverpgxv5.New(b.pool), &river.Config{Logger: quiet()})
	must(t, err)
	b.queue, err = stetriver.New(insert, stetriver.Options{Again: again})
	must(t, err)
	b.worker, err = stetwork.New(b.engine, stetwork.Options{Queue: b.queue, ErrorLog: quiet(),
		Dispatch: stetwork.DispatcherOptions{Poll: 50 * time.Millisecond, Again: again},
		Backoff:  func(int) time.Duration { return 10 * time.Millisecond }})
	must(t, err)
	return b
}

// works has River and the worker run until the test ends.
func (b *bench) works() {
	b.t.Helper()
	workers := river.NewWorkers()
	must(b.t, stetriver.AddWorker(workers, b.worker))
	client, err := river.NewClient(riverpgxv5.New(b.pool), &river.Config{Logger: quiet(), Workers: workers, FetchPollInterval: 100 * time.Millisecond,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: b.worker.Concurrency()}}})
	must(b.t, err)
	must(b.t, client.Start(context.Background()))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.worker.Run(ctx) }()
	b.t.Cleanup(func() {
		must(b.t, client.Stop(context.Background()))
		cancel()
		must(b.t, <-done)
	})
}

// order accepts an operation with the row of its order; fail rolls back.
func (b *bench) order(name, book string, fail error) (stet.Status, error) {
	b.t.Helper()
	work, err := stetwork.NewWork(name, parcel{book})
	must(b.t, err)
	var st stet.Status
	err = pgx.BeginFunc(b.t.Context(), b.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(b.t.Context(), `INSERT INTO orders VALUES ($1)`, book); err != nil {
			return err
		}
		st, err = b.queue.AcceptTx(b.t.Context(), stettest.TxEngine(b.engine, b.store), tx, stet.Op{Scope: "shop", Key: book}, work)
		if err != nil {
			return err
		}
		return fail
	})
	return st, err
}

func (b *bench) count(query string) (n int) {
	b.t.Helper()
	must(b.t, b.pool.QueryRow(b.t.Context(), query).Scan(&n))
	return n
}

func (b *bench) await(id store.ID, states ...store.State) stet.Status {
	b.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		st, err := b.engine.Lookup(b.t.Context(), id)
		must(b.t, err)
		for _, s := range states {
			if st.Record.State == s {
				return st
			}
		}
		if time.Now().After(end) {
			b.t.Fatalf("the operation is %v; want %v", st.Record.State, states)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func ship(ctx context.Context, tx pgx.Tx, p parcel) (receipt, error) {
	_, err := tx.Exec(ctx, `INSERT INTO shipments VALUES ($1)`, p.Book)
	return receipt{stet.FromContext(ctx).Attempt()}, err
}

func TestOrderAcceptanceAndJobAreOneCommitAndItRunsOnce(t *testing.T) {
	b := newBench(t, time.Hour)
	must(t, stetwork.HandleTx(b.worker, stettest.TxEngine(b.engine, b.store), "ship", ship))
	var ids []store.ID
	for i := range 20 {
		st, err := b.order("ship", strconv.Itoa(i%10), nil) // each of them twice
		must(t, err)
		if st.New != (i < 10) {
			t.Errorf("order %d: new %v", i, st.New)
		}
		ids = append(ids, st.Record.ID)
	}
	if n := b.count(`SELECT count(*) FROM river_job`); n != 10 {
		t.Errorf("%d jobs for 10 operations", n)
	}
	b.works()
	for _, id := range ids {
		b.await(id, store.Completed)
	}
	if n := b.count(`SELECT count(*) FROM shipments`); n != 10 {
		t.Errorf("%d shipments; want 10", n)
	}
	if n := b.count(`SELECT count(*) FROM river_job`); n != 10 {
		t.Errorf("%d jobs for 10 operations: the dispatcher has passed operations of the queue again", n)
	}
}

func TestRollbackRemovesOperationAndJob(t *testing.T) {
	b := newBench(t, time.Hour)
	st, err := b.order("ship", "Emma", errBroken)
	if !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	if st, err := b.engine.Lookup(t.Context(), st.Record.ID); err != nil || st.Record.State != store.None {
		t.Error(st.Record.State, err)
	}
	if n := b.count(`SELECT count(*) FROM river_job`); n != 0 {
		t.Errorf("%d jobs", n)
	}
}

func TestOperationRunsAgainThroughAnotherJob(t *testing.T) {
	b := newBench(t, time.Hour)
	must(t, stetwork.HandleTx(b.worker, stettest.TxEngine(b.engine, b.store), "ship", func(ctx context.Context, tx pgx.Tx, p parcel) (receipt, error) {
		r, err := ship(ctx, tx, p)
		if err == nil && r.Number < 3 {
			err = errBroken
		}
		return r, err
	}))
	b.works()
	st, err := b.order("ship", "Emma", nil)
	must(t, err)
	if st := b.await(st.Record.ID, store.Completed); st.Record.Attempt != 3 {
		t.Errorf("attempt %d", st.Record.Attempt)
	}
	if n := b.count(`SELECT count(*) FROM shipments`); n != 1 {
		t.Errorf("%d shipments", n)
	}
}

func TestLostJobIsInsertedAgain(t *testing.T) {
	b := newBench(t, 500*time.Millisecond)
	must(t, stetwork.HandleTx(b.worker, stettest.TxEngine(b.engine, b.store), "ship", ship))
	st, err := b.order("ship", "Emma", nil)
	must(t, err)
	_, err = b.pool.Exec(t.Context(), `DELETE FROM river_job`)
	must(t, err)
	b.works()
	b.await(st.Record.ID, store.Completed)
}

func TestJobWaitsForAProcessWithItsHandler(t *testing.T) {
	b := newBench(t, time.Hour)
	var ran atomic.Int64
	must(t, stetwork.Handle(b.worker, "bill", func(context.Context, parcel) (receipt, error) { ran.Add(1); return receipt{}, nil }))
	b.works()
	st, err := b.order("ship", "Emma", nil)
	must(t, err)
	for end := time.Now().Add(patience); b.count(`SELECT count(*) FROM river_job WHERE state = 'scheduled' AND attempt = 0 AND scheduled_at > now()`) < 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the job was not put off")
		}
	}
	b.await(st.Record.ID, store.Accepted)
	if ran.Load() != 0 {
		t.Error("it ran")
	}
}

// The operation is not lost by that: it gets another job.
func TestJobWithoutAHandlerIsCancelled(t *testing.T) {
	b := newBench(t, time.Hour)
	must(t, stetwork.Handle(b.worker, "bill", func(context.Context, parcel) (receipt, error) { return receipt{}, nil }))
	last, err := b.order("ship", "Emma", nil)
	must(t, err)
	_, err = b.pool.Exec(t.Context(), `UPDATE river_job SET metadata = '{"snoozes": 20}'`)
	must(t, err)
	damaged, err := b.order("ship", "Persuasion", nil)
	must(t, err)
	_, err = b.pool.Exec(t.Context(), `UPDATE river_job SET metadata = '{"snoozes": "often"}' WHERE metadata->>'snoozes' IS NULL`)
	must(t, err)
	early, err := b.order("ship", "Mansfield MarkUnknown", nil)
	must(t, err)
	_, err = b.pool.Exec(t.Context(), `UPDATE river_job SET metadata = '{"snoozes": 19}' WHERE metadata->>'snoozes' IS NULL`)
	must(t, err)
	b.works()
	for end := time.Now().Add(patience); b.count(`SELECT count(*) FROM river_job WHERE state = 'cancelled' AND errors[1]->>'error' LIKE '%ship%'`) != 2 ||
		b.count(`SELECT count(*) FROM river_job WHERE state = 'scheduled' AND metadata->>'snoozes' = '20'`) != 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("two jobs should be cancelled, and one put off")
		}
	}
	for _, st := range []stet.Status{last, damaged, early} {
		b.await(st.Record.ID, store.Accepted)
	}
}

func TestJobAndAcceptanceAreOneCommit(t *testing.T) {
	b := newBench(t, time.Hour)
	must(t, stetwork.HandleTx(b.worker, stettest.TxEngine(b.engine, b.store), "ship", ship))
	work, err := stetwork.NewWork("ship", parcel{"Emma"})
	must(t, err)
	for _, fail := range []error{errBroken, nil} {
		var st stet.Status
		err := b.store.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) (err error) {
			if st, err = stettest.TxEngine(b.engine, b.store).Accept(ctx, tx, stet.Op{Scope: "shop", Key: "k"}, work); err != nil {
				return err
			}
			if err := b.queue.InsertTx(ctx, tx, stet.Item{ID: st.Record.ID, Name: work.Name}); err != nil {
				return err
			}
			return fail
		})
		if !errors.Is(err, fail) {
			t.Fatal(err)
		}
		want, jobs := store.Accepted, 1
		if fail != nil {
			want, jobs = store.None, 0
		}
		if now, err := b.engine.Lookup(t.Context(), st.Record.ID); err != nil || now.Record.State != want || b.count(`SELECT count(*) FROM river_job`) != jobs {
			t.Errorf("%v: %v, %v; want %v and %d jobs", fail, now.Record.State, err, want, jobs)
		}
		if fail == nil {
			b.works()
			b.await(st.Record.ID, store.Completed)
		}
	}
}

func TestJobOfAKilledProcessIsRescued(t *testing.T) {
	b := newBench(t, time.Hour)
	must(t, stetwork.HandleTx(b.worker, stettest.TxEngine(b.engine, b.store), "ship", ship))
	st, err := b.order("ship", "Emma", nil)
	must(t, err)
	_, err = b.pool.Exec(t.Context(), `UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now() - interval '2 hours', attempted_by = '{killed}'`)
	must(t, err)
	b.works()
	b.await(st.Record.ID, store.Completed)
}

func TestJobWithoutAnOperationIsCancelled(t *testing.T) {
	b := newBench(t, time.Hour)
	must(t, stetwork.HandleTx(b.worker, stettest.TxEngine(b.engine, b.store), "ship", ship))
	_, err := b.pool.Exec(t.Context(), `INSERT INTO river_job (args, kind, max_attempts) VALUES ('{"id":"no"}', 'stet', 25)`)
	must(t, err)
	b.works()
	for end := time.Now().Add(patience); b.count(`SELECT count(*) FROM river_job WHERE state = 'cancelled'`) != 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the job was not cancelled")
		}
	}
}

func TestWrongOptionsAreErrors(t *testing.T) {
	_, noClient := stetriver.New[pgx.Tx](nil, stetriver.Options{})
	client, err := river.NewClient(riverpgxv5.New(nil), &river.Config{})
	must(t, err)
	// An operation that is run again needs a job of its own.
	_, unique := stetriver.New(client, stetriver.Options{Insert: river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}})
	_, pending := stetriver.New(client, stetriver.Options{Insert: river.InsertOpts{Pending: true}})
	_, late := stetriver.New(client, stetriver.Options{Insert: river.InsertOpts{ScheduledAt: time.Now()}})
	for name, err := range map[string]error{"no client": noClient, "no workers": stetriver.AddWorker(nil, nil), "unique": unique, "pending": pending, "late": late} {
		if stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A job that comes before its operation may run, by another clock, is done with and does
// nothing.
func TestDelayedOperationRunsDespiteAnEarlyJob(t *testing.T) {
	b := newBench(t, time.Hour)
	must(t, stetwork.HandleTx(b.worker, stettest.TxEngine(b.engine, b.store), "ship", ship))
	work, err := stetwork.NewWork("ship", parcel{"Emma"})
	must(t, err)
	work.After = 2 * time.Second
	must(t, pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
		_, err := b.queue.AcceptTx(t.Context(), stettest.TxEngine(b.engine, b.store), tx, stet.Op{Scope: "shop", Key: "Emma"}, work)
		return err
	}))
	_, err = b.pool.Exec(t.Context(), `UPDATE river_job SET state = 'available', scheduled_at = now()`)
	must(t, err)
	b.works()
	stettest.Eventually(t, "the shipment, by another job", func() bool { return b.count(`SELECT count(*) FROM shipments`) == 1 })
}
