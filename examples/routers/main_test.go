package main

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stet-go/stet/examples/internal/check"
	"github.com/stet-go/stet/store/sqlite"
)

// start returns a handler, and a function that counts the payments.
func start(t *testing.T, name string) (http.Handler, func() int) {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "payments.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	te, err := newEngine(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = te.Engine().Close() })
	handler, err := routers[name](te)
	if err != nil {
		t.Fatal(err)
	}
	return handler, func() (n int) {
		if err := store.DB().QueryRowContext(t.Context(), `SELECT count(*) FROM payments`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
}

func TestRoutersProtectTheirRoutes(t *testing.T) {
	for name := range routers {
		t.Run(name, func(t *testing.T) {
			router, payments := start(t, name)
			if check.Protected(t, router); payments() != 2 {
				t.Errorf("%d payments; want 2", payments())
			}
		})
	}
}

func TestHumaErrorRollsBackAndInvalidInputIsNotStored(t *testing.T) {
	router, payments := start(t, "huma")
	for _, want := range []struct {
		key, form string
		status    int
		replayed  string
		payments  int
	}{{"conflict", "amount=1000000", 409, "", 0}, {"k", "nothing=1", 422, "", 0}, {"k", "amount=1", 201, "", 1}, {"k", "amount=1", 201, "true", 1}, {"k", "nothing=1", 422, "", 1}} {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(want.form))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Account", "acct_1")
		r.Header.Set("Idempotency-Key", want.key)
		w := httptest.NewRecorder()
		router.ServeHTTP(w, r)
		if w.Code != want.status || w.Header().Get("Idempotent-Replayed") != want.replayed || payments() != want.payments {
			t.Errorf("%s: %d %s %v; want %+v", want.form, w.Code, w.Body, w.Header(), want)
		}
	}
}
