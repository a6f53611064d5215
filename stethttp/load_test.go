package stethttp_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/cache"
	"github.com/stet-go/stet/store/memory"
)

// loadSizes are lengths of content, in bytes.
var loadSizes = []int{0, 1, 700, 2047, 2048, 2049, 5 << 10, 63 << 10, 64<<10 - 513, 64 << 10, 64<<10 + 1, 200 << 10, 256 << 10, 256<<10 + 1, 700 << 10, 1 << 20}

// content is what only this side of this operation has: n bytes of which each piece names it.
func content(side, key string, n int) []byte {
	piece := []byte(side + " of " + key + ", ")
	return bytes.Repeat(piece, n/len(piece)+1)[:n]
}

// load test is a service whose handlers do with memory what handlers do.
type loadTest struct {
	t    *testing.T
	s    *service
	up   *httptest.Server // what a proxy hands to
	out  http.Transport
	wg   sync.WaitGroup // of goroutines that handlers leave behind
	seen atomic.Int64   // requests that were compared as a whole
	told atomic.Int64   // responses, also
	left atomic.Int64   // goroutines that were left behind with a body
}

// wish is what a request asks of the handler: it is in the query, as that is of the operation.
type wish struct {
	key            string
	takes, returns int // bytes
	how            string
}

var loadWays = []string{"plain", "plain", "declared", "flushed", "pieces", "left", "panic", "proxy", "early", "timeout", "fields"}

func (w wish) path() string {
	return fmt.Sprintf("/%s?key=%s&takes=%d&returns=%d", w.how, w.key, w.takes, w.returns)
}

func wishOf(u *url.URL) (w wish) {
	q := u.Query()
	w.key, w.how = q.Get("key"), strings.Trim(u.Path, "/")
	w.takes, _ = strconv.Atoi(q.Get("takes"))
	w.returns, _ = strconv.Atoi(q.Get("returns"))
	return w
}

// read reads a body that must be that of the operation, or the beginning of it.
func (st *loadTest) read(w wish, body io.Reader, whole bool) {
	got, err := io.ReadAll(body)
	switch want := content("request", w.key, w.takes); {
	case !bytes.HasPrefix(want, got):
		st.t.Errorf("%s: the handler read something else than the client has sent: %.100q", w.path(), got)
	case whole && (err != nil || len(got) != len(want)):
		st.t.Errorf("%s: the handler read %d bytes: %v", w.path(), len(got), err)
	case whole:
		st.seen.Add(1)
	}
}

func (st *loadTest) handle(w http.ResponseWriter, r *http.Request) {
	asks := wishOf(r.URL)
	answer := content("response", asks.key, asks.returns)
	w.Header().Set("X-Key", asks.key)
	w.Header().Set("Content-Type", "text/plain")
	switch asks.how {
	case "left": // with the body, the writer and the header
		st.wg.Go(func() {
			st.read(asks, r.Body, false)
			st.left.Add(1)
			<-r.Context().Done()
			w.Header().Set("X-Key", "late")
			if _, err := w.Write(content("late", asks.key, 3000)); err == nil {
				st.t.Errorf("%s: a write after the handler returned", asks.path())
			}
		})
	case "early": // before it has read all
		_, _ = io.CopyN(io.Discard, r.Body, int64(asks.takes/3))
	case "proxy":
		target, _ := url.Parse(st.up.URL)
		p := httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: &st.out, ErrorLog: log.New(io.Discard, "", 0)}
		p.ServeHTTP(w, r)
		return
	case "timeout": // its goroutine may continue
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer st.wg.Done()
			st.read(asks, r.Body, false)
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(answer)
		})
		st.wg.Add(1)
		http.TimeoutHandler(h, time.Duration(1+rand.IntN(2000))*time.Microsecond, "too late").ServeHTTP(w, r)
		return
	default:
		st.read(asks, r.Body, true)
	}
	st.answer(w, asks, answer)
}

func (st *loadTest) answer(w http.ResponseWriter, asks wish, answer []byte) {
	switch asks.how {
	case "fields":
		for i := range 20 {
			w.Header().Set(fmt.Sprintf("X-Field-%d", i), asks.key)
		}
	case "declared":
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	}
	w.WriteHeader(http.StatusCreated)
	switch asks.how {
	case "flushed", "pieces":
		for rest := answer; len(rest) > 0; {
			n := 1 + rand.IntN(len(rest))
			_, _ = w.Write(rest[:n])
			if rest = rest[n:]; asks.how == "flushed" {
				_ = http.NewResponseController(w).Flush()
			}
		}
	case "panic":
		_, _ = w.Write(answer[:len(answer)/2])
		panic(http.ErrAbortHandler)
	default:
		_, _ = w.Write(answer)
	}
}

// upstream is behind the proxy. It does not always read all.
func (st *loadTest) upstream(w http.ResponseWriter, r *http.Request) {
	asks := wishOf(r.URL)
	if rand.IntN(2) == 0 {
		st.read(asks, r.Body, false)
	}
	w.Header().Set("X-Key", asks.key)
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(content("response", asks.key, asks.returns))
}

// ask sends a request, which may be cancelled, and compares the response.
func (st *loadTest) ask(asks wish, within time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	req := st.s.request("POST", asks.path(), asks.key, "").WithContext(ctx)
	body := content("request", asks.key, asks.takes)
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	if rand.IntN(4) == 0 {
		req.ContentLength = -1 // chunked
	}
	req.Header.Set("Prefer", "wait=2")
	resp, err := st.s.client.Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusCreated {
		if !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/problem+json") && string(got) != "too late" && len(got) > 0 {
			st.t.Errorf("%s: %d %.200q", asks.path(), resp.StatusCode, got)
		}
		return
	}
	want := content("response", asks.key, asks.returns)
	switch key := resp.Header.Get("X-Key"); {
	case key != asks.key && asks.how != "timeout":
		st.t.Errorf("%s: the header is that of %q", asks.path(), key)
	case !bytes.HasPrefix(want, got), err == nil && len(got) != len(want):
		st.t.Errorf("%s: %d bytes of %d, which are not its own: %.100q", asks.path(), len(got), len(want), got)
	case asks.how == "fields" && resp.Header.Get("X-Field-19") != asks.key:
		st.t.Errorf("%s: %v", asks.path(), resp.Header)
	case err == nil:
		st.told.Add(1)
	}
}

// TestLoadMixesNoBytes: requests of many keys, sizes and manners, with duplicates at the same
// time and clients that leave. Each byte that a handler reads, or a client gets, names its operation.
func TestLoadMixesNoBytes(t *testing.T) {
	cached, err := cache.New(memory.New(memory.Options{}), cache.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, set := range map[string]setup{
		"lease":       {},
		"cache":       {store: cached},
		"transaction": {store: newTxStore(), tx: true},
		"HTTP/2":      {http2: true},
	} {
		t.Run(name, func(t *testing.T) {
			st := &loadTest{t: t}
			set.handler = st.handle
			// Some responses do not fit.
			set.engine = stet.Options{Policy: stet.Policy{MaxResult: 600 << 10, Stale: stet.MayRunAgain()}}
			set.options = stethttp.Options{Advanced: stethttp.Advanced{StoreSetCookie: true}}
			st.s = start(t, set)
			st.s.client.Transport.(*http.Transport).MaxIdleConnsPerHost = 32
			st.up = httptest.NewServer(http.HandlerFunc(st.upstream))
			defer st.up.Close()
			defer st.out.CloseIdleConnections()
			if tx, ok := set.store.(*txStore); ok {
				tx.inVain.Store(60) // handlers are called again
			}
			st.blow()
			st.wg.Wait()
			t.Logf("%d runs; %d requests and %d responses were compared as a whole, %d bodies were left behind", st.s.runs.Load(), st.seen.Load(), st.told.Load(), st.left.Load())
			if st.seen.Load() < 100 || st.told.Load() < 200 || st.left.Load() == 0 {
				t.Error("hardly anything was compared")
			}
		})
	}
}

// blow sends the requests.
func (st *loadTest) blow() {
	const callers, each = 12, 40
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for n := range each {
				asks := wish{key: fmt.Sprintf("%d-%d", caller, n), how: loadWays[rand.IntN(len(loadWays))],
					takes: loadSizes[rand.IntN(len(loadSizes))], returns: loadSizes[rand.IntN(len(loadSizes))]}
				var all sync.WaitGroup
				for range 1 + rand.IntN(3) {
					within := time.Minute
					if rand.IntN(4) == 0 {
						within = time.Duration(rand.IntN(5000)) * time.Microsecond
					}
					all.Go(func() { st.ask(asks, within) })
				}
				all.Wait()
				st.ask(asks, time.Minute) // a replay, most likely
			}
		})
	}
	wg.Wait()
}
