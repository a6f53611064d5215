package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

const verified = `
scope: single-tenant
routes:
  - path: /payments
    verify: {url: /happened, after: 0s}
`

// ledger is a service that records its executions, and dies midway.
type ledger struct {
	*service
	happened map[string]string // by Stet-Operation
	die      func(key string) bool
	asked    []http.Header
}

func newLedger(t *testing.T) *ledger {
	l := &ledger{happened: map[string]string{}, die: func(string) bool { return true }}
	l.service = serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		op := r.Header.Get(proxy.HeaderOperation)
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case r.URL.Path == "/happened":
			l.asked = append(l.asked, r.Header.Clone())
			charge, ok := l.happened[op]
			w.Header().Set(proxy.HeaderOperation, op)
			if !ok {
				w.Header().Set(proxy.HeaderExecution, "none")
				http.NotFound(w, r)
				return
			}
			w.Header().Set(proxy.HeaderStatus, "201")
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Set-Cookie", "not=this")
			_, _ = io.WriteString(w, charge)
		case r.Method == http.MethodPost:
			body, _ := io.ReadAll(r.Body)
			if string(body) != "lost" {
				l.happened[op] = "charge of " + r.Header.Get("Idempotency-Key")
			}
			if l.die(r.Header.Get("Idempotency-Key")) {
				_ = conn(r).Close()
				return
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, l.happened[op])
		}
	})
	return l
}

func TestVerifyResolvesABrokenOperation(t *testing.T) {
	l := newLedger(t)
	f := start(t, yamlFor(l.URL, "http1", verified))
	for i := range 100 {
		key := fmt.Sprint("k", i)
		if first := f.post(key, "{}"); first.status != 504 || first.problem() != "outcome-unknown" {
			t.Fatalf("the first gets %d %s", first.status, first.body)
		}
		for range 2 {
			r := f.post(key, "{}")
			if r.status != 201 || r.body != "charge of "+key || !r.replayed() || l.count(key) != 1 {
				t.Fatalf("%d %q, replayed %v, %d executions", r.status, r.body, r.replayed(), l.count(key))
			}
			if r.header.Get("Set-Cookie") != "" || r.header.Get(proxy.HeaderStatus) != "" || r.header.Get("Content-Type") != "text/plain" {
				t.Fatalf("header %v", r.header)
			}
		}
	}
	if len(l.asked) != 100 {
		t.Errorf("asked %d times, want 100", len(l.asked))
	}
	for _, name := range []string{"Idempotency-Key", proxy.HeaderOperation, proxy.HeaderFence, proxy.HeaderAttempt} {
		if l.asked[99].Get(name) == "" || name != "Idempotency-Key" && l.asked[99].Get(name) != l.last().Get(name) {
			t.Errorf("%s: the run had %q, the question %q", name, l.last().Get(name), l.asked[99].Get(name))
		}
	}
}

func TestOperationThatDidNotHappenRunsAgain(t *testing.T) {
	l := newLedger(t)
	f := start(t, yamlFor(l.URL, "http1", verified))
	if first := f.post("k", "lost"); first.status != 504 {
		t.Fatalf("the first gets %d %s", first.status, first.body)
	}
	fence := l.last().Get(proxy.HeaderFence)
	l.mu.Lock()
	l.die = func(string) bool { return false }
	l.mu.Unlock()
	if r := f.post("k", "lost"); r.status != 201 || r.replayed() || l.count("k") != 2 {
		t.Errorf("%d %s, %d executions", r.status, r.body, l.count("k"))
	}
	if h := l.last(); h.Get(proxy.HeaderFence) == fence || h.Get(proxy.HeaderAttempt) != "2" {
		t.Errorf("the second attempt has fence %s after %s, attempt %s", h.Get(proxy.HeaderFence), fence, h.Get(proxy.HeaderAttempt))
	}
}

// The service can still execute after the response broke off. Until After, by default the lease, it is
// not asked, and nothing runs again.
func TestVerifyIsNotCalledWhileTheServiceCanExecute(t *testing.T) {
	l := newLedger(t)
	f := start(t, yamlFor(l.URL, "http1", strings.Replace(verified, ", after: 0s", "", 1)))
	f.post("k", "lost")
	if r := f.post("k", "lost"); r.status != 409 || l.count("k") != 1 || len(l.asked) != 0 {
		t.Errorf("%d %s, %d executions, asked %d times", r.status, r.body, l.count("k"), len(l.asked))
	}
}

// A run that is left must not be resolved by a store that fails at that moment
// either: its lease runs out instead.
func TestRunThatCannotBecomeUnknownKeepsItsLease(t *testing.T) {
	s := serve(t, false, func(_ http.ResponseWriter, r *http.Request) { _ = conn(r).Close() })
	st := &stubborn{Store: memory.New(memory.Options{})}
	f := startOn(t, st, yamlFor(s.URL, "http1", "scope: single-tenant\nroutes: [{path: /payments, lease: 2s}]\n"))
	if r := f.post("k", "{}"); r.status != 504 {
		t.Fatalf("got %d %s; want r.status == 504", r.status, r.body)
	}
	stettest.Eventually(t, "the lease to run out", func() bool { return f.post("k", "{}").problem() == "outcome-unknown" })
	if s.count("k") != 1 || f.state("k") != store.Unknown {
		t.Errorf("%d executions, %v", s.count("k"), f.state("k"))
	}
	if f.seen.Count(observe.Fenced) != 0 {
		t.Errorf("reported as fenced off")
	}
}

// stubborn is a store that cannot extend.
type stubborn struct{ *memory.Store }

func (s *stubborn) Extend(context.Context, []store.Claim, time.Duration) ([]store.Claim, error) {
	return nil, errors.New("the store is down")
}

// A 502 that the proxy makes up is none that the service gave.
func TestOwnAnswersOfTheProxyAreNotNotExecuted(t *testing.T) {
	for name, broken := range map[string]http.HandlerFunc{
		"no response": func(_ http.ResponseWriter, r *http.Request) { _ = conn(r).Close() },
		"half of one": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			_ = conn(r).Close()
		},
	} {
		s := serve(t, false, broken)
		f := start(t, yamlFor(s.URL, "http1", "scope: single-tenant\nroutes: [{path: /payments, not_executed: [502, 429]}]\n"))
		if r := f.post("k", "{}"); r.err == nil && r.status < 500 || f.state("k") != store.Unknown {
			t.Errorf("%s: %d %q (%v), the record is %v", name, r.status, r.body, r.err, f.state("k"))
		}
	}
}
