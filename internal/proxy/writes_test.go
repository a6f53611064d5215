package proxy_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// full is a store whose disk may be full.
type full struct {
	*memory.Store
	full atomic.Bool
}

func (f *full) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	rec, err := f.Read(ctx, req.ID)
	if err == nil && rec.Attempt == 0 && f.full.Load() {
		return rec, errors.New("the disk is full")
	}
	return f.Store.Claim(ctx, req)
}

func TestReadyIsDegradedWhileNoWriteSucceeds(t *testing.T) {
	st := &full{Store: memory.New(memory.Options{})}
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	f := startOn(t, st, yamlFor(s.URL, "http1", single))
	a := proxy.NewAdmin(f.proxy, nil)
	ready := func() string {
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
		if w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		return strings.TrimSpace(w.Body.String())
	}
	f.post("k1", "{}")
	if got := ready(); got != "ready" {
		t.Error(got)
	}
	st.full.Store(true)
	if r := f.post("k2", "{}"); r.problem() != "store-unavailable" {
		t.Fatalf("%d %s", r.status, r.body)
	}
	if r := f.post("k1", "{}"); !r.replayed() {
		t.Errorf("%d %s", r.status, r.body)
	}
	if got := ready(); !strings.HasPrefix(got, "degraded: ") || strings.Contains(got, "disk") {
		t.Error(got)
	}
	st.full.Store(false)
	f.post("k2", "{}")
	if got := ready(); got != "ready" {
		t.Errorf("after a write: %s", got)
	}
}

func TestKeylessRequestsOfAProxyWithoutRoutesAreLoggedOnce(t *testing.T) {
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	const line = "requests without an idempotency key pass unprotected"
	for routes, want := range map[string]int{"": 1, "routes: [{path: /payments, key: optional}]\n": 0} {
		f := startWith(t, memory.New(memory.Options{}), "upstream: {url: "+s.URL+"}\nscope: single-tenant\n"+routes, proxy.Options{})
		f.send("GET", "/payments", "", "")
		f.post("k", "{}")
		if n := strings.Count(f.log.String(), line); n != 0 {
			t.Errorf("%q: logged for a GET and a request with a key: %s", routes, f.log)
		}
		f.post("", "{}")
		f.post("", "{}")
		stettest.Eventually(t, "the log", func() bool { return strings.Count(f.log.String(), line) == want })
	}
}
