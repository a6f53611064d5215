package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

const single = "scope: single-tenant\nroutes: [{path: /payments, lease: 60s}]\n"

func yamlFor(url, protocol, more string) string {
	return fmt.Sprintf("upstream: {url: %q, protocol: %s}\n%s", url, protocol, more)
}

// breaks are ways in which a service ends a request that it has executed.
var breaks = map[string]http.HandlerFunc{
	"closes before it reads":   func(_ http.ResponseWriter, r *http.Request) { _ = conn(r).Close() },
	"closes after it has read": func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); _ = conn(r).Close() },
	"resets after it has read": func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = conn(r).SetLinger(0)
		_ = conn(r).Close()
	},
	"breaks off in mid-response": func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "half of it")
		_ = http.NewResponseController(w).Flush()
		_ = conn(r).Close()
	},
	"breaks off a stream": func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "half of it")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	},
	"aborts": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
}

func TestRequestWithABrokenConnectionIsExecutedOnceAndThenUnknown(t *testing.T) {
	for _, protocol := range []string{"http1", "h2c"} {
		for name, broken := range breaks {
			for _, body := range []string{"", `{"amount":42}`} {
				t.Run(fmt.Sprintf("%s/%s/%d bytes", protocol, name, len(body)), func(t *testing.T) {
					t.Parallel()
					s := serve(t, protocol == "h2c", func(w http.ResponseWriter, r *http.Request) {
						if r.Method == http.MethodPost {
							broken(w, r)
						}
					})
					f := start(t, yamlFor(s.URL, protocol, single))
					n := 10
					if name == "closes after it has read" && !testing.Short() {
						n = 200
					}
					for i := range n {
						key := fmt.Sprint("k", i)
						// It leaves a connection that is used again.
						if warm := f.send("GET", "/", "", ""); warm.status != 200 {
							t.Fatalf("warming: %v %v", warm.status, warm.err)
						}
						first := f.post(key, body)
						if s.count(key) != 1 {
							t.Fatalf("executed %d times", s.count(key))
						}
						// The sent part of a stream cannot be recalled.
						if first.err == nil && (first.status != 504 || first.problem() != "outcome-unknown") {
							t.Fatalf("the first gets %d %s", first.status, first.body)
						}
						if got := f.state(key); got != store.Unknown {
							t.Fatalf("the record is %v", got)
						}
						if again := f.post(key, body); again.status != 504 || again.problem() != "outcome-unknown" {
							t.Fatalf("the retry gets %d %s (%v)", again.status, again.body, again.err)
						}
						if s.count(key) != 1 {
							t.Fatalf("the retry was executed")
						}
					}
				})
			}
		}
	}
}

// The transport takes X-Idempotency-Key, and any method, for leave to repeat.
func TestUnprotectedRequestsAreNotSentTwiceEither(t *testing.T) {
	for _, method := range []string{"POST", "PUT", "DELETE"} {
		var runs sync.Map
		s := serve(t, false, func(_ http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet {
				n, _ := runs.LoadOrStore(r.Header.Get("X-Idempotency-Key"), new(atomic.Int64))
				n.(*atomic.Int64).Add(1)
				_ = conn(r).Close()
			}
		})
		f := start(t, yamlFor(s.URL, "http1", "unrouted: pass\n"+single))
		for i := range 20 {
			f.send("GET", "/", "", "")
			key := fmt.Sprint("k", i)
			r := f.send(method, "/elsewhere", "", "", "X-Idempotency-Key", key, "Idempotency-Key", key)
			if n, _ := runs.Load(key); n == nil || n.(*atomic.Int64).Load() != 1 || r.status != 502 || r.problem() != "upstream-failed" {
				t.Fatalf("%s: %v executions, %d %s", method, n, r.status, r.body)
			}
		}
	}
}

// After closing the proxy, the caller may close the store.
func TestEveryCloseWaitsForTheRequests(t *testing.T) {
	arrived, leave := make(chan struct{}), make(chan struct{})
	var ended atomic.Bool
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-leave
		ended.Store(true)
	})
	f := start(t, yamlFor(s.URL, "http1", single))
	answer := make(chan reply, 1)
	go func() { answer <- f.send("POST", "/elsewhere", "", "") }() // not protected, so not cut off
	<-arrived
	first := make(chan error, 1)
	go func() { first <- f.proxy.Close() }()
	stettest.Eventually(t, "the first to begin", func() bool { return f.post("k", "{}").problem() == "proxy-closing" })
	time.AfterFunc(50*time.Millisecond, func() { close(leave) })
	if err := f.proxy.Close(); err != nil || !ended.Load() {
		t.Errorf("the second returns %v while a request continues", err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
	if r := <-answer; r.status != 200 {
		t.Errorf("got %d %v; want r.status == 200", r.status, r.err)
	}
}

func TestServiceThatCannotBeReachedHasExecutedNothing(t *testing.T) {
	addr, err := rig.FreeAddr() // which no connection takes in the meantime
	if err != nil {
		t.Fatal(err)
	}
	f := start(t, yamlFor("http://"+addr, "http1", single))
	if r := f.post("k", "{}"); r.status != 502 || r.problem() != "upstream-unreachable" || r.header.Get("Retry-After") == "" {
		t.Fatalf("got %d %s; want r.status == 502, r.problem() == \"upstream-unreachable\", r.header.Get(\"Retry-After\") != \"\"", r.status, r.body)
	}
	if got := f.state("k"); got != store.None {
		t.Fatalf("the record is %v", got)
	}
	// The service comes up, and the same key runs.
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "done") })}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	if r := f.post("k", "{}"); r.status != 200 || r.body != "done" || r.replayed() {
		t.Fatalf("got %d %s; want r.status == 200, r.body == \"done\", not r.replayed()", r.status, r.body)
	}
}

func TestClientThatLeavesDoesNotStopTheOperation(t *testing.T) {
	n := 100
	if testing.Short() {
		n = 10
	}
	arrived, leave := make(chan struct{}), make(chan struct{})
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-leave
		select {
		case <-r.Context().Done():
			t.Error("the service's request ended with the client")
		default:
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "charged")
	})
	f := start(t, yamlFor(s.URL, "http1", single))
	for i := range n {
		key := fmt.Sprint("k", i)
		ctx, cancel := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, "POST", f.url+"/payments", strings.NewReader("{}"))
		req.Header.Set("Idempotency-Key", key)
		gone := make(chan error, 1)
		go func() {
			res, err := f.client.Do(req)
			if err == nil {
				_ = res.Body.Close()
			}
			gone <- err
		}()
		<-arrived
		cancel()
		<-gone
		leave <- struct{}{}
		var r reply // in flight until the caller's run has ended, which is after its outcome is stored
		stettest.Eventually(t, "the outcome", func() bool { r = f.post(key, "{}"); return r.status != http.StatusConflict })
		if r.status != 201 || r.body != "charged" || !r.replayed() || s.count(key) != 1 {
			t.Fatalf("%d %q, replayed %v, %d executions", r.status, r.body, r.replayed(), s.count(key))
		}
	}
}

func TestOperationThatTakesTooLongIsUnknown(t *testing.T) {
	leave := make(chan struct{})
	s := serve(t, false, func(_ http.ResponseWriter, _ *http.Request) { <-leave })
	defer close(leave)
	f := start(t, yamlFor(s.URL, "http1", "scope: single-tenant\nroutes: [{path: /payments, timeout: 2s}]\n"))
	if r := f.post("k", "{}"); r.status != 504 || r.problem() != "outcome-unknown" || f.state("k") != store.Unknown {
		t.Errorf("%d %s, record %v", r.status, r.body, f.state("k"))
	}
}

// The bytes on the wire, because services are written in every way.
func TestEmptyContentHasALengthOfZeroOnTheWire(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	heads := make(chan string, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(c)
			var head strings.Builder
			for {
				line, err := r.ReadString('\n')
				head.WriteString(line)
				if err != nil || line == "\r\n" {
					break
				}
			}
			_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)) // nothing may follow
			rest, _ := io.ReadAll(r)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			_ = c.Close()
			heads <- head.String() + string(rest)
		}
	}()
	f := start(t, yamlFor("http://"+l.Addr().String(), "http1", single))
	for _, tc := range []struct{ method, path, key, want string }{
		{"POST", "/payments", "k", "content-length: 0\r\n"},
		{"POST", "/elsewhere", "", "content-length: 0\r\n"},
		{"PUT", "/payments", "", "content-length: 0\r\n"},
		{"DELETE", "/payments/1", "k", ""},
	} {
		if r := f.send(tc.method, tc.path, tc.key, ""); r.status != 200 {
			t.Fatalf("%s %s: %d %s", tc.method, tc.path, r.status, r.body)
		}
		got := <-heads
		if !strings.HasSuffix(got, "\r\n\r\n") || !strings.Contains(got, tc.want) || strings.Contains(strings.ToLower(got), "transfer-encoding") ||
			strings.Count(strings.ToLower(got), "content-length") != strings.Count(tc.want, "content-length") {
			t.Errorf("%s %s is sent as %q", tc.method, tc.path, got)
		}
	}
}
