package stethttp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

// TestMuxWithoutARouteKeepsNothing: a wrong path, and a path that is redirected,
// leave their key to the right one. What a route answers, 404 too, is an outcome.
func TestMuxWithoutARouteKeepsNothing(t *testing.T) {
	var runs atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("POST /payments/", func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		if r.URL.Path == "/payments/none" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, "paid")
	})
	m := stethttp.Must(stethttp.New(stettest.Engine(t, memory.New(memory.Options{}), stet.Options{}), stethttp.Options{Scope: stethttp.SingleTenant}))
	srv := httptest.NewServer(m.Handler(mux))
	t.Cleanup(srv.Close)
	for _, c := range []struct {
		method, path, key string
		status            int
		body              string
		replayed          bool
	}{
		{"POST", "/paymnets/", "k", 404, "404 page not found\n", false},
		{"PATCH", "/payments/", "k", 405, "Method Not Allowed\n", false},
		{"POST", "/payments", "k", 200, "paid", false}, // it is redirected, and the client follows with the same key
		{"POST", "//payments/", "k", 200, "paid", true},
		{"POST", "/payments/", "k", 200, "paid", true},
		{"POST", "/payments/none", "k2", 404, "404 page not found\n", false},
		{"POST", "/payments/none", "k2", 404, "404 page not found\n", true},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, srv.URL+c.path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", c.key)
		res, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		wantReply(t, reply{res.StatusCode, res.Header, res.Trailer, string(body), err}, c.status, c.body, c.replayed)
	}
	if runs.Load() != 2 {
		t.Errorf("%d runs", runs.Load())
	}
}
