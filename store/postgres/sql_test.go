package postgres

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/storetest"
)

func TestTransactionsOfDatabaseSQLKeepTheContract(t *testing.T) {
	pool := database(t)
	execSQL(t, pool, "CREATE TABLE effects (name text)")
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	begin := func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) }
	storetest.RunTx(t, storetest.TxHarness[*sql.Tx]{
		Harness: storetest.Harness{New: func(t testing.TB) stet.Store {
			return OverSQL(open(t, pool, Options{Schema: fresh()}), begin)
		}},
		Write: func(ctx context.Context, tx *sql.Tx, name string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES ($1)", name)
			return err
		},
		Rows: func(t testing.TB, _ stet.TxStore[*sql.Tx], name string) (n int) {
			if err := db.QueryRow("SELECT count(*) FROM effects WHERE name = $1", name).Scan(&n); err != nil {
				t.Error(err)
			}
			return n
		},
		Begin: func(t testing.TB, _ stet.TxStore[*sql.Tx]) (*sql.Tx, func(bool) error) {
			tx, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			return tx, func(commit bool) error {
				if commit {
					return tx.Commit()
				}
				return tx.Rollback()
			}
		},
	})
}

func TestFunctionCannotEndTheTransactionOfDatabaseSQL(t *testing.T) {
	pool := database(t)
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	s := OverSQL(open(t, pool, Options{}), func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) })
	for name, end := range map[string]func(*sql.Tx) error{
		"commit":   (*sql.Tx).Commit,
		"rollback": (*sql.Tx).Rollback,
		"SQL":      func(tx *sql.Tx) error { _, err := tx.Exec("COMMIT"); return err },
	} {
		_, err := s.RunTx(t.Context(), request(name), keep, func(_ context.Context, tx *sql.Tx, _ stet.Record) (stet.Outcome, error) {
			return completed("x"), end(tx)
		})
		if !errors.Is(err, stet.ErrUnknown) {
			t.Errorf("%s: RunTx: %v; want ErrUnknown", name, err)
		}
		if rec := mustRead(t, s, request(name).ID); rec.State != stet.None {
			t.Errorf("%s: a record is left: %+v", name, rec)
		}
	}
}
