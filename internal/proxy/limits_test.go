package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

// dial opens a connection and sends bytes.
func (f *front) dial(request string) net.Conn {
	f.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, request); err != nil {
		f.t.Fatal(err)
	}
	return c
}

// rest returns all bytes until the connection ends.
func rest(t *testing.T, c net.Conn) string {
	t.Helper()
	b, err := io.ReadAll(c)
	if e, ok := err.(net.Error); ok && e.Timeout() {
		t.Fatal("the connection does not end")
	}
	return string(b)
}

func (f *front) empty() {
	f.t.Helper()
	stettest.Eventually(f.t, "the proxy to hold nothing", func() bool { return f.proxy.Counts().InHand == 0 })
}

const half = "POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s\r\nContent-Length: 1000000\r\n\r\n"

func TestContentInMemoryIsBounded(t *testing.T) {
	s := serve(t, false, okHandler)
	f := start(t, yamlFor(s.URL, "http1", "limits: {memory: 4MiB}\n"+single))
	var all []net.Conn
	for i := range 40 {
		all = append(all, f.dial(fmt.Sprintf(half, fmt.Sprint("k", i))+strings.Repeat("x", 300_000)))
	}
	stettest.Eventually(t, "those to be refused that are too many", func() bool { return f.proxy.Counts().Busy >= 25 })
	if n := f.proxy.Counts().InHand; n > 4<<20 {
		t.Errorf("%d bytes are in use", n)
	}
	var refused atomic.Int64
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(func() {
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				return
			}
			body, _ := io.ReadAll(res.Body)
			if res.StatusCode != 503 || !strings.Contains(string(body), "proxy-busy") || res.Header.Get("Retry-After") == "" {
				t.Errorf("got %d %s; want res.StatusCode == 503, strings.Contains(string(body), \"proxy-busy\"), res.Header.Get(\"Retry-After\") != \"\"", res.StatusCode, body)
			}
			refused.Add(1)
		})
	}
	stettest.Eventually(t, "20 of 40 to be refused as busy", func() bool { return refused.Load() >= 20 })
	for _, c := range all {
		_ = c.Close()
	}
	wg.Wait()
	f.empty()
	if r := f.post("later", "{}"); r.status != 200 || s.count("k0") != 0 {
		t.Errorf("got %d %s; want r.status == 200, s.count(\"k0\") == 0", r.status, r.body)
	}
}

func TestRequestsInFlightAreBounded(t *testing.T) {
	arrived, leave := make(chan struct{}, 100), make(chan struct{})
	s := serve(t, false, func(http.ResponseWriter, *http.Request) { arrived <- struct{}{}; <-leave })
	f := start(t, yamlFor(s.URL, "http1", "limits: {memory: 1MiB, memory_per_peer: 1MiB}\n"+single))
	for range 64 {
		f.dial("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		<-arrived
	}
	if r := f.send("GET", "/", "", ""); r.status != 503 || r.problem() != "proxy-busy" {
		t.Errorf("got %d %s; want r.status == 503, r.problem() == \"proxy-busy\"", r.status, r.body)
	}
	close(leave)
	f.empty()
}

func TestUploadThatStallsIsCutOff(t *testing.T) {
	s := serve(t, false, okHandler)
	f := start(t, yamlFor(s.URL, "http1", "limits: {stall: 200ms}\n"+single))
	for name, request := range map[string]string{
		"protected":                      fmt.Sprintf(half, "k") + "half",
		"unprotected":                    "PUT /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf",
		"refused":                        fmt.Sprintf(half, strings.Repeat("k", 300)) + "half",
		"refused by the proxy":           "POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency_Key: k\r\nContent-Length: 1000\r\n\r\nhalf",
		"chunked":                        "POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: c\r\nTransfer-Encoding: chunked\r\n\r\n400\r\nhalf",
		"a GET with content that is due": "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf",
	} {
		if got := rest(t, f.dial(request)); s.count("k") != 0 {
			t.Errorf("%s: executed; %q", name, got)
		}
	}
	f.empty()
}

func TestUploadOfAProtectedRequestHasAnEnd(t *testing.T) {
	s := serve(t, false, okHandler)
	f := start(t, yamlFor(s.URL, "http1", "limits: {stall: 10s, upload: 300ms}\n"+single))
	c := f.dial(fmt.Sprintf(half, "k"))
	answer := make(chan string, 1)
	go func() { answer <- rest(t, c) }()
	drip := time.NewTicker(20 * time.Millisecond)
	defer drip.Stop()
	for {
		select {
		case got := <-answer:
			if s.count("k") != 0 || got != "" && !strings.Contains(got, "body-unreadable") {
				t.Errorf("%q", got)
			}
			return
		case <-drip.C:
			_, _ = c.Write([]byte("x"))
		}
	}
}

// The content is there; the wait is for another request.
func TestDuplicateMayWaitLongerThanAnUpload(t *testing.T) {
	t.Parallel()
	arrived, leave := make(chan struct{}), make(chan struct{})
	s := serve(t, false, blockingHandler(arrived, leave))
	f := start(t, yamlFor(s.URL, "http1", "scope: single-tenant\nlimits: {stall: 8s, upload: 8s}\nroutes: [{path: /payments, wait: 60s}]\n"))
	answers := make(chan reply, 2)
	go func() { answers <- f.post("k", "{}") }()
	<-arrived
	go func() { answers <- f.post("k", "{}") }()
	stettest.Eventually(t, "both to be in progress", func() bool { return f.proxy.Counts().InHand > 2*16<<10 })
	time.AfterFunc(9*time.Second, func() { close(leave) })
	for range 2 {
		if r := <-answers; r.status != 200 {
			t.Errorf("got %d %s %v; want r.status == 200", r.status, r.body, r.err)
		}
	}
	if n := s.count("k"); n != 1 {
		t.Errorf("%d executions", n)
	}
}

func large(n int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.CopyN(w, zeros{}, int64(n))
	}
}

func TestClientThatDoesNotReadIsCutOff(t *testing.T) {
	t.Parallel()
	s := serve(t, false, large(64<<20))
	f := start(t, yamlFor(s.URL, "http1", "limits: {stall: 3s}\n"+single))
	f.dial("GET /report HTTP/1.1\r\nHost: x\r\n\r\n")
	f.dial("POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
	stettest.Eventually(t, "the operation to end", func() bool { return f.ended("k") })
	f.empty()
	if got := f.state("k"); got != store.Completed {
		t.Errorf("the record is %v", got)
	}
}

// ended reports whether the operation was begun, and has ended.
func (f *front) ended(key string) bool {
	state := f.state(key)
	return state != 0 && state != store.Running
}

// What the service did is known; only its response was not taken.
func TestUnreadAnswerLeavesNothingUnknown(t *testing.T) {
	t.Parallel()
	s := serve(t, false, large(64<<20))
	f := start(t, yamlFor(s.URL, "http1", "scope: single-tenant\nroutes: [{path: /payments, timeout: 8s, max_result: 64KiB}]\n"))
	f.dial("POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: idle\r\nContent-Length: 0\r\n\r\n")
	slow := f.dial("POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: slow\r\nContent-Length: 0\r\n\r\n")
	go func() {
		some := make([]byte, 64<<10)
		for pause := time.NewTicker(10 * time.Millisecond); ; <-pause.C {
			if _, err := slow.Read(some); err != nil {
				return
			}
		}
	}()
	for _, key := range []string{"idle", "slow"} {
		stettest.Eventually(t, "the operation to end", func() bool { return f.ended(key) })
		if got := f.state(key); got != store.Completed {
			t.Errorf("%s: the record is %v", key, got)
		}
		if r := f.post(key, ""); r.status != 410 {
			t.Errorf("%s: a retry gets %d %s", key, r.status, r.body)
		}
	}
}

func TestClientThatReadsSlowlyGetsAll(t *testing.T) {
	t.Parallel()
	const size = 32 << 20
	s := serve(t, false, large(size))
	f := start(t, yamlFor(s.URL, "http1", "limits: {stall: 8s}\n"+single))
	res, err := f.client.Get(f.url + "/report")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var got int64
	for pause := time.NewTicker(150 * time.Millisecond); ; <-pause.C { // in all longer than it may stall
		n, err := io.CopyN(io.Discard, res.Body, 512<<10)
		got += n
		if err != nil {
			break
		}
	}
	if got != size {
		t.Errorf("%d bytes of %d", got, size)
	}
}

// It is the client's progress that counts, not the service's.
func TestServiceMayBeSilentLongerThanAClient(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "data\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-time.After(6 * time.Second):
			case <-r.Context().Done():
			}
			_, _ = io.WriteString(w, "data\n")
		})
		f := start(t, yamlFor(s.URL, "http1", "limits: {stall: 5s}\n"+single))
		srv := httptest.NewUnstartedServer(f.proxy)
		srv.Config.Protocols = new(http.Protocols)
		srv.Config.Protocols.SetHTTP1(!h2)
		srv.Config.Protocols.SetUnencryptedHTTP2(h2)
		srv.Start()
		transport := &http.Transport{Protocols: srv.Config.Protocols}
		res, err := (&http.Client{Transport: transport}).Post(srv.URL+"/events", "text/plain", strings.NewReader("ask"))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if string(b) != "data\ndata\n" || err != nil || res.ProtoMajor == 2 != h2 {
			t.Errorf("HTTP/%d: %q %v", res.ProtoMajor, b, err)
		}
		transport.CloseIdleConnections()
		srv.Close()
	}
}

func TestDrainingWaitsForNoClientThatIsStuck(t *testing.T) {
	s := serve(t, false, large(64<<20))
	f := start(t, yamlFor(s.URL, "http1", single))
	f.dial("GET /report HTTP/1.1\r\nHost: x\r\n\r\n")
	f.dial(fmt.Sprintf(half, "k") + "half")
	f.dial("PUT /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf")
	stettest.Eventually(t, "them to be in progress", func() bool { return f.proxy.Counts().InHand >= 3*16<<10 })
	began := time.Now()
	f.proxy.Drain()
	f.empty()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}
