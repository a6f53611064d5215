package engine_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

// bank is a SQLite store with a ledger that has no unique constraint.
func bank(t *testing.T) (*sqlite.Store, *stet.Engine) {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "bank.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if _, err := store.DB().ExecContext(t.Context(), `CREATE TABLE ledger (key TEXT, amount INTEGER)`); err != nil {
		t.Fatal(err)
	}
	return store, newEngine(t, store, stet.Options{})
}

func book(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger VALUES (?, 100)`, stet.FromContext(ctx).Op().Key)
	return err
}

func charges(t *testing.T, store *sqlite.Store) (n int) {
	t.Helper()
	if err := store.DB().QueryRowContext(t.Context(), `SELECT count(*) FROM ledger`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestTransactionInFlightRefusesDuplicatesHere(t *testing.T) {
	store, e := bank(t)
	other := op
	other.Fingerprint = stet.NewFingerprint([]byte("another request"))
	_, err := stet.DoTx(t.Context(), txOf(e, store), op, func(ctx context.Context, tx *sql.Tx) (int, error) {
		never := func(context.Context, *sql.Tx) (int, error) { t.Error("ran"); return 0, nil }
		if _, err := stet.DoTx(t.Context(), txOf(e, store), op, never); stet.KindOf(err) != stet.KindInFlight {
			t.Errorf("a duplicate: %v", err)
		}
		if _, err := stet.DoTx(t.Context(), txOf(e, store), other, never); stet.KindOf(err) != stet.KindMismatch {
			t.Errorf("another request: %v", err)
		}
		return 1, book(ctx, tx)
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stet.DoTx(t.Context(), txOf(e, store), other, func(context.Context, *sql.Tx) (int, error) { return 0, nil }); stet.KindOf(err) != stet.KindMismatch {
		t.Errorf("another request afterwards: %v", err)
	}
}

func TestHerdOfTransactionsOverTwoEnginesBooksOnce(t *testing.T) {
	store, e1 := bank(t)
	e2 := newEngine(t, store, stet.Options{})
	var wg sync.WaitGroup
	for i := range 200 {
		e := []*stet.Engine{e1, e2}[i%2]
		wg.Go(func() {
			res, err := stet.DoTx(t.Context(), txOf(e, store), op, func(ctx context.Context, tx *sql.Tx) (int, error) { return 7, book(ctx, tx) })
			if err != nil && stet.KindOf(err) != stet.KindInFlight || err == nil && res.Value != 7 {
				t.Errorf("%+v, %v", res, err)
			}
		})
	}
	wg.Wait()
	if n := charges(t, store); n != 1 {
		t.Fatalf("%d charges", n)
	}
}

func TestLostCommitReplyIsUnknownUntilItIsFoundOut(t *testing.T) {
	st, _ := bank(t)
	lost, runs := lostCommit{st}, 0
	do := func(s store.TxStore[*sql.Tx]) (stet.Result[int], error) {
		return stet.DoTx(t.Context(), txOf(newEngine(t, s, stet.Options{}), s), op, func(ctx context.Context, tx *sql.Tx) (int, error) { runs++; return 7, book(ctx, tx) })
	}
	if _, err := do(lost); stet.KindOf(err) != stet.KindUnknown || stet.ExecutionOf(err) != stet.MayHaveExecuted {
		t.Fatal(err)
	}
	if res, err := do(st); err != nil || !res.Replayed || res.Value != 7 || runs != 1 {
		t.Fatalf("%+v, %v, %d runs", res, err, runs)
	}
}

// vain is a store whose transaction has no effect, because another run has settled the
// operation.
type vain struct {
	*sqlite.Store
	other func()
}

func (s vain) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, *sql.Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	if _, err := s.Store.RunTx(ctx, req, keep, func(ctx context.Context, tx *sql.Tx, rec store.Record) (store.Settlement, error) {
		_, err := fn(ctx, tx, rec)
		return store.Settlement{}, errors.Join(err, errors.New("without effect"))
	}); err == nil {
		return store.Record{}, errors.New("it was committed")
	}
	s.other()
	return s.Read(ctx, req.ID)
}

func TestReplayHasNothingOfItsOwnFailedTransaction(t *testing.T) {
	store, e := bank(t)
	type receipt struct {
		Number  string            `json:"number,omitempty"`
		Refund  string            `json:"refund,omitempty"`
		Details map[string]string `json:"details,omitempty"`
	}
	v := vain{store, func() {
		if _, err := stet.DoTx(t.Context(), txOf(e, store), op, func(ctx context.Context, tx *sql.Tx) (receipt, error) {
			return receipt{Number: "2", Details: map[string]string{"b": "2"}}, book(ctx, tx)
		}); err != nil {
			t.Error(err)
		}
	}}
	res, err := stet.DoTx(t.Context(), txOf(newEngine(t, v, stet.Options{}), v), op, func(ctx context.Context, tx *sql.Tx) (receipt, error) {
		return receipt{Number: "1", Refund: "1", Details: map[string]string{"a": "1"}}, book(ctx, tx)
	})
	if err != nil || !res.Replayed || res.Value.Number != "2" || res.Value.Refund != "" || len(res.Value.Details) != 1 {
		t.Errorf("%+v, %v", res, err)
	}
	if n := charges(t, store); n != 1 {
		t.Errorf("%d charges", n)
	}
}

type lostCommit struct{ *sqlite.Store }

func (s lostCommit) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, *sql.Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	if _, err := s.Store.RunTx(ctx, req, keep, fn); err != nil {
		return store.Record{}, err
	}
	return store.Record{}, errors.Join(store.ErrUnknown, errDown)
}

func TestExpiredLeaseRunIsUnknownInTransactionsToo(t *testing.T) {
	st, e := bank(t)
	verified := newEngine(t, st, stet.Options{Policy: stet.Policy{
		Verify: func(context.Context, stet.Status) (stet.Resolution, error) { return stet.ItDidNotHappen(), nil },
	}})
	_, err := st.Claim(t.Context(), store.ClaimRequest{ID: store.Digest("", op.Scope, op.Key), Owner: store.NewOwner(), Lease: 1})
	if err != nil {
		t.Fatal(err)
	}
	run := func(e *stet.Engine) (stet.Result[int], error) {
		return stet.DoTx(t.Context(), txOf(e, st), op, func(ctx context.Context, tx *sql.Tx) (int, error) { return 7, book(ctx, tx) })
	}
	if _, err := run(e); stet.KindOf(err) != stet.KindUnknown || charges(t, st) != 0 {
		t.Fatal(err)
	}
	if res, err := run(verified); err != nil || res.Attempt != 2 || charges(t, st) != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
}

func TestStoreThatCannotBeUsedExecutesNoTransaction(t *testing.T) {
	store, e := bank(t)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := stet.DoTx(t.Context(), txOf(e, store), op, func(context.Context, *sql.Tx) (int, error) { t.Error("ran"); return 0, nil })
	if stet.KindOf(err) != stet.KindStore || stet.ExecutionOf(err) != stet.NotExecuted {
		t.Fatal(err)
	}
}

func TestTransactionThatTheStoreBeganAlreadyIsUnknown(t *testing.T) {
	store, _ := bank(t)
	odd := oddStore{store}
	e := newEngine(t, odd, stet.Options{})
	_, err := stet.DoTx(t.Context(), txOf(e, odd), op, func(context.Context, *sql.Tx) (int, error) { t.Error("ran"); return 0, nil })
	if stet.KindOf(err) != stet.KindUnknown {
		t.Fatal(err)
	}
}

// oddStore answers RunTx with a running record of the caller's own.
type oddStore struct{ *sqlite.Store }

func (oddStore) RunTx(_ context.Context, req store.ClaimRequest, _ store.Retention,
	_ func(context.Context, *sql.Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	return store.Record{ID: req.ID, State: store.Running, Owner: req.Owner, Fingerprint: req.Fingerprint, Fence: 1}, nil
}

func TestCallerThatLeavesTheQueueTakesItsTransactionBack(t *testing.T) {
	store, e := bank(t)
	holding, release := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := stet.DoTx(t.Context(), txOf(e, store), stet.Op{Scope: "s", Key: "long"}, func(context.Context, *sql.Tx) (int, error) {
			close(holding)
			<-release
			return 1, nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-holding
	ctx, leave := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer leave()
	_, err := stet.DoTx(ctx, txOf(e, store), op, func(context.Context, *sql.Tx) (int, error) { t.Error("ran"); return 0, nil })
	if !errors.Is(err, context.DeadlineExceeded) || stet.ExecutionOf(err) != stet.NotExecuted {
		t.Error(err)
	}
	close(release)
	wg.Wait()
}

// TestGoroutineLeftBehindMayReadItsRun fails under the race detector only.
func TestGoroutineLeftBehindMayReadItsRun(t *testing.T) {
	store, e := bank(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	_, err := stet.DoTx(t.Context(), txOf(e, store), op, func(ctx context.Context, tx *sql.Tx) (int, error) {
		run := stet.FromContext(ctx)
		reading := make(chan struct{})
		wg.Go(func() {
			for first := true; ; first = false {
				_, _, _ = run.Fence(), run.Op(), run.Declared()
				if first {
					close(reading)
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
		<-reading
		return 1, book(ctx, tx)
	})
	close(stop)
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
}
