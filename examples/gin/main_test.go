package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/examples/internal/check"
	"github.com/stet-go/stet/store/memory"
)

func router(t *testing.T) http.Handler {
	t.Helper()
	gin.SetMode(gin.ReleaseMode)
	engine, err := stet.New(memory.New(memory.Options{}), stet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	router, err := newRouter(engine)
	if err != nil {
		t.Fatal(err)
	}
	return router
}

func TestGinRouteIsProtected(t *testing.T) {
	check.Protected(t, router(t))
	if n := payments.Load(); n != 2 {
		t.Fatalf("%d payments", n)
	}
}

func TestGinErrorIsAnOutcome(t *testing.T) {
	h := router(t)
	for i := range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(""))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Account", "acct_1")
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if replayed := w.Header().Get("Idempotent-Replayed") == "true"; w.Code != 400 || replayed != (i > 0) || !strings.Contains(w.Body.String(), "required") {
			t.Errorf("%d, replayed %v: %s", w.Code, replayed, w.Body)
		}
	}
}

func TestProgramIsThatOfThePage(t *testing.T) { check.Page(t, "gin") }
