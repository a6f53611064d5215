package main

import (
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/examples/internal/check"
	"github.com/stet-go/stet/store/memory"
)

func TestGinRouteIsProtected(t *testing.T) {
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	router, err := newRouter(engine)
	if err != nil {
		t.Fatal(err)
	}
	check.Protected(t, router)
	if n := payments.Load(); n != 2 {
		t.Fatalf("%d payments", n)
	}
}
