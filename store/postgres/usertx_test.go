package postgres

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet/store"
)

// pgxTx are ways to a statement in a transaction of pgx's; conn is the
// transaction's connection, had before.
var pgxTx = map[string]func(ctx context.Context, tx pgx.Tx, sql string, args ...any) (int, error){
	"QueryRow": func(ctx context.Context, tx pgx.Tx, sql string, args ...any) (n int, err error) {
		return n, tx.QueryRow(ctx, sql, args...).Scan(&n)
	},
	"Query": func(ctx context.Context, tx pgx.Tx, sql string, args ...any) (int, error) {
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return 0, err
		}
		return pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
	},
	"Query, one step": func(ctx context.Context, tx pgx.Tx, sql string, args ...any) (int, error) {
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return 0, err
		}
		defer rows.Close()
		if !rows.Next() {
			return 0, rows.Err()
		}
		values, err := rows.Values()
		if err != nil {
			return 0, err
		}
		n, ok := values[0].(int32)
		if !ok {
			return 0, errors.New("no integer")
		}
		return int(n), nil
	},
	"Exec": func(ctx context.Context, tx pgx.Tx, sql string, args ...any) (n int, err error) {
		if _, err := tx.Exec(ctx, "CREATE TEMP TABLE seen ON COMMIT DROP AS "+sql, args...); err != nil {
			return 0, err
		}
		return n, tx.QueryRow(ctx, "SELECT * FROM seen").Scan(&n)
	},
	"SendBatch": func(ctx context.Context, tx pgx.Tx, sql string, args ...any) (n int, err error) {
		var b pgx.Batch
		b.Queue(sql, args...).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
		return n, tx.SendBatch(ctx, &b).Close()
	},
	"savepoint": func(ctx context.Context, tx pgx.Tx, sql string, args ...any) (n int, err error) {
		inner, err := tx.Begin(ctx)
		if err != nil {
			return 0, err
		}
		return n, errors.Join(inner.QueryRow(ctx, sql, args...).Scan(&n), inner.Commit(ctx))
	},
	"Conn": func(ctx context.Context, tx pgx.Tx, sql string, args ...any) (n int, err error) {
		return n, tx.Conn().QueryRow(ctx, sql, args...).Scan(&n)
	},
	"Prepare": func(ctx context.Context, tx pgx.Tx, sql string, args ...any) (n int, err error) {
		if _, err := tx.Prepare(ctx, "mine", sql); err != nil {
			return 0, err
		}
		return n, tx.QueryRow(ctx, "mine", args...).Scan(&n)
	},
	"CopyFrom": func(ctx context.Context, tx pgx.Tx, sql string, args ...any) (n int, err error) {
		if _, err := tx.CopyFrom(ctx, pgx.Identifier{"charges"}, []string{"name"}, pgx.CopyFromRows(nil)); err != nil {
			return 0, err
		}
		return n, tx.QueryRow(ctx, sql, args...).Scan(&n)
	},
	"LargeObjects": func(ctx context.Context, tx pgx.Tx, sql string, args ...any) (n int, err error) {
		objects := tx.LargeObjects()
		if _, err := objects.Create(ctx, 0); err != nil {
			return 0, err
		}
		return n, tx.QueryRow(ctx, sql, args...).Scan(&n)
	},
}

func TestFunctionOfInTxCannotEndTheTransaction(t *testing.T) {
	t.Parallel()
	s := ledger(t, Options{})
	for name, end := range map[string]func(context.Context, pgx.Tx) error{
		"commit":        func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		"rollback":      func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		"ignored error": func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, "SELECT 1/0"); return nil },
		"SQL":           func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "ROLLBACK"); return err },
	} {
		for _, charged := range []bool{true, false} {
			rec := taken(t, s)
			err := s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
				if charged {
					if _, err := charge(ctx, tx, store.Record{}); err != nil {
						return err
					}
				}
				return errors.Join(end(ctx, tx), s.SettleTx(ctx, tx, rec.Claim(), completed("x"), keep))
			})
			if err == nil || errors.Is(err, store.ErrUnknown) != (name == "SQL") {
				t.Errorf("%s: %v", name, err)
			}
			if now := mustRead(t, s, rec.ID); charges(t, s) != 0 || now.State != store.Running {
				t.Errorf("%s: %d charges, and the record is %+v", name, charges(t, s), now)
			}
		}
	}
}

// What fn leaves behind must not reach the next user of the connection.
func TestTransactionOfInTxThatWasKeptIsClosed(t *testing.T) {
	t.Parallel()
	s := ledger(t, Options{})
	rec := taken(t, s)
	for _, use := range []bool{true, false} {
		var kept pgx.Tx
		err := s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) (err error) {
			if kept = tx; use {
				_, err = charge(ctx, tx, store.Record{})
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SettleTx(t.Context(), kept, rec.Claim(), completed("x"), keep); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("SettleTx, used %v: %v", use, err)
		}
		for name, query := range pgxTx {
			if _, err := query(t.Context(), kept, "SELECT $1::integer", 1); name != "Conn" && !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s, used %v: %v", name, use, err)
			}
		}
		if err := kept.Rollback(t.Context()); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("Rollback, used %v: %v", use, err)
		}
	}
}

// A function that panics in the middle of its first rows leaves nothing.
func TestPanicInTheFirstRowsRollsBack(t *testing.T) {
	t.Parallel()
	s := ledger(t, Options{})
	func() {
		defer func() { _ = recover() }()
		_ = s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "INSERT INTO charges SELECT $1 FROM generate_series(1, 1000) RETURNING name", "x")
			if err != nil || !rows.Next() {
				t.Errorf("no rows: %v", err)
			}
			panic("boom")
		})
	}()
	if n := charges(t, s); n != 0 || s.Pool().Stat().AcquiredConns() != 0 {
		t.Errorf("%d charges, %d connections in use", n, s.Pool().Stat().AcquiredConns())
	}
}

// tracer knows no batches.
type tracer struct {
	mu   sync.Mutex
	seen []string
}

func (r *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, d.SQL)
	return ctx
}

func (*tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestTracerMissesNoStatement(t *testing.T) {
	t.Parallel()
	config := database(t).Config()
	seen := &tracer{}
	config.ConnConfig.Tracer = seen
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := open(t, pool, Options{})
	err = s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, "SELECT $1::integer", 7).Scan(new(int))
	})
	if err != nil || !strings.Contains(strings.Join(seen.seen, "\n"), "SELECT $1::integer") {
		t.Errorf("%v; the tracer has seen %q", err, seen.seen)
	}
}

// BEGIN; the statement; the outcome; COMMIT.
func TestInTxTakesFourRoundTrips(t *testing.T) {
	t.Parallel()
	s, _ := frail(t, 10*time.Second)
	for try := range 3 { // at first, statements are prepared
		rec := taken(t, s)
		var conn *cutConn
		var before int32 // BEGIN has been sent
		err := s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			conn = tx.Conn().PgConn().Conn().(*cutConn)
			before = conn.writes.Load()
			if _, err := tx.Exec(ctx, "INSERT INTO charges VALUES ($1)", "x"); err != nil {
				return err
			}
			return s.SettleTx(ctx, tx, rec.Claim(), completed("x"), keep)
		})
		if got := conn.writes.Load() - before; err != nil || try == 2 && got != 3 {
			t.Errorf("%d round trips after BEGIN, %v; want 3", got, err)
		}
	}
}
