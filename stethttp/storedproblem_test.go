package stethttp_test

import (
	"encoding/json"
	"net/http"
	"reflect"
	"testing"
)

// wantSaidAlike wants responses that differ in nothing but the mark of a replay, and whose header
// says of the execution what their problem document says.
func wantSaidAlike(t *testing.T, first, retry reply) {
	t.Helper()
	a, b := first.header.Clone(), retry.header.Clone()
	for _, h := range []http.Header{a, b} {
		h.Del("Date")
		h.Del("Idempotent-Replayed")
		h.Del("Idempotency-Expires") // of a replay it may be later
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("first %v, retry %v", a, b)
	}
	var said struct{ Execution string }
	if err := json.Unmarshal([]byte(retry.body), &said); err != nil || b.Get("Idempotency-Execution") != said.Execution {
		t.Errorf("the header says %q, the document %q (%v)", b.Get("Idempotency-Execution"), said.Execution, err)
	}
}

// A trailer may say no more of another operation than a header or a 1xx may.
func TestTrailersDoNotDescribeAnotherOperation(t *testing.T) {
	for name, flushes := range map[string]bool{"held": false, "flushed": true} {
		s := start(t, setup{handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum, Idempotency-Execution")
			if flushes {
				w.(http.Flusher).Flush()
			}
			_, _ = w.Write([]byte("ok"))
			w.Header().Set("X-Sum", "1")
			w.Header().Set("Idempotency-Execution", "not executed")
			for _, mark := range []string{"Idempotent-Replayed", "Idempotency-Expires"} {
				w.Header().Set(http.TrailerPrefix+mark, "true")
			}
		}})
		for range 2 {
			r := s.post("k", "{}")
			for _, mark := range []string{"Idempotency-Execution", "Idempotent-Replayed", "Idempotency-Expires"} {
				if r.trailer.Get(mark) != "" {
					t.Errorf("%s: %v", name, r.trailer)
				}
			}
			if r.trailer.Get("X-Sum") != "1" {
				t.Errorf("%s: the service's own trailer is %v", name, r.trailer)
			}
		}
	}
}

func TestStoredProblemsOfStetAreConsistent(t *testing.T) {
	s := start(t, setup{handler: func(http.ResponseWriter, *http.Request) { panic("boom") }})
	s.post("k", "{}")
	first, retry := s.post("k", "{}"), s.post("k", "{}")
	wantProblem(t, first, 500, "handler-panicked")
	wantSaidAlike(t, first, retry)
}
