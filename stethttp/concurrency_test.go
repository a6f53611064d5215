package stethttp_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
)

func TestTenThousandRequestsWithOneKeyRunOnce(t *testing.T) {
	for name, tx := range map[string]bool{"lease": false, "transaction": true} {
		t.Run(name, func(t *testing.T) {
			set := setup{tx: tx}
			if tx {
				set.store = newTxStore()
			}
			s := start(t, set)
			var runs, replays, conflicts atomic.Int64
			var m *stethttp.Middleware
			o := stethttp.Options{Scope: stethttp.SingleTenant}
			if tx {
				m = stethttp.Must(stethttp.NewTx(stettest.TxEngine(s.engine, set.store.(*txStore)), o)).Middleware
			} else {
				m = stethttp.Must(stethttp.New(s.engine, o))
			}
			h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusCreated)
				_, _ = fmt.Fprintf(w, "run %d", runs.Add(1))
			}))
			var wg sync.WaitGroup
			for range 10_000 {
				wg.Go(func() {
					r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("{}"))
					r.Header.Set("Idempotency-Key", "k")
					w := httptest.NewRecorder()
					h.ServeHTTP(w, r)
					switch {
					case w.Code == 201 && w.Body.String() == "run 1" && w.Header().Get("Idempotent-Replayed") == "true":
						replays.Add(1)
					case w.Code == 409 && w.Header().Get("Retry-After") != "":
						conflicts.Add(1)
					case w.Code != 201 || w.Body.String() != "run 1":
						t.Errorf("%d %s", w.Code, w.Body)
					}
				})
			}
			wg.Wait()
			if runs.Load() != 1 || replays.Load()+conflicts.Load() != 9_999 {
				t.Errorf("runs %d, replays %d, conflicts %d", runs.Load(), replays.Load(), conflicts.Load())
			}
		})
	}
}

func TestBodiesOfConcurrentRequestsDoNotMix(t *testing.T) {
	s := start(t, setup{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 50 {
				key, body := fmt.Sprintf("%d-%d", i, n), strings.Repeat(fmt.Sprintf("%d-%d ", i, n), 1+n*20)
				for _, replayed := range []bool{false, true} {
					wantReply(t, s.post(key, body), 201, body, replayed)
				}
			}
		})
	}
	wg.Wait()
	s.wantRuns(400)
}
