package postgres

import (
	"context"
	"database/sql"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
)

// An operation is accepted and run in transactions of database/sql, over an engine that
// was made over the Store itself or over what OverSQL returns.
func TestAcceptedWorkRunsInTransactionsOfDatabaseSQL(t *testing.T) {
	pool := database(t)
	execSQL(t, pool, "CREATE TABLE orders (name text); CREATE TABLE charges (name text)")
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	for name, wrap := range map[string]func(*Store, *SQLStore[*sql.Tx]) store.Store{
		"over the store":             func(s *Store, _ *SQLStore[*sql.Tx]) store.Store { return s },
		"over the result of OverSQL": func(_ *Store, over *SQLStore[*sql.Tx]) store.Store { return over },
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, pool, Options{Schema: fresh()})
			over := OverSQL(s, func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) })
			engine, err := stet.New(wrap(s, over), stet.Options{})
			if err != nil {
				t.Fatal(err)
			}
			te := stettest.TxEngine(engine, store.TxStore[*sql.Tx](over))
			order := t.Name()
			worker, err := stetwork.New(engine, stetwork.Options{})
			if err != nil {
				t.Fatal(err)
			}
			err = stetwork.HandleTx(worker, te, "charge", func(ctx context.Context, tx *sql.Tx, _ string) (string, error) {
				_, err := tx.ExecContext(ctx, "INSERT INTO charges VALUES ($1)", order)
				return "charged", err
			})
			if err != nil {
				t.Fatal(err)
			}
			runUntilTheEnd(t, worker, engine)

			m, err := stethttp.NewTx(te, stethttp.Options{Scope: stethttp.SingleTenant})
			if err != nil {
				t.Fatal(err)
			}
			async, err := stethttp.NewAsync(m.Middleware, stethttp.AsyncOptions{StatusURL: "/operations/", Wait: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			h := async.Accept("charge", func(_ http.ResponseWriter, r *http.Request) (stet.Work, bool) {
				if _, err := stethttp.Tx[*sql.Tx](r.Context()).ExecContext(r.Context(), "INSERT INTO orders VALUES ($1)", order); err != nil {
					t.Error(err)
				}
				return stet.Work{Payload: []byte(`"x"`)}, true
			})
			for range 2 {
				r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(`{}`))
				r.Header.Set("Idempotency-Key", "k")
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != http.StatusOK || strings.TrimSpace(w.Body.String()) != `"charged"` {
					t.Errorf("the answer is %d %s; want 200 \"charged\"", w.Code, w.Body)
				}
			}
			for _, table := range []string{"orders", "charges"} {
				var n int
				if err := db.QueryRow("SELECT count(*) FROM "+table+" WHERE name = $1", order).Scan(&n); err != nil || n != 1 {
					t.Errorf("%d rows in %s, %v; want 1", n, table, err)
				}
			}
		})
	}
}

// runUntilTheEnd runs a worker until the test ends, and then closes its engine.
func runUntilTheEnd(t *testing.T, w *stetwork.Worker, e *stet.Engine) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}
