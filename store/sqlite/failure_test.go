package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/stet-go/stet/store"
)

// statements runs each in turn and drops the errors.
func statements(texts ...string) func(context.Context, *sql.Tx) {
	return func(ctx context.Context, tx *sql.Tx) {
		for _, text := range texts {
			_, _ = tx.ExecContext(ctx, text)
		}
	}
}

func TestFailedStatementIsNotCommitted(t *testing.T) {
	const good, bad = "INSERT INTO charges VALUES (1)", "INSERT INTO nowhere VALUES (1)"
	prepared := func(ctx context.Context, tx *sql.Tx) {
		stmt, err := tx.PrepareContext(ctx, "INSERT INTO charges VALUES (abs(?))")
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = stmt.Close() }()
		_, _ = stmt.ExecContext(ctx, int64(-1<<63)) // integer overflow
	}
	query := func(ctx context.Context, tx *sql.Tx) {
		_ = tx.QueryRowContext(ctx, "INSERT INTO nowhere VALUES (1) RETURNING 1").Scan(new(int))
	}
	for name, c := range map[string]struct {
		fn        func(context.Context, *sql.Tx)
		committed int // rows; -1: the commit is refused
	}{
		"exec":                        {statements(good, bad, good), -1},
		"prepared":                    {prepared, -1},
		"query":                       {query, -1},
		"undone by a savepoint":       {statements(good, "SAVEPOINT a", bad, "ROLLBACK TO a", good), 2},
		"undone, in other words":      {statements("savepoint a", bad, " rollback transaction\n to savepoint a", good), 1},
		"savepoint after the failure": {statements("SAVEPOINT a", "RELEASE a", bad, "SAVEPOINT b", "ROLLBACK TO b"), -1},
		"failed again after it":       {statements("SAVEPOINT a", bad, "ROLLBACK TO a", bad), -1},
		"none failed":                 {statements(good), 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := ledger(t, Options{})
			want := func(rows int) {
				t.Helper()
				if n := charges(t, s); n != max(rows, 0) {
					t.Errorf("%d rows; want %d", n, max(rows, 0))
				}
			}
			refused := func(err error) {
				t.Helper()
				if _, aborted := errors.AsType[*store.AbortedError](err); aborted != (c.committed < 0) {
					t.Errorf("aborted is %v: %v", aborted, err)
				}
				if (err == nil) != (c.committed >= 0) || err != nil && (errors.Is(err, store.ErrUnknown) || !strings.Contains(err.Error(), "a statement of the transaction failed")) {
					t.Errorf("got %v", err)
				}
			}
			_, err := s.RunTx(t.Context(), request("k"), keep, func(ctx context.Context, tx *sql.Tx, _ store.Record) (store.Settlement, error) {
				c.fn(ctx, tx)
				return completed("charged"), nil
			})
			refused(err)
			want(c.committed)
			if rec := mustRead(t, s, request("k").ID); (rec.State == store.Completed) != (c.committed >= 0) {
				t.Errorf("the record is %v", rec.State)
			}
			refused(s.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error { c.fn(ctx, tx); return nil }))
			want(2 * c.committed)

			// The next transaction on this connection commits.
			if _, err := s.RunTx(t.Context(), request("other"), keep, charge); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDeferredConstraintAbortsTheTransaction(t *testing.T) {
	s := ledger(t, Options{})
	if _, err := s.DB().ExecContext(t.Context(), `CREATE TABLE orders (n INTEGER PRIMARY KEY);
		CREATE TABLE lines (n INTEGER REFERENCES orders DEFERRABLE INITIALLY DEFERRED)`); err != nil {
		t.Fatal(err)
	}
	fault := statements("PRAGMA foreign_keys", "INSERT INTO lines VALUES (1)")
	_, err := s.RunTx(t.Context(), request("k"), keep, func(ctx context.Context, tx *sql.Tx, _ store.Record) (store.Settlement, error) {
		fault(ctx, tx)
		return completed("charged"), nil
	})
	if _, ok := errors.AsType[*store.AbortedError](err); !ok {
		t.Errorf("RunTx: %v", err)
	}
	err = s.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error { fault(ctx, tx); return nil })
	if _, ok := errors.AsType[*store.AbortedError](err); !ok {
		t.Errorf("InTx: %v", err)
	}
	if rec := mustRead(t, s, request("k").ID); rec.State != store.None {
		t.Errorf("the record is %v", rec.State)
	}
}
