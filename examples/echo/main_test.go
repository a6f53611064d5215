package main

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/examples/internal/check"
	"github.com/stet-go/stet/store/sqlite"
)

// start returns the router, with its store.
func start(t *testing.T) (http.Handler, *sqlite.Store) {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "payments.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	engine, err := stet.New(store, stet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	router, err := newRouter(t.Context(), engine, store)
	if err != nil {
		t.Fatal(err)
	}
	return router, store
}

func TestEchoRouteIsProtected(t *testing.T) {
	router, store := start(t)
	check.Protected(t, router)
	var n int
	if err := store.DB().QueryRowContext(t.Context(), `SELECT count(*) FROM payments`).Scan(&n); err != nil || n != 2 {
		t.Fatalf("%d payments, %v", n, err)
	}
}

func TestEchoErrorIsARollbackOrAnOutcome(t *testing.T) {
	router, store := start(t)
	send := func(key, amount string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("amount="+amount))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Account", "acct_1")
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		router.ServeHTTP(w, r)
		return w
	}
	for i := range 2 { // declined, and that stands
		w := send("declined", "0")
		if replayed := w.Header().Get("Idempotent-Replayed") == "true"; w.Code != 422 || replayed != (i > 0) || !strings.Contains(w.Body.String(), "nothing to pay") {
			t.Errorf("%d, replayed %v: %s", w.Code, replayed, w.Body)
		}
	}
	if _, err := store.DB().ExecContext(t.Context(), `ALTER TABLE payments RENAME TO away`); err != nil {
		t.Fatal(err)
	}
	if w := send("broken", "5"); w.Code != 500 || w.Header().Get("Idempotent-Replayed") != "" {
		t.Errorf("got %d %s; want w.Code == 500, w.Header().Get(\"Idempotent-Replayed\") == \"\"", w.Code, w.Body)
	}
	if _, err := store.DB().ExecContext(t.Context(), `ALTER TABLE away RENAME TO payments`); err != nil {
		t.Fatal(err)
	}
	if w := send("broken", "5"); w.Code != 201 || w.Header().Get("Idempotent-Replayed") != "" {
		t.Errorf("a retry of a rolled-back payment: %d %s", w.Code, w.Body)
	}
}

func TestProgramIsThatOfThePage(t *testing.T) { check.Page(t, "echo") }
