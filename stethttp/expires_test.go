package stethttp_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestStoredResponseHasTheExpiryOfItsKey(t *testing.T) {
	for name, tx := range map[string]bool{"lease": false, "transaction": true} {
		t.Run(name, func(t *testing.T) {
			var st store.Store = memory.New(memory.Options{})
			if tx {
				st = newTxStore()
			}
			s := start(t, setup{store: st, tx: tx, handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Idempotency-Expires", "of another operation")
				w.WriteHeader(http.StatusCreated)
			}})
			first, retry := s.post("k", "{}"), s.post("k", "{}")
			rec := stettest.Read(t, st, s.engine.ID("single-tenant", "k"))
			if got, want := retry.header.Get("Idempotency-Expires"), rec.ForgetAt.UTC().Format(http.TimeFormat); got != want || !retry.replayed() {
				t.Errorf("a replay says %q; the record is forgotten at %q", got, want)
			}
			at, err := http.ParseTime(first.header.Get("Idempotency-Expires"))
			if early := rec.ForgetAt.Sub(at); err != nil || early < 0 || early > time.Minute {
				t.Errorf("the first response says %q (%v), %v before the record is forgotten", first.header.Get("Idempotency-Expires"), err, early)
			}
		})
	}
}

func TestResponseThatIsNotStoredHasNoExpiry(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"released": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
		"unknown": func(_ http.ResponseWriter, r *http.Request) {
			stet.FromContext(r.Context()).Declare(stet.MayHaveExecuted, 0)
		},
		"missing": func(http.ResponseWriter, *http.Request) {},
	} {
		s := start(t, setup{handler: h, options: stethttp.Options{}})
		for range 2 {
			if r := s.post("k", "{}"); r.header.Get("Idempotency-Expires") != "" {
				t.Errorf("%s: %d %v", name, r.status, r.header)
			}
		}
	}
}
