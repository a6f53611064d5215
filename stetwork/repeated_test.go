package stetwork_test

import (
	"context"
	"database/sql"
	"log"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/sqlite"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(killedEnv); url != "" {
		if err := dyingInTx(url); err != nil {
			log.Fatal(err)
		}
		return
	}
	goleak.VerifyTestMain(rig.Main(m))
}

// soon is how long after the end of its lease an expired run must be repeated at the
// latest, with the defaults of the package.
const (
	soon  = 4 * stetwork.DefaultPoll
	lease = 30 * time.Second // the default of stet.Policy
)

// dies takes the operation as a worker does, and then stops.
func dies(t *testing.T, s store.Store, id store.ID, name string, repeatable bool) *stet.Lease {
	t.Helper()
	e, err := stet.New(s, stet.Options{SweepEvery: -1})
	must(t, err)
	run, err := e.Take(t.Context(), stet.Item{ID: id, Name: name, Repeatable: repeatable})
	must(t, err)
	must(t, e.Close())
	return run
}

// repeated waits until the operation is completed, and requires that it was never
// unknown, and that its second run came as soon as the lease of the first was over.
func (b *bench) repeated(id store.ID, died time.Time) {
	b.t.Helper()
	for {
		st := b.status(id)
		if st.Record.State == store.Unknown {
			b.t.Fatalf("%v after it died, a run that may be repeated is unknown", time.Since(died))
		}
		if st.Record.State == store.Completed {
			if st.Record.Attempt != 2 {
				b.t.Errorf("completed by attempt %d; want the second", st.Record.Attempt)
			}
			return
		}
		if late := time.Since(died); late > lease+soon {
			b.t.Fatalf("%v after the run died the operation is %v, LeaseLeft %v", late, st.Record.State, st.Record.LeaseLeft)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func TestExpiredIdempotentRunRunsAgainAndIsNeverUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		b := newBench(t, s, stetwork.Options{}, stet.Policy{})
		must(t, stetwork.HandleIdempotent(b.worker, "ship", func(context.Context, parcel) (receipt, error) { return receipt{1}, nil }))
		must(t, stetwork.Handle(b.worker, "charge", func(context.Context, parcel) (receipt, error) { return receipt{1}, nil }))
		id, plain := b.accept("ship", "Emma"), b.accept("charge", "Emma's")
		died := time.Now()
		dies(t, s, id, "ship", true)
		dies(t, s, plain, "charge", false)
		b.runs()
		b.repeated(id, died)
		if st := b.await(plain, store.Unknown, store.Completed, store.Failed); st.Record.State != store.Unknown {
			t.Errorf("an expired run of which it was not said that it may be repeated is %v", st.Record.State)
		}
	})
}

func TestExpiredTransactionRunsAgainAndIsNeverUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "stet.db"), sqlite.Options{})
		must(t, err)
		t.Cleanup(func() { _ = s.Close() })
		b := newBench(t, s, stetwork.Options{}, stet.Policy{})
		must(t, stetwork.HandleTx(b.worker, stettest.TxEngine(b.engine, s), "ship", func(context.Context, *sql.Tx, parcel) (receipt, error) { return receipt{1}, nil }))
		id := b.accept("ship", "Emma")
		died := time.Now()
		zombie := dies(t, s, id, "ship", true)
		b.runs()
		b.repeated(id, died)
		err = stettest.TxEngine(b.engine, s).Finish(t.Context(), zombie, func(context.Context, *sql.Tx) (stet.Outcome, error) {
			return stet.Outcome{Body: []byte("zombie")}, nil
		})
		if stet.KindOf(err) != stet.KindFenced {
			t.Errorf("the expired run finished: %v; want KindFenced", err)
		}
	})
}

func TestOpenStep_KeepsAnExpiredRunFromBeingRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		b := newBench(t, s, stetwork.Options{}, stet.Policy{})
		must(t, stetwork.HandleIdempotent(b.worker, "ship", func(context.Context, parcel) (receipt, error) {
			t.Error("it was run again")
			return receipt{1}, nil
		}))
		id := b.accept("ship", "Emma")
		died := time.Now()
		e, err := stet.New(s, stet.Options{SweepEvery: -1})
		must(t, err)
		run, err := e.Take(t.Context(), stet.Item{ID: id, Name: "ship", Repeatable: true})
		must(t, err)
		stuck := make(chan struct{})
		go func() {
			_, _ = stet.StepOnce(run.Context(), "charge", func(context.Context) (int, error) {
				<-stuck
				return 0, context.Canceled
			})
		}()
		synctest.Wait()
		must(t, e.Close())
		b.runs()
		st := b.await(id, store.Unknown, store.Completed, store.Failed)
		if st.Record.State != store.Unknown || st.OpenStep != "charge" || st.Record.Attempt != 1 {
			t.Errorf("%v after the run died the operation is %v, attempt %d, unknown of %q; want it unknown", time.Since(died), st.Record.State, st.Record.Attempt, st.OpenStep)
		}
		close(stuck)
		synctest.Wait()
	})
}

// Only the ID of an item is trusted. Its name has an idempotent handler; the name in the record
// has not.
func TestForgedItemDoesNotMakeARunRepeatable(t *testing.T) {
	inMemory(t, stetwork.Options{}, stet.Policy{}, func(t *testing.T, b *bench) {
		must(t, stetwork.HandleIdempotent(b.worker, "ship", func(context.Context, parcel) (receipt, error) { return receipt{}, nil }))
		began := make(chan struct{})
		must(t, stetwork.Handle(b.worker, "charge", func(ctx context.Context, _ parcel) (receipt, error) {
			close(began)
			<-ctx.Done()
			return receipt{}, ctx.Err()
		}))
		id := b.accept("charge", "Emma")
		did := make(chan error, 1)
		go func() { did <- b.worker.Do(context.Background(), stet.Item{ID: id, Name: "ship"}) }()
		<-began
		must(t, b.engine.Close()) // its lease is not renewed
		must(t, <-did)
		time.Sleep(lease + time.Second)
		items, err := newEngine(t, b.store, stet.Policy{}).Due(t.Context(), 10, time.Minute)
		if st := b.status(id); err != nil || len(items) > 0 || st.Record.State != store.Unknown && st.Record.State != store.Running {
			t.Errorf("a run that may not be repeated is %v, and due: %v, %v", st.Record.State, items, err)
		}
	})
}

const killedEnv = "STETWORK_KILLED"

// dyingInTx is a worker that is killed in the transaction of its handler.
func dyingInTx(url string) error {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	s, err := postgres.New(ctx, pool, postgres.Options{})
	if err != nil {
		return err
	}
	e, err := stet.New(s, stet.Options{})
	if err != nil {
		return err
	}
	w, err := stetwork.New(e, stetwork.Options{ErrorLog: quiet()})
	if err != nil {
		return err
	}
	err = stetwork.HandleTx(w, stettest.TxEngine(e, s), "ship", func(ctx context.Context, tx pgx.Tx, p parcel) (receipt, error) {
		if _, err := tx.Exec(ctx, `INSERT INTO shipments VALUES ($1)`, p.Book); err != nil {
			return receipt{}, err
		}
		child.Ready(os.Stdout, "began")
		select {}
	})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

func TestRunKilledInItsTransactionRunsAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes as long as a lease by default")
	}
	t.Parallel()
	url := rig.Postgres(t).Database(t)
	pool, err := pgxpool.New(t.Context(), url)
	must(t, err)
	t.Cleanup(pool.Close)
	must(t, postgres.Migrate(t.Context(), pool, postgres.Options{}))
	_, err = pool.Exec(t.Context(), `CREATE TABLE shipments (book text)`)
	must(t, err)
	s, err := postgres.New(t.Context(), pool, postgres.Options{})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	b := newBench(t, s, stetwork.Options{}, stet.Policy{})
	must(t, stetwork.HandleTx(b.worker, stettest.TxEngine(b.engine, s), "ship", func(ctx context.Context, tx pgx.Tx, p parcel) (receipt, error) {
		_, err := tx.Exec(ctx, `INSERT INTO shipments VALUES ($1)`, p.Book)
		return receipt{1}, err
	}))
	id := b.accept("ship", "Emma")
	killed, err := child.Start(t.Context(), child.Command{Env: []string{killedEnv + "=" + url}})
	must(t, err)
	killed.Kill()
	died := time.Now()
	b.runs()
	b.repeated(id, died)
	var rows int
	must(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM shipments`).Scan(&rows))
	if rows != 1 {
		t.Errorf("%d rows; want those of the second run only", rows)
	}
}
