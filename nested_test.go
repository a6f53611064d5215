package stet_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/memory"
)

var inner = stet.Op{Scope: "acct_1", Key: "inner"}

func TestOperationInsideATransactionOfTheSameStoreIsRefusedAtOnce(t *testing.T) {
	store, e := bank(t)
	started := time.Now()
	_, err := stet.DoTx(t.Context(), e, store, op, func(ctx context.Context, tx *sql.Tx) (int, error) {
		_, err := stet.DoTx(ctx, e, store, inner, func(context.Context, *sql.Tx) (int, error) { t.Error("ran"); return 0, nil })
		if !errors.Is(err, stet.ErrInvalid) || stet.ExecutionOf(err) != stet.NotExecuted {
			t.Errorf("DoTx inside: %v", err)
		}
		_, err = stet.Do(ctx, e, inner, func(context.Context) (int, error) { t.Error("ran"); return 0, nil })
		if !errors.Is(err, stet.ErrInvalid) || stet.ExecutionOf(err) != stet.NotExecuted {
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
			_, err := stet.DoTx(ctx, e, store, inner, func(context.Context, *sql.Tx) (int, error) { return 0, errors.New("constraint") })
			if err != nil {
				return 0, fmt.Errorf("booking: %w", err)
			}
			return 1, nil
		})
		if !errors.Is(err, stet.ErrFailed) {
			t.Error(err)
		}
	}
	if charged != 1 {
		t.Fatalf("charged %d times", charged)
	}
}

func TestMismatchOfAnInnerOperationIsNotTheOuters(t *testing.T) {
	store, e := bank(t)
	_, err := stet.DoTx(t.Context(), e, store, op, func(context.Context, *sql.Tx) (int, error) {
		return 0, &stet.Error{Kind: stet.ErrMismatch}
	})
	if se, ok := errors.AsType[*stet.Error](err); !ok || se.Kind != stet.ErrRetryable {
		t.Fatal(err)
	}
}

// shy panics when it is encoded.
type shy struct{}

func (shy) MarshalJSON() ([]byte, error) { panic("boom") }

func TestPanicWhileEncodingLeavesNoClaimBehind(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	func() {
		defer func() { _ = recover() }()
		_, _ = stet.Do(t.Context(), e, op, func(context.Context) (shy, error) { return shy{}, nil })
	}()
	if _, err := stet.Do(t.Context(), e, op, func(context.Context) (int, error) { return 1, nil }); !errors.Is(err, stet.ErrFailed) {
		t.Fatal(err)
	}
}

func TestSettleTxCommitsTheOutcomeWithTheCallersWrites(t *testing.T) {
	store, e := bank(t)
	out := stet.Outcome{State: stet.Completed, Result: []byte(`"receipt"`)}
	for _, commit := range []bool{false, true} {
		run := begin(t, e, op)
		tx, err := store.DB().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := book(run.Context(), tx); err != nil {
			t.Fatal(err)
		}
		if err := stet.SettleTx(t.Context(), run, store, tx, out); err != nil {
			t.Fatal(err)
		}
		if !commit {
			if err := errors.Join(tx.Rollback(), run.Release(t.Context())); err != nil {
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
	store, e := bank(t)
	run := begin(t, e, op)
	if err := store.Release(t.Context(), run.Claim(), stet.Retention{Result: time.Hour, Tombstone: time.Hour}); err != nil {
		t.Fatal(err)
	}
	next := begin(t, newEngine(t, store, stet.Options{}), op)
	tx, err := store.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	err = stet.SettleTx(t.Context(), run, store, tx, stet.Outcome{State: stet.Completed})
	if !errors.Is(err, stet.ErrFenced) {
		t.Errorf("a stale run's settle: %v", err)
	}
	if err := errors.Join(tx.Rollback(), next.Settle(t.Context(), stet.Outcome{State: stet.Completed})); err != nil {
		t.Fatal(err)
	}
}
