package stethttp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

// resent is a request that is sent over and over, as a server would make it: its body is
// read from the beginning each time.
type resent struct {
	*http.Request
	body strings.Reader
	text string
}

func (a *resent) Read(p []byte) (int, error) { return a.body.Read(p) }
func (a *resent) Close() error               { return nil }

// repeated returns a function that sends one request to h with the next of keys, and the
// responses of which are counted.
func repeated(t *testing.T, h http.Handler, text string, keys [][]string) func() {
	t.Helper()
	a := &resent{Request: httptest.NewRequest(http.MethodPost, "/payments", nil), text: text}
	a.Header["Content-Type"] = []string{"application/json"}
	a.ContentLength, a.Body = int64(len(text)), a
	next := 0
	return func() {
		a.body.Reset(a.text)
		a.Header["Idempotency-Key"] = keys[next%len(keys)]
		next++
		w := tally{header: make(http.Header)}
		h.ServeHTTP(&w, a.Request)
		if w.status != http.StatusCreated {
			t.Fatalf("status %d", w.status)
		}
	}
}

// tally is the http.ResponseWriter of a client that counts.
type tally struct {
	header http.Header
	status int
	n      int
}

func (w *tally) Header() http.Header { return w.header }
func (w *tally) WriteHeader(status int) {
	w.status = status
}
func (w *tally) Write(p []byte) (int, error) {
	w.n += len(p)
	return len(p), nil
}

// fresh are keys, made before anything is counted.
func fresh(n int) (keys [][]string) {
	for i := range n {
		keys = append(keys, []string{"fresh-" + strconv.Itoa(i)})
	}
	return keys
}

// guarded returns the handler behind a middleware over the memory store.
func guarded(t *testing.T, next http.HandlerFunc) http.Handler {
	t.Helper()
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	return stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant})).Handler(next)
}

// The figures are in docs/speed.md.
func TestFirstRequestsAndReplaysCostFewAllocations(t *testing.T) {
	var response = []byte(paymentJSON)
	answer := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header()["Content-Type"] = jsonContent
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(response)
	}
	const runs = 2000
	bare := testing.AllocsPerRun(runs, repeated(t, http.HandlerFunc(answer), paymentJSON, fresh(1)))
	first := testing.AllocsPerRun(runs, repeated(t, guarded(t, answer), paymentJSON, fresh(2*runs)))
	replay := testing.AllocsPerRun(runs, repeated(t, guarded(t, answer), paymentJSON, fresh(1)))
	t.Logf("bare %v, first %v, replay %v", bare, first, replay)
	if first-bare > maxFirst {
		t.Errorf("a first request has %v allocations more than the bare handler (%v); want %v at most", first-bare, bare, maxFirst)
	}
	if replay-bare > maxReplay {
		t.Errorf("a replay has %v allocations more than the bare handler (%v); want %v at most", replay-bare, bare, maxReplay)
	}
}

var jsonContent = []string{"application/json"}
