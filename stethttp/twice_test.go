package stethttp_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// TestHandlerThatIsProtectedTwiceIsMisconfigured at each request: the answer of the
// inner middleware, which must not be kept, is not that the operation is in flight.
func TestHandlerThatIsProtectedTwiceIsMisconfigured(t *testing.T) {
	for name, st := range map[string]store.Store{"with a lease": nil, "in a transaction": newTxStore()} {
		var outer *stethttp.Middleware
		s := start(t, setup{store: st, tx: st != nil, around: func(inner http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { outer.Handler(inner).ServeHTTP(w, r) })
		}})
		o := stethttp.Options{Scope: stethttp.SingleTenant}
		if st == nil {
			outer = stethttp.Must(stethttp.New(s.engine, o))
		} else {
			outer = stethttp.Must(stethttp.NewTx(stettest.TxEngine(s.engine, s.store.(store.TxStore[*fakeTx])), o)).Middleware
		}
		for range 2 {
			r := s.post("k", "{}")
			wantProblem(t, r, 500, "misconfigured")
			if d := r.problem(); d.Execution != "not executed" {
				t.Errorf("%s: %+v", name, d)
			}
		}
		s.wantRuns(0)
		if rec, err := s.store.Read(t.Context(), s.engine.ID("single-tenant", "k")); err != nil || rec.State.Settled() {
			t.Errorf("%s: the record is %v, %v", name, rec.State, err)
		}
		if !strings.Contains(s.log.String(), "inside itself") {
			t.Errorf("%s: the log does not name the fault: %s", name, s.log)
		}
	}
}

// TestHandlerThatCallsItselfIsNotCalledAgain: unlike a middleware, it may have had an
// effect before it handed its request on.
func TestHandlerThatCallsItselfIsNotCalledAgain(t *testing.T) {
	var again http.Handler
	s := start(t, setup{
		around: func(inner http.Handler) http.Handler { again = inner; return inner },
		handler: func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			again.ServeHTTP(w, r)
		},
	})
	for range 2 {
		wantProblem(t, s.post("k", "{}"), 500, "misconfigured")
	}
	s.wantRuns(1)
}

// TestRelayedProblemIsNotKeptAsTheOutcome of a handler that asks a service that is
// protected, too, and follows docs/problems.md.
func TestRelayedProblemIsNotKeptAsTheOutcome(t *testing.T) {
	var key string
	busy := true
	below := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		if busy {
			stet.FromContext(r.Context()).Declare(stet.MayHaveExecuted, 0)
		}
		w.WriteHeader(http.StatusCreated)
	}, engine: stet.Options{Policy: stet.Policy{Stale: stet.MayRunAgain()}}})
	above := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		run := stet.FromContext(r.Context())
		derived := run.DeriveKey("below")
		if key != "" && key != derived {
			t.Errorf("another key: %q, %q", key, derived)
		}
		key = derived
		res := below.post(derived, "{}")
		if res.status == http.StatusConflict || res.status == http.StatusGatewayTimeout {
			run.Declare(stet.NotExecuted, 0)
		}
		w.WriteHeader(res.status)
		_, _ = io.WriteString(w, res.body)
	}})
	if r := above.post("k", "{}"); r.status != http.StatusGatewayTimeout {
		t.Fatalf("got %+v; want r.status == http.StatusGatewayTimeout", r)
	}
	busy = false
	if r := above.post("k", "{}"); r.status != http.StatusCreated || r.replayed() {
		t.Fatalf("the retry: %+v", r)
	}
	if r := above.post("k", "{}"); r.status != http.StatusCreated || !r.replayed() {
		t.Fatalf("the retry of that: %+v", r)
	}
}
