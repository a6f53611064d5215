package stethttp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store/memory"
)

// notebook writes one trace and collects the traces that are read.
type notebook struct {
	mu      sync.Mutex
	writes  string
	written int
	read    []string
}

func (n *notebook) around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(observe.WithTrace(r.Context(), &observe.Trace{
			Run: func() string {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.written++
				return n.writes
			},
			Replayed: func(trace string) {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.read = append(n.read, trace)
			},
		})))
	})
}

func (n *notebook) want(t *testing.T, written int, read ...string) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.written != written || strings.Join(n.read, "|") != strings.Join(read, "|") {
		t.Errorf("%d were written and %q read; want %d and %q", n.written, n.read, written, read)
	}
}

func wantNoTrace(t *testing.T, h http.Header) {
	t.Helper()
	for name, values := range h {
		if strings.Contains(strings.ToLower(name), "trace") || strings.Contains(strings.Join(values, " "), "traced") {
			t.Errorf("sent: %s: %q", name, values)
		}
	}
}

func TestTraceIsReadAtReplayAndNeverSent(t *testing.T) {
	for name, set := range map[string]setup{"lease": {}, "http2": {http2: true}, "tx": {tx: true, store: newTxStore()}} {
		t.Run(name, func(t *testing.T) {
			n := &notebook{writes: "traced"}
			set.around = n.around
			s := start(t, set)
			first := s.post("k", "charged")
			wantReply(t, first, 201, "charged", false)
			n.want(t, 1)
			again := s.post("k", "charged")
			wantReply(t, again, 201, "charged", true)
			n.want(t, 1, "traced")
			wantProblem(t, s.post("k", "other"), 422, "mismatch")
			n.want(t, 1, "traced")
			wantNoTrace(t, first.header)
			wantNoTrace(t, again.header)
		})
	}
}

// A process that has no use for traces replays a response that has one, without it.
func TestTraceIsNotSentIfNoObserverReadsIt(t *testing.T) {
	n := &notebook{writes: "traced"}
	quiet := false
	s := start(t, setup{around: func(next http.Handler) http.Handler {
		loud := n.around(next)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if quiet {
				rec := httptest.NewRecorder() // unlike a server it keeps every name
				next.ServeHTTP(rec, r)
				wantNoTrace(t, rec.Header())
				w.WriteHeader(rec.Code)
				return
			}
			loud.ServeHTTP(w, r)
		})
	}})
	s.post("k", "charged")
	quiet = true
	if again := s.post("k", "charged"); again.status != 201 {
		t.Errorf("got %+v; want again.status == 201", again)
	}
	n.want(t, 1)
}

func TestHandlerCannotForgeATrace(t *testing.T) {
	n := &notebook{}
	s := start(t, setup{around: n.around, handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header()[":trace"] = []string{"forged"}
		_, _ = io.WriteString(w, "ok")
	}})
	s.post("k", "")
	wantReply(t, s.post("k", ""), 200, "ok", true)
	n.want(t, 1)
}

func TestTraceThatDoesNotFitIsLeftOutAndTheResponseIsKept(t *testing.T) {
	for _, c := range []struct {
		limit, length int
		kept          bool
	}{
		{0, observe.MaxTrace, true}, {0, observe.MaxTrace + 1, false},
		{200, 10, true}, {200, 180, false},
	} {
		n := &notebook{writes: strings.Repeat("n", c.length)}
		s := start(t, setup{around: n.around, store: memory.New(memory.Options{}), engine: stet.Options{Policy: stet.Policy{MaxResult: c.limit}}})
		s.post("k", "charged")
		wantReply(t, s.post("k", "charged"), 201, "charged", true)
		n.mu.Lock()
		if kept := len(n.read) == 1; kept != c.kept {
			t.Errorf("a trace of %d bytes, where %d are kept of a response: kept %v", c.length, c.limit, kept)
		}
		n.mu.Unlock()
	}
}
