package engine_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

var inner = stet.Op{Scope: "acct_1", Key: "inner"}

func TestOperationInsideATransactionOfTheSameStoreIsRefusedAtOnce(t *testing.T) {
	store, e := bank(t)
	started := time.Now()
	_, err := stet.DoTx(t.Context(), txOf(e, store), op, func(ctx context.Context, tx *sql.Tx) (int, error) {
		_, err := stet.DoTx(ctx, txOf(e, store), inner, func(context.Context, *sql.Tx) (int, error) { t.Error("ran"); return 0, nil })
		if stet.KindOf(err) != stet.KindInvalid || stet.ExecutionOf(err) != stet.NotExecuted {
			t.Errorf("DoTx inside: %v", err)
		}
		_, err = stet.Do(ctx, e, inner, func(context.Context) (int, error) { t.Error("ran"); return 0, nil })
		if stet.KindOf(err) != stet.KindInvalid || stet.ExecutionOf(err) != stet.NotExecuted {
			t.Errorf("Do inside: %v", err)
		}
		return 1, book(ctx, tx)
	})
	if took := time.Since(started); err != nil || took > 3*time.Second {
		t.Errorf("%v after %v", err, took)
	}
	if res, err := stet.Do(t.Context(), e, inner, func(context.Context) (int, error) { return 1, nil }); err != nil || res.Replayed {
		t.Errorf("afterwards: %+v, %v", res, err)
	}
}

func TestRollbackOfAnInnerOperationDoesNotReleaseTheOuter(t *testing.T) {
	store, e := bank(t)
	charged := 0
	for range 2 {
		_, err := stet.Do(t.Context(), e, op, func(ctx context.Context) (int, error) {
			charged++ // an effect outside
			_, err := stet.DoTx(ctx, txOf(e, store), inner, func(context.Context, *sql.Tx) (int, error) { return 0, errors.New("constraint") })
			if err != nil {
				return 0, fmt.Errorf("booking: %w", err)
			}
			return 1, nil
		})
		if stet.KindOf(err) != stet.KindFailed {
			t.Error(err)
		}
	}
	if charged != 1 {
		t.Fatalf("charged %d times", charged)
	}
}

func TestMismatchOfAnInnerOperationIsNotTheOuters(t *testing.T) {
	store, e := bank(t)
	_, err := stet.DoTx(t.Context(), txOf(e, store), op, func(context.Context, *sql.Tx) (int, error) {
		return 0, &stet.Error{Kind: stet.KindMismatch}
	})
	if se, ok := errors.AsType[*stet.Error](err); !ok || se.Kind != stet.KindRetryable {
		t.Fatal(err)
	}
}

// shy panics when it is encoded.
type shy struct{}

func (shy) MarshalJSON() ([]byte, error) { panic("boom") }

func TestPanicWhileEncodingLeavesNoClaimBehind(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	_, first := stet.Do(t.Context(), e, op, func(context.Context) (shy, error) { return shy{}, nil })
	_, again := stet.Do(t.Context(), e, op, func(context.Context) (int, error) { t.Error("ran again"); return 1, nil })
	for _, err := range []error{first, again} { // it has returned: what cannot be kept is its result
		if stet.KindOf(err) != stet.KindExpired || stet.ExecutionOf(err) != stet.Executed {
			t.Fatal(err)
		}
	}
}

func TestSettleTxCommitsTheOutcomeWithTheCallersWrites(t *testing.T) {
	store, e := bank(t)
	out := stet.Outcome{Body: []byte(`"receipt"`)}
	for _, commit := range []bool{false, true} {
		run := begin(t, e, op)
		tx, err := store.DB().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := book(run.Context(), tx); err != nil {
			t.Fatal(err)
		}
		if err := txOf(e, store).Settle(t.Context(), run, tx, out); err != nil {
			t.Fatal(err)
		}
		if !commit {
			if err := errors.Join(tx.Rollback(), run.Release(t.Context(), stet.Again{})); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := errors.Join(tx.Commit(), run.Settle(t.Context(), out)); err != nil {
			t.Fatal(err)
		}
	}
	res, err := stet.Do(t.Context(), e, op, func(context.Context) (string, error) { t.Error("ran"); return "", nil })
	if err != nil || res.Value != "receipt" || charges(t, store) != 1 {
		t.Fatalf("%+v, %v, %d charges", res, err, charges(t, store))
	}
}

func TestStaleRunCannotSettleInATransaction(t *testing.T) {
	st, e := bank(t)
	run := begin(t, e, op)
	if err := st.Release(t.Context(), claimOf(t, st, run), store.Retention{Result: time.Hour, Tombstone: time.Hour}); err != nil {
		t.Fatal(err)
	}
	next := begin(t, newEngine(t, st, stet.Options{}), op)
	tx, err := st.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	err = txOf(e, st).Settle(t.Context(), run, tx, stet.Outcome{})
	if stet.KindOf(err) != stet.KindFenced {
		t.Errorf("a stale run's settle: %v", err)
	}
	if err := errors.Join(tx.Rollback(), next.Settle(t.Context(), stet.Outcome{})); err != nil {
		t.Fatal(err)
	}
}

// TestOperationInsideItselfIsRefused, at once: it would wait for its own end, or
// tell its own run that it is in flight.
func TestOperationInsideItselfIsRefused(t *testing.T) {
	store, e := bank(t)
	other := newEngine(t, store, stet.Options{})
	never := func(context.Context) (int, error) { t.Error("ran"); return 0, nil }
	inside := map[string]func(context.Context) error{
		"Do":                   func(ctx context.Context) error { _, err := stet.Do(ctx, e, op, never); return err },
		"Do by another engine": func(ctx context.Context) error { _, err := stet.Do(ctx, other, op, never); return err },
		"Do without the run's deadline": func(ctx context.Context) error {
			_, err := stet.Do(context.WithoutCancel(ctx), e, op, never)
			return err
		},
		"Accept":                         func(ctx context.Context) error { _, err := e.Accept(ctx, op, parcel); return err },
		"Do inside of another operation": nil,
		"DoTx": func(ctx context.Context) error {
			_, err := stet.DoTx(ctx, txOf(e, store), op, func(context.Context, *sql.Tx) (int, error) { return never(ctx) })
			return err
		},
	}
	inside["Do inside of another operation"] = func(ctx context.Context) (err error) {
		_, _ = stet.Do(ctx, e, inner, func(ctx context.Context) (int, error) { err = inside["Do"](ctx); return 1, nil })
		return err
	}
	for name, call := range inside {
		began := time.Now()
		refused := func(ctx context.Context) {
			if err := call(ctx); stet.KindOf(err) != stet.KindInvalid || stet.ExecutionOf(err) != stet.NotExecuted || time.Since(began) > 5*time.Second {
				t.Errorf("%s: %v after %v", name, err, time.Since(began))
			}
		}
		if _, err := stet.Do(t.Context(), e, op, func(ctx context.Context) (int, error) {
			refused(ctx)
			stet.FromContext(ctx).Declare(stet.NotExecuted, 0)
			return 0, nil
		}); stet.KindOf(err) != stet.KindRetryable {
			t.Errorf("%s: the outer operation: %v", name, err)
		}
	}
	for _, name := range []string{"Do", "DoTx", "Do by another engine"} {
		_, err := stet.DoTx(t.Context(), txOf(e, store), op, func(ctx context.Context, _ *sql.Tx) (int, error) { return 0, inside[name](ctx) })
		if stet.KindOf(err) != stet.KindRetryable || stet.KindOf(errors.Unwrap(err)) != stet.KindInvalid {
			t.Errorf("%s in a transaction: %v", name, err)
		}
	}
}

// TestOperationOfTheSameNameElsewhereIsAnother: in another store, or after its run.
func TestOperationOfTheSameNameElsewhereIsAnother(t *testing.T) {
	e, elsewhere := newEngine(t, memory.New(memory.Options{}), stet.Options{}), newEngine(t, memory.New(memory.Options{}), stet.Options{})
	var left context.Context
	runs := 0
	_, err := stet.Do(t.Context(), e, op, func(ctx context.Context) (string, error) {
		left = context.WithoutCancel(ctx)
		res, err := stet.Do(ctx, elsewhere, op, charge(&runs))
		return res.Value, err
	})
	if err != nil || runs != 1 {
		t.Fatal(err)
	}
	if res, err := stet.Do(left, e, op, charge(&runs)); err != nil || !res.Replayed || runs != 1 {
		t.Errorf("from what its run has left behind: %+v, %v", res, err)
	}
}
