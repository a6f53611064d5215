package stetwork_test

import (
	"context"
	"database/sql"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// onSQLite is a bench on a store with transactions, and a table of shipments in it.
func onSQLite(t *testing.T, o stetwork.Options, p stet.Policy) (*bench, *sqlite.Store) {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "stet.db"), sqlite.Options{})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	_, err = s.DB().Exec(`CREATE TABLE shipments (book TEXT)`)
	must(t, err)
	if o.Backoff == nil {
		o.Backoff = func(int) time.Duration { return 10 * time.Millisecond }
	}
	o.Dispatch.Poll = 20 * time.Millisecond
	o.RecoverEvery = 50 * time.Millisecond
	return newBench(t, s, o, p), s
}

func shipments(t *testing.T, s *sqlite.Store) (n int) {
	t.Helper()
	must(t, s.DB().QueryRow(`SELECT count(*) FROM shipments`).Scan(&n))
	return n
}

func insert(ctx context.Context, tx *sql.Tx, p parcel) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO shipments VALUES (?)`, p.Book)
	return err
}

func TestWritesAndOutcomeAreOneCommit(t *testing.T) {
	b, s := onSQLite(t, stetwork.Options{}, stet.Policy{})
	var ran atomic.Int64
	must(t, stetwork.HandleTx(b.worker, stettest.TxEngine(b.engine, s), "ship", func(ctx context.Context, tx *sql.Tx, p parcel) (receipt, error) {
		must(t, insert(ctx, tx, p))
		switch ran.Add(1) {
		case 1:
			return receipt{}, errBroken
		case 2:
			panic("the lorry is on fire")
		case 3:
			stet.FromContext(ctx).Declare(stet.NotExecuted, 0)
		}
		return receipt{int(ran.Load())}, nil
	}))
	b.runs()
	st := b.await(b.accept("ship", "Emma"), store.Completed, store.Failed, store.Unknown)
	var got receipt
	if err := st.Outcome.Decode(&got); err != nil || got.Number != 4 {
		t.Error(got, err)
	}
	if n := shipments(t, s); n != 1 {
		t.Errorf("%d rows of one operation", n)
	}
}

func TestHandleOutcomeCanStoreAResponseInATransaction(t *testing.T) {
	b, s := onSQLite(t, stetwork.Options{}, stet.Policy{})
	te := stettest.TxEngine(b.engine, s)
	var ran atomic.Int64
	must(t, stetwork.HandleOutcome(b.worker, "ship", true, func(ctx context.Context, run *stet.Lease) (stet.Outcome, error) {
		return stet.Outcome{}, te.Finish(ctx, run, func(ctx context.Context, tx *sql.Tx) (stet.Outcome, error) {
			must(t, insert(ctx, tx, parcel{Book: "Emma"}))
			if ran.Add(1) == 1 {
				return stet.Outcome{}, errBroken
			}
			return stethttp.Outcome(http.StatusBadGateway, http.Header{}, []byte("no carrier"))
		})
	}))
	b.runs()
	st := b.await(b.accept("ship", "Emma"), store.Completed, store.Failed, store.Unknown)
	if st.Record.State != store.Failed || st.Outcome.Status != http.StatusBadGateway || string(st.Outcome.Body) != "no carrier" {
		t.Errorf("%v, %d, %q", st.Record.State, st.Outcome.Status, st.Outcome.Body)
	}
	if n := shipments(t, s); n != 1 || ran.Load() != 2 {
		t.Errorf("%d rows of %d runs", n, ran.Load())
	}
}

// A rollback does not undo what the handler says that it may have done elsewhere.
func TestDeclaredMayHaveExecutedInATransactionStaysUnknown(t *testing.T) {
	b, s := onSQLite(t, stetwork.Options{}, stet.Policy{})
	var ran atomic.Int64
	must(t, stetwork.HandleTx(b.worker, stettest.TxEngine(b.engine, s), "ship", func(ctx context.Context, tx *sql.Tx, p parcel) (receipt, error) {
		must(t, insert(ctx, tx, p))
		if ran.Add(1) == 1 {
			stet.FromContext(ctx).Declare(stet.MayHaveExecuted, 0)
		}
		return receipt{int(ran.Load())}, nil
	}))
	b.runs()
	id := b.accept("ship", "Emma")
	st := b.await(id, store.Completed, store.Failed, store.Unknown)
	if resolution, err := b.worker.Verify(t.Context(), b.status(id)); err != nil || resolution.State() != store.Unknown || st.Record.State != store.Unknown {
		t.Fatalf("%v, and the worker says of it %v, %v", st.Record.State, resolution, err)
	}
	if err := b.engine.Resolve(t.Context(), st.Record, "", stet.MayRunAgain()); stet.KindOf(err) != stet.KindUnknown {
		t.Errorf("it may be run again: %v", err)
	}
	must(t, b.engine.Resolve(t.Context(), st.Record, "", stet.ItDidNotHappen()))
	b.await(id, store.Completed)
	if n := shipments(t, s); n != 1 || ran.Load() != 2 {
		t.Errorf("%d rows after %d runs", n, ran.Load())
	}
}

func TestFailedTransactionLeavesOnlyItsOutcome(t *testing.T) {
	b, s := onSQLite(t, stetwork.Options{MaxAttempts: 3}, stet.Policy{})
	h := func(err error) func(context.Context, *sql.Tx, parcel) (receipt, error) {
		return func(ctx context.Context, tx *sql.Tx, p parcel) (receipt, error) {
			must(t, insert(ctx, tx, p))
			return receipt{}, err
		}
	}
	must(t, stetwork.HandleTx(b.worker, stettest.TxEngine(b.engine, s), "exhausted", h(errBroken)))
	must(t, stetwork.HandleTx(b.worker, stettest.TxEngine(b.engine, s), "permanent", h(stet.Permanent(errBroken))))
	b.runs()
	for name, attempts := range map[string]int{"exhausted": 3, "permanent": 1} {
		id := b.accept(name, name)
		b.failed(id, errBroken.Error())
		if st := b.status(id); st.Record.Attempt != attempts {
			t.Errorf("%s: attempt %d", name, st.Record.Attempt)
		}
	}
	if n := shipments(t, s); n != 0 {
		t.Errorf("%d rows", n)
	}
}

func TestStaleTransactionWritesNothing(t *testing.T) {
	b, s := onSQLite(t, stetwork.Options{CancelEvery: -1}, stet.Policy{Lease: 100 * time.Millisecond})
	// The first run loses its lease without noticing; its operation is run
	// again, and completed, before it continues.
	e := newEngine(t, deaf{s}, stet.Policy{Lease: 100 * time.Millisecond})
	zombie, err := stetwork.New(e, stetwork.Options{ErrorLog: quiet(), RecoverEvery: -1, CancelEvery: -1})
	must(t, err)
	began, goOn := make(chan struct{}), make(chan struct{})
	must(t, stetwork.Handle(zombie, "wait", func(ctx context.Context, p parcel) (receipt, error) {
		close(began)
		<-goOn
		// What HandleTx does, when it gets to it at last.
		run := &stet.Lease{Run: stet.FromContext(ctx)}
		err := stettest.TxEngine(e, deaf{s}).Finish(context.WithoutCancel(ctx), run, func(ctx context.Context, tx *sql.Tx) (stet.Outcome, error) {
			return stet.Outcome{}, insert(ctx, tx, p)
		})
		if stet.KindOf(err) != stet.KindFenced {
			t.Errorf("the zombie's transaction: %v", err)
		}
		return receipt{}, err
	}))
	id := b.accept("wait", "Emma")
	over := make(chan error, 1)
	go func() { over <- zombie.Do(context.Background(), stet.Item{ID: id, Name: "wait"}) }()
	<-began
	must(t, stetwork.HandleTx(b.worker, stettest.TxEngine(b.engine, s), "wait", func(ctx context.Context, tx *sql.Tx, p parcel) (receipt, error) {
		return receipt{2}, insert(ctx, tx, p)
	}))
	b.runs()
	b.await(id, store.Completed)
	close(goOn)
	must(t, <-over)
	if n := shipments(t, s); n != 1 {
		t.Errorf("%d rows of one operation", n)
	}
	var got receipt
	if err := b.status(id).Outcome.Decode(&got); err != nil || got.Number != 2 {
		t.Error(got, err)
	}
	must(t, zombie.Shutdown(t.Context()))
}

// deaf is a store in which no lease is renewed: the process stands still.
type deaf struct{ *sqlite.Store }

func (deaf) Extend(context.Context, []store.Claim, time.Duration) ([]store.Claim, error) {
	return nil, nil
}

func TestMessagesOfATransactionAreSentWithItsOutcome(t *testing.T) {
	b, s := onSQLite(t, stetwork.Options{}, stet.Policy{})
	must(t, stetwork.HandleTx(b.worker, stettest.TxEngine(b.engine, s), "ship", func(ctx context.Context, tx *sql.Tx, p parcel) (receipt, error) {
		run := stet.FromContext(ctx)
		if err := run.Emit(stet.Message{To: "shipped", Body: []byte(p.Book)}); err != nil {
			return receipt{}, err
		}
		if run.Attempt() == 1 {
			return receipt{}, errBroken
		}
		return receipt{}, insert(ctx, tx, p)
	}))
	b.runs()
	b.await(b.accept("ship", "Emma"), store.Completed)
	n, err := b.engine.Relay(t.Context(), 10, time.Minute, func(operations [][]stet.Message, told func(int, error)) error {
		if len(operations) != 1 || len(operations[0]) != 1 {
			t.Errorf("%+v", operations)
		}
		told(0, nil)
		return nil
	})
	if n != 1 || err != nil {
		t.Fatal(n, err)
	}
}

func TestHandleTxNeedsTheEnginesStore(t *testing.T) {
	b, s := onSQLite(t, stetwork.Options{}, stet.Policy{})
	other := newBench(t, memory.New(memory.Options{}), stetwork.Options{}, stet.Policy{})
	h := func(context.Context, *sql.Tx, parcel) (receipt, error) { return receipt{}, nil }
	if err := stetwork.HandleTx(other.worker, stettest.TxEngine(b.engine, s), "ship", h); stet.KindOf(err) != stet.KindInvalid {
		t.Error(err)
	}
}
