package stethttp_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/stettest"
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

// The figures are in docs/speed.md. Those of a first request are: what stethttp keeps of
// it; the handler's request, which has the run's context; what the engine keeps of it; the
// context, two; the handler's own header, two; what is stored; and Idempotency-Expires, two.
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

// TestLargeContentIsAllocatedOnce: a body is read into lent memory, and a response is kept
// in lent memory until it is stored, which takes as much as it has.
func TestLargeContentIsAllocatedOnce(t *testing.T) {
	const size = 1<<20 - 4<<10 // with its header it fits into the default Policy.MaxResult
	large, content, chunk := strings.Repeat("x", size), bytes.Repeat([]byte("x"), size), 32<<10
	inChunks := func(w http.ResponseWriter) {
		for rest := content; len(rest) > 0; rest = rest[min(chunk, len(rest)):] {
			_, _ = w.Write(rest[:min(chunk, len(rest))])
		}
	}
	for name, c := range map[string]struct {
		text   string
		answer func(w http.ResponseWriter)
		stored float64
	}{
		"body":     {large, func(w http.ResponseWriter) {}, 0},
		"response": {"{}", func(w http.ResponseWriter) { _, _ = w.Write(content) }, size},
		"chunks":   {"{}", inChunks, 1<<20 + 4<<10}, // the memory that it was kept in, of which hardly anything is left
		"declared": {"{}", inChunks, size},
		"both":     {large, func(w http.ResponseWriter) { _, _ = w.Write(content) }, size},
	} {
		t.Run(name, func(t *testing.T) {
			answer := func(w http.ResponseWriter, r *http.Request) {
				if name == "declared" {
					w.Header().Set("Content-Length", strconv.Itoa(size))
				}
				w.WriteHeader(http.StatusCreated)
				n := 0
				for buf := scratch[:]; ; {
					m, err := r.Body.Read(buf)
					if n += m; err != nil {
						break
					}
				}
				if n != len(c.text) {
					t.Errorf("the handler has read %d bytes of %d", n, len(c.text))
				}
				c.answer(w)
			}
			bare := bytesPerRun(repeated(t, http.HandlerFunc(answer), c.text, fresh(1)))
			first := bytesPerRun(repeated(t, guarded(t, answer), c.text, fresh(1000)))
			t.Logf("%.0f bytes more than the bare handler, of which %.0f are stored", first-bare, c.stored)
			if first-bare > c.stored+maxSlack {
				t.Errorf("%.0f bytes more than the bare handler are allocated; %.0f are stored", first-bare, c.stored)
			}
		})
	}
}

var scratch [32 << 10]byte

// bytesPerRun is testing.AllocsPerRun for bytes. Garbage collections take lent memory
// away, so it is the lowest of some rounds.
func bytesPerRun(f func()) float64 {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const runs = 10
	lowest := -1.0
	for range 4 {
		f()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			f()
		}
		runtime.ReadMemStats(&after)
		if n := float64(after.TotalAlloc-before.TotalAlloc) / runs; lowest < 0 || n < lowest {
			lowest = n
		}
	}
	return lowest
}

// TestLentMemoryHasNoContentOfOthers sends bodies of all sizes at once, through memory
// that is overwritten whenever it is lent again (see lent_test.go). Each response is its
// body twice.
func TestLentMemoryHasNoContentOfOthers(t *testing.T) {
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(b)
		_, _ = w.Write(b)
	}})
	done := make(chan struct{})
	for i, size := range []int{10, 3 << 10, 33 << 10, 64 << 10, 65 << 10, 130 << 10, 257 << 10, 400 << 10} {
		go func() {
			defer func() { done <- struct{}{} }()
			for n := range 12 {
				key := fmt.Sprintf("%d-%d", i, n)
				body := string(bytes.Repeat([]byte(key+" "), 1+size/len(key+" ")))
				for _, replayed := range []bool{false, true} {
					if r := s.post(key, body); r.status != http.StatusCreated || r.body != body+body {
						t.Errorf("%d bytes, replayed %v: status %d and %d bytes, of which some are another's", size, replayed, r.status, len(r.body))
					}
				}
			}
		}()
	}
	for range 8 {
		<-done
	}
}
