package stethttp_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

const theirs = `{"type":"https://other.example/problems#in-flight","retryable":true,"execution":"not executed"}`

// TestFieldsOfAnotherOperationAreNotPassedOn: a handler charges, calls a service
// that stet protects as well, and hands on its response as it came.
func TestFieldsOfAnotherOperationAreNotPassedOn(t *testing.T) {
	for name, c := range map[string]struct {
		status    int
		responses stethttp.Responses
		tx        bool
		runs      int64 // for two calls
		plain     bool  // no problem document
		says      string
	}{
		"409, stored":                {409, stethttp.StoreOutcomes, false, 1, false, "executed"},
		"409, stored, no problem":    {409, stethttp.StoreOutcomes, false, 1, true, ""},
		"500, stored as failed":      {500, stethttp.StoreOutcomes, false, 1, false, "executed"},
		"403, stored":                {403, stethttp.StoreAll, false, 1, true, "executed"},
		"429, stored":                {429, stethttp.StoreAll, false, 1, true, "executed"},
		"403, released":              {403, stethttp.StoreOutcomes, false, 2, false, ""},
		"409, in a transaction":      {409, stethttp.StoreOutcomes, true, 1, false, "executed"},
		"500, rolled back":           {500, stethttp.StoreOutcomes, true, 2, false, ""},
		"500, rolled back, and kept": {500, stethttp.StoreAll, true, 1, false, "not executed"},
		"200":                        {200, stethttp.StoreOutcomes, false, 1, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			handler := func(w http.ResponseWriter, _ *http.Request) {
				h := w.Header()
				h.Set("Content-Type", "application/problem+json")
				if c.plain {
					h.Set("Content-Type", "text/plain")
				}
				h.Set("Idempotent-Replayed", "true")
				h.Set("Idempotency-Execution", "not executed")
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, theirs)
			}
			var st store.Store
			if c.tx {
				st = newTxStore()
			}
			s := start(t, setup{store: st, tx: c.tx, handler: handler, options: stethttp.Options{Responses: c.responses}})
			for n := range 2 {
				r := s.post("k", "{}")
				if again := n > 0 && c.runs == 1; r.status != c.status || r.replayed() != again || r.header.Get("Idempotency-Execution") != c.says {
					t.Errorf("call %d: %d %v", n, r.status, r.header)
				}
			}
			s.wantRuns(c.runs)
		})
	}
}
