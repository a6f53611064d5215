package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

type firstStatement = func(context.Context, pgx.Tx) error

// firstStatements are the kinds of statements that a transaction may begin with.
func firstStatements() map[string]firstStatement {
	exec := func(sql string, args ...any) firstStatement {
		return func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql, args...)
			return err
		}
	}
	row := func(into any, sql string, args ...any) firstStatement {
		return func(ctx context.Context, tx pgx.Tx) error { return tx.QueryRow(ctx, sql, args...).Scan(into) }
	}
	const insert = "INSERT INTO charges VALUES ($1)"
	all := map[string]firstStatement{
		"insert":              exec(insert, "x"),
		"without arguments":   exec("INSERT INTO charges VALUES ('x'); INSERT INTO charges VALUES ('y')"),
		"named arguments":     exec("INSERT INTO charges VALUES (@name)", pgx.NamedArgs{"name": "x"}),
		"another protocol":    exec(insert, pgx.QueryExecModeSimpleProtocol, "x"),
		"syntax":              exec("INSRT INTO charges VALUES ($1)", "x"),
		"no such table":       exec("INSERT INTO nowhere VALUES ($1)", "x"),
		"too few arguments":   exec("INSERT INTO charges VALUES ($1 || $2)", "x"),
		"unfit argument":      exec(insert, make(chan int)),
		"error":               exec("SELECT 1 / $1::integer", 0),
		"several commands":    exec("INSERT INTO charges VALUES ($1); COMMIT", "x"),
		"row":                 row(new(int), "SELECT $1::integer", 1),
		"no row":              row(new(int), "SELECT 1 WHERE $1::boolean", false),
		"row, error":          row(new(int), "SELECT 1 / $1::integer", 0),
		"row, unfit":          row(new(int), "SELECT $1::text", "x"),
		"row, syntax":         row(new(int), "SELCT $1::text", "x"),
		"alone, no arguments": exec("INSERT INTO charges VALUES ('x')"),
		"no arguments, error": exec("SELECT 1 / 0"),
		"no arguments, end":   exec("COMMIT"),
		"nothing":             exec(""),
		"savepoint": func(ctx context.Context, tx pgx.Tx) error {
			return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return exec(insert, "x")(ctx, tx) })
		},
		"copy": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"charges"}, []string{"name"}, pgx.CopyFromRows([][]any{{"x"}}))
			return err
		},
		"connection": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Conn().Exec(ctx, insert, "x")
			return err
		},
		"batch":               batchOf(insert, "x", insert, "y"),
		"batch, error":        batchOf(insert, "x", "SELECT 1 / $1::integer", 0),
		"batch, syntax":       batchOf(insert, "x", "INSRT INTO charges VALUES ($1)", "y"),
		"batch, end":          batchOf(insert, "x", "COMMIT AND CHAIN", nil),
		"batch of nothing":    batchOf(),
		"batch, unfit":        batchOf(insert, make(chan int)),
		"row of an insertion": row(new(string), insert+" RETURNING name", "x"),
	}
	maps.Copy(all, firstRowsStatements())
	return all
}

// firstRowsStatements return rows.
func firstRowsStatements() map[string]firstStatement {
	return map[string]firstStatement{
		"rows, left early": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "SELECT generate_series(1, $1::integer)", 100_000)
			if err != nil {
				return err
			}
			rows.Next()
			rows.Close()
			return rows.Err()
		},
		"rows, error in the middle": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "SELECT 1 / (n - $1::integer) FROM generate_series(1, 10) n", 5)
			if err != nil {
				return err
			}
			_, err = pgx.CollectRows(rows, pgx.RowTo[int])
			return err
		},
		"rows, unfit": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "SELECT n, $1::text FROM generate_series(1, 10) n", "x")
			if err != nil {
				return err
			}
			for rows.Next() {
				if err := rows.Scan(new(int), new(int)); err != nil {
					return err
				}
			}
			return rows.Err()
		},
	}
}

// A statement in InTx or RunTx has the same result as in a transaction of pgx's.
func TestStatementsMatchThoseOfPgx(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		config := database(t).Config()
		config.ConnConfig.DefaultQueryExecMode = mode
		config.MaxConns = 2
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		execSQL(t, pool, "CREATE TABLE charges (name text)")
		s := open(t, pool, Options{})
		for name, first := range firstStatements() {
			firstIs(t, s, mode.String()+", "+name, first)
		}
	}
}

// firstIs compares what becomes of a first statement in all kinds of transactions.
func firstIs(t *testing.T, s *Store, name string, first firstStatement) {
	t.Helper()
	before := charges(t, s)
	var want, got error
	var wantStatus, gotStatus byte
	wantEnd := pgx.BeginFunc(t.Context(), s.Pool(), func(tx pgx.Tx) error {
		want = first(t.Context(), tx)
		wantStatus = tx.Conn().PgConn().TxStatus()
		return nil
	})
	between := charges(t, s)
	gotEnd := s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		got = first(ctx, tx)
		gotStatus = tx.Conn().PgConn().TxStatus()
		return nil
	})
	after := charges(t, s)
	var run error
	var runStatus byte
	req := request(name)
	_, runEnd := s.RunTx(t.Context(), req, keep, func(ctx context.Context, tx pgx.Tx, _ store.Record) (store.Settlement, error) {
		run = first(ctx, tx)
		runStatus = tx.Conn().PgConn().TxStatus()
		return completed("x"), nil
	})
	// A connection that was closed has a process on the server for a moment.
	stettest.Eventually(t, name+": no lock is left", func() bool { return len(heldLocks(t, s)) == 0 })
	if got == nil && run != nil || got != nil && (run == nil || run.Error() != got.Error()) || runStatus != gotStatus ||
		(runEnd == nil) != (gotEnd == nil) || charges(t, s)-after != after-between {
		t.Errorf("%s: in RunTx %v, in the state %c, ended with %v, has charged %d; in InTx %v, %c, %v, %d",
			name, run, runStatus, runEnd, charges(t, s)-after, got, gotStatus, gotEnd, after-between)
	}
	if (got == nil) != (want == nil) || sqlState(got) != sqlState(want) || errors.Is(got, pgx.ErrNoRows) != errors.Is(want, pgx.ErrNoRows) {
		t.Errorf("%s: %v; in a transaction that was begun before: %v", name, got, want)
	}
	if wantStatus == 'I' { // pgx does not mind that it was ended by SQL
		wantEnd = store.ErrUnknown
	}
	if gotStatus != wantStatus || (gotEnd == nil) != (wantEnd == nil) || after-between != between-before {
		t.Errorf("%s: the transaction was left in the state %c, ended with %v, and has charged %d; want %c, %v, %d",
			name, gotStatus, gotEnd, after-between, wantStatus, wantEnd, between-before)
	}
}

// batchOf is a batch of statements, each followed by its argument, or nil for none.
func batchOf(statements ...any) firstStatement {
	return func(ctx context.Context, tx pgx.Tx) error {
		var b pgx.Batch
		n := 0
		for i := 0; i < len(statements); i += 2 {
			args := statements[i+1 : i+2]
			if args[0] == nil {
				args = nil
			}
			b.Queue(statements[i].(string), args...).Exec(func(pgconn.CommandTag) error { n++; return nil })
		}
		err := tx.SendBatch(ctx, &b).Close()
		if err == nil && n != b.Len() {
			err = fmt.Errorf("%d of %d statements of a batch have told", n, b.Len())
		}
		return err
	}
}
