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

func TestHumaOperationIsProtected(t *testing.T) {
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
	check.Protected(t, router)
	var n int
	if err := store.DB().QueryRowContext(t.Context(), `SELECT count(*) FROM payments`).Scan(&n); err != nil || n != 2 {
		t.Fatalf("%d payments, %v", n, err)
	}
	conflict := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("amount=1000000"))
	conflict.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	conflict.Header.Set("Account", "acct_1")
	conflict.Header.Set("Idempotency-Key", "conflict")
	refused := httptest.NewRecorder()
	router.ServeHTTP(refused, conflict)
	if err := store.DB().QueryRowContext(t.Context(), `SELECT count(*) FROM payments`).Scan(&n); err != nil || refused.Code != 409 || n != 2 {
		t.Fatalf("%d payments after an error with status %d, %v", n, refused.Code, err)
	}
	for _, want := range []struct {
		form     string
		status   int
		replayed string
	}{{"nothing=1", 422, ""}, {"amount=1", 201, ""}, {"amount=1", 201, "true"}, {"nothing=1", 422, ""}} {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(want.form))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Account", "acct_1")
		r.Header.Set("Idempotency-Key", "corrected")
		w := httptest.NewRecorder()
		router.ServeHTTP(w, r)
		if w.Code != want.status || w.Header().Get("Idempotent-Replayed") != want.replayed {
			t.Errorf("%s: %d %s %v; want %+v", want.form, w.Code, w.Body, w.Header(), want)
		}
	}
}
