package stetclient_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetclient"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

var calls = flag.Int("calls", 1000, "calls to the hostile server, over each protocol")

// ledger counts the effects of each operation.
type ledger struct {
	mu      sync.Mutex
	effects map[string]int
}

func (l *ledger) add(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.effects == nil {
		l.effects = make(map[string]int)
	}
	l.effects[name]++
}

func (l *ledger) of(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.effects[name]
}

// protect puts stet before a handler.
func protect(t *testing.T, h http.Handler) http.Handler {
	t.Helper()
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{Wait: 5 * time.Second}})
	return stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant})).Handler(h)
}

// hostile serves a handler badly: it drops requests before it, during it and
// after it, answers half, answers for it, and hangs.
type hostile struct {
	inner   http.Handler
	work    sync.WaitGroup
	did     [8]atomic.Int64
	entered sync.Map // channel by key, closed in the handler
}

func (h *hostile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mode := rand.N(12)
	if mode >= len(h.did) {
		h.inner.ServeHTTP(w, r)
		return
	}
	h.did[mode].Add(1)
	switch mode {
	case 0: // before execution
		panic(http.ErrAbortHandler)
	case 1: // during it
		body, _ := io.ReadAll(r.Body)
		inside := make(chan struct{})
		h.entered.Store(string(body), inside)
		r = r.Clone(context.WithoutCancel(r.Context())) // the server's own ends with this function
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		done := make(chan struct{})
		h.work.Go(func() {
			defer close(done)
			h.inner.ServeHTTP(httptest.NewRecorder(), r)
		})
		select { // a replay does not enter the handler
		case <-inside:
		case <-done:
		}
		panic(http.ErrAbortHandler)
	case 2: // after it
		h.inner.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	case 3: // in the middle of the response
		rec := httptest.NewRecorder()
		h.inner.ServeHTTP(rec, r)
		w.Header().Set("Content-Length", fmt.Sprint(rec.Body.Len()))
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes()[:rec.Body.Len()/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	case 4: // the gateway's, before execution
		http.Error(w, "no upstream", http.StatusServiceUnavailable)
	case 5: // the gateway's, after it
		h.inner.ServeHTTP(httptest.NewRecorder(), r)
		http.Error(w, "bad gateway", http.StatusBadGateway)
	case 6: // until the client gives up, now and then
		h.inner.ServeHTTP(httptest.NewRecorder(), r)
		if rand.N(10) == 0 {
			<-r.Context().Done()
		}
		panic(http.ErrAbortHandler)
	case 7: // asked to come again
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusTooManyRequests)
	}
}

// TestHostileServer: at most one effect for each operation, and every call ends
// in its outcome or in an error that says truly whether there was one.
func TestHostileServer(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(map[bool]string{false: "HTTP1", true: "HTTP2"}[http2], func(t *testing.T) {
			var effects ledger
			h := &hostile{}
			h.inner = protect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if inside, ok := h.entered.LoadAndDelete(string(body)); ok {
					close(inside.(chan struct{}))
				}
				effects.add(string(body))
				w.WriteHeader(http.StatusCreated)
				_, _ = fmt.Fprintf(w, "%s, charge %d", body, effects.of(string(body)))
			}))
			srv := httptest.NewUnstartedServer(h)
			srv.EnableHTTP2 = http2
			if http2 {
				srv.StartTLS()
			} else {
				srv.Start()
			}
			defer srv.Close()
			base := srv.Client().Transport.(*http.Transport)
			base.MaxIdleConnsPerHost = 32
			tr, err := stetclient.New(base, stetclient.Options{
				Policy: stetclient.Policy{MaxAttempts: 6, Base: time.Millisecond, Cap: 4 * time.Millisecond, AttemptTimeout: 500 * time.Millisecond},
			})
			if err != nil {
				t.Fatal(err)
			}
			c := load{client: &http.Client{Transport: tr}, url: srv.URL, http2: http2, t: t}
			c.run(*calls)
			c.client.CloseIdleConnections()
			h.work.Wait()
			c.check(&effects)
			for mode := range h.did {
				if h.did[mode].Load() == 0 {
					t.Errorf("the server never did %d", mode)
				}
			}
		})
	}
}

// load makes calls and records their results.
type load struct {
	t       *testing.T
	client  *http.Client
	url     string
	http2   bool
	results []result
}

type result struct {
	body string
	info stetclient.Info
	err  error
}

func (c *load) run(n int) {
	c.results = make([]result, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				c.results[i] = c.call(fmt.Sprint("order ", i))
			}
		})
	}
	wg.Wait()
}

func (c *load) call(name string) (got result) {
	res, err := c.client.Post(c.url, "text/plain", strings.NewReader(name))
	if err != nil {
		got.err = err
		return got
	}
	defer res.Body.Close()
	got.info, _ = stetclient.InfoOf(res)
	body, err := io.ReadAll(res.Body)
	got.body, got.err = string(body), err
	if res.StatusCode != http.StatusCreated || (res.ProtoMajor == 2) != c.http2 {
		c.t.Errorf("%s: status %d over %s", name, res.StatusCode, res.Proto)
	}
	return got
}

func (c *load) check(effects *ledger) {
	outcomes, retried, unknown := 0, 0, 0
	for i, got := range c.results {
		name := fmt.Sprint("order ", i)
		n := effects.of(name)
		if n > 1 {
			c.t.Errorf("%s was executed %d times", name, n)
		}
		if got.err == nil {
			outcomes++
			if got.info.Attempts > 1 {
				retried++
			}
			if n != 1 || got.body != name+", charge 1" {
				c.t.Errorf("%s was executed %d times and got %q", name, n, got.body)
			}
			continue
		}
		e, ok := errors.AsType[*stetclient.Error](got.err)
		switch {
		case !ok:
			c.t.Errorf("%s: %v is not typed", name, got.err)
		case e.Execution == stet.MayHaveExecuted:
			unknown++
		case e.Execution == stet.NotExecuted && n != 0, e.Execution == stet.Executed && n != 1:
			c.t.Errorf("%s was executed %d times, and the error says %v", name, n, e.Execution)
		}
	}
	c.t.Logf("%d calls: %d outcomes, %d of them after retries; %d errors, %d of them unknown", len(c.results), outcomes, retried, len(c.results)-outcomes, unknown)
	if retried == 0 || outcomes == len(c.results) {
		c.t.Error("the server was not hostile enough")
	}
}
