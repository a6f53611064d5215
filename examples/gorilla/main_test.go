package main

import (
	"path/filepath"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/examples/internal/check"
	"github.com/stet-go/stet/store/sqlite"
)

func TestGorillaRouteIsProtected(t *testing.T) {
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
}
