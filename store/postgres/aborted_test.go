package postgres

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// faults are what functions do to a transaction without returning an error.
var faults = map[string]func(context.Context, pgx.Tx){
	"ignored error": func(ctx context.Context, tx pgx.Tx) { _, _ = tx.Exec(ctx, "SELECT 1/0") },
	"deferred foreign key": func(ctx context.Context, tx pgx.Tx) {
		_, _ = tx.Exec(ctx, "INSERT INTO lines VALUES ('no such order')")
	},
	"deferred trigger": func(ctx context.Context, tx pgx.Tx) { _, _ = tx.Exec(ctx, "INSERT INTO watched VALUES (1)") },
	"idle for too long": func(ctx context.Context, tx pgx.Tx) {
		_, _ = tx.Exec(ctx, "SET LOCAL idle_in_transaction_session_timeout = '100ms'")
		time.Sleep(400 * time.Millisecond)
	},
	"rollback": func(ctx context.Context, tx pgx.Tx) { _ = tx.Rollback(ctx) },
}

func faulty(t *testing.T) *Store {
	s := ledger(t, Options{})
	execSQL(t, s.Pool(), `CREATE TABLE orders (name text PRIMARY KEY);
		CREATE TABLE lines (name text REFERENCES orders DEFERRABLE INITIALLY DEFERRED);
		CREATE TABLE watched (n int);
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
		CREATE CONSTRAINT TRIGGER refusal AFTER INSERT ON watched DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	return s
}

func TestTransactionAbortedByItsFunctionIsReported(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			s := faulty(t)
			_, err := s.RunTx(t.Context(), request("k"), keep, func(ctx context.Context, tx pgx.Tx, r store.Record) (store.Settlement, error) {
				out, err := charge(ctx, tx, r)
				fault(ctx, tx)
				return out, err
			})
			if _, ok := errors.AsType[*store.AbortedError](err); !ok || errors.Is(err, store.ErrUnknown) {
				t.Errorf("RunTx: %v", err)
			}
			nothing(t, s, "k")
			err = s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error { fault(ctx, tx); return nil })
			if _, ok := errors.AsType[*store.AbortedError](err); !ok && name != "rollback" {
				t.Errorf("InTx: %v", err)
			}
			if _, err := s.RunTx(t.Context(), request("k"), keep, charge); err != nil {
				t.Errorf("the next transaction: %v", err)
			}
		})
	}
}

func TestFaultOfTheHandlerIsNoOutageOfTheStore(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			s := faulty(t)
			var mu sync.Mutex
			seen := map[observe.Kind]int{}
			var log bytes.Buffer
			e := stettest.Engine(t, s, stet.Options{SweepEvery: -1, ErrorLog: slog.New(slog.NewTextHandler(&log, nil)), Observer: observe.Func(func(_ context.Context, ev observe.Event) {
				mu.Lock()
				defer mu.Unlock()
				seen[ev.Kind]++
			})})
			m, err := stethttp.NewTx(stettest.TxEngine(e, store.TxStore[pgx.Tx](s)), stethttp.Options{Scope: stethttp.SingleTenant})
			if err != nil {
				t.Fatal(err)
			}
			runs := 0
			h := m.HandleTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) {
				if runs++; runs == 1 {
					fault(r.Context(), tx)
				}
				w.WriteHeader(http.StatusCreated)
			})
			post := func() *httptest.ResponseRecorder {
				r, w := httptest.NewRequestWithContext(t.Context(), "POST", "/charges", strings.NewReader("42")), httptest.NewRecorder()
				r.Header.Set("Idempotency-Key", "secret-key")
				h.ServeHTTP(w, r)
				return w
			}
			if w := post(); w.Code != 500 || !strings.Contains(w.Body.String(), "transaction-aborted") || !strings.Contains(w.Body.String(), `"execution":"not executed"`) {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
			if w := post(); w.Code != 201 || w.Header().Get("Idempotent-Replayed") != "" {
				t.Errorf("the retry: %d %s", w.Code, w.Body)
			}
			mu.Lock()
			defer mu.Unlock()
			if seen[observe.Aborted] != 1 || seen[observe.StoreFailed] != 0 || !strings.Contains(log.String(), "transaction was rolled back") || strings.Contains(log.String(), "secret-key") {
				t.Errorf("events %v, log %s", seen, log.String())
			}
		})
	}
}

func TestTransactionOverSQLAbortedByItsFunctionIsReported(t *testing.T) {
	for name, statement := range map[string]string{
		"ignored error":        "SELECT 1/0",
		"deferred foreign key": "INSERT INTO lines VALUES ('no such order')",
		"deferred trigger":     "INSERT INTO watched VALUES (1)",
	} {
		t.Run(name, func(t *testing.T) {
			s := faulty(t)
			db := stdlib.OpenDBFromPool(s.Pool())
			defer db.Close()
			over := OverSQL(s, func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) })
			_, err := over.RunTx(t.Context(), request("k"), keep, func(ctx context.Context, tx *sql.Tx, _ store.Record) (store.Settlement, error) {
				_, _ = tx.ExecContext(ctx, statement)
				return completed("charged"), nil
			})
			if _, ok := errors.AsType[*store.AbortedError](err); !ok || errors.Is(err, store.ErrUnknown) {
				t.Errorf("RunTx: %v", err)
			}
			nothing(t, s, "k")
		})
	}
}
