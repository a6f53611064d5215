package postgres

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/storetest"
)

func TestTransactionsOfDatabaseSQLKeepTheContract(t *testing.T) {
	t.Parallel()
	pool := database(t)
	execSQL(t, pool, "CREATE TABLE effects (name text)")
	of := func(t testing.TB, s store.TxStore[*sql.Tx]) *sql.DB {
		db := stdlib.OpenDBFromPool(s.(*SQLStore[*sql.Tx]).Pool())
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	h := waiting(func(t testing.TB) store.Store {
		var db *sql.DB
		s := OverSQL(open(t, another(t, pool), Options{Schema: fresh()}), func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) })
		db = of(t, s)
		return s
	})
	h.Damage = nil
	storetest.RunTx(t, storetest.TxHarness[*sql.Tx]{
		Harness: h,
		Write: func(ctx context.Context, tx *sql.Tx, name string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES ($1)", name)
			return err
		},
		Rows: func(t testing.TB, s store.TxStore[*sql.Tx], name string) (n int) {
			if err := of(t, s).QueryRow("SELECT count(*) FROM effects WHERE name = $1", name).Scan(&n); err != nil {
				t.Error(err)
			}
			return n
		},
		Begin: func(t testing.TB, s store.TxStore[*sql.Tx]) (*sql.Tx, func(bool) error) {
			tx, err := of(t, s).Begin()
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
		_, err := s.RunTx(t.Context(), request(name), keep, func(_ context.Context, tx *sql.Tx, _ store.Record) (store.Settlement, error) {
			return completed("x"), end(tx)
		})
		if !errors.Is(err, store.ErrUnknown) {
			t.Errorf("%s: RunTx: %v; want ErrUnknown", name, err)
		}
		if rec := mustRead(t, s, request(name).ID); rec.State != store.None {
			t.Errorf("%s: a record is left: %+v", name, rec)
		}
	}
}

// With an exhausted pool, no caller waits longer than its context.
func TestTransactionOfDatabaseSQLThatCannotBeginIsGivenUp(t *testing.T) {
	pool := database(t)
	s := open(t, pool, Options{})
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	began, free := make(chan *sql.Tx, 2), make(chan struct{})
	over := OverSQL(s, func(context.Context) (*sql.Tx, error) {
		<-free // whatever its context says
		tx, err := db.BeginTx(context.Background(), nil)
		began <- tx
		return tx, err
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := over.RunTx(ctx, request("k"), keep, func(context.Context, *sql.Tx, store.Record) (store.Settlement, error) {
		t.Error("the function was called")
		return completed(""), nil
	})
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, store.ErrUnknown) {
		t.Errorf("RunTx: %v", err)
	}
	if err := over.InTx(ctx, func(context.Context, *sql.Tx) error { t.Error("the function was called"); return nil }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("InTx: %v", err)
	}
	close(free)
	tx := <-began
	for _, err := tx.Exec("SELECT 1"); !errors.Is(err, sql.ErrTxDone); _, err = tx.Exec("SELECT 1") {
		if t.Context().Err() != nil {
			t.Fatalf("a transaction that began too late is not rolled back: %v", err)
		}
	}
}

// slowTx is a transaction whose commit takes long.
type slowTx struct {
	*sql.Tx
	free chan struct{}
}

func (tx slowTx) Commit() error {
	<-tx.free
	return tx.Tx.Commit()
}

func TestCommitOfDatabaseSQLThatTakesTooLongIsUnknown(t *testing.T) {
	pool := database(t)
	s := open(t, pool, Options{})
	s.commitTimeout = 200 * time.Millisecond
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	free := make(chan struct{})
	over := OverSQL(s, func(ctx context.Context) (slowTx, error) {
		tx, err := db.BeginTx(ctx, nil)
		return slowTx{tx, free}, err
	})
	run := func() (store.Record, error) {
		return over.RunTx(t.Context(), request("k"), keep, func(context.Context, slowTx, store.Record) (store.Settlement, error) {
			return completed("x"), nil
		})
	}
	if _, err := run(); !errors.Is(err, store.ErrUnknown) {
		t.Errorf("RunTx: %v; want that it is not known", err)
	}
	close(free)
	for mustRead(t, s, request("k").ID).State != store.Completed { // the abandoned transaction commits
		if t.Context().Err() != nil {
			t.Fatal(t.Context().Err())
		}
	}
}
