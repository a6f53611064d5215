package proxy_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/internal/test/stettest"
)

// drip writes a byte every 20 ms until that fails.
func drip(w io.Writer, ended chan<- struct{}) {
	defer close(ended)
	for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
		if _, err := io.WriteString(w, "x"); err != nil {
			return
		}
	}
}

func wait(t *testing.T, what string, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Errorf("%s: it continues", what)
	}
}

const impatient = "limits: {stall: 10s, upload: 300ms, min_rate: 1KiB}\n"

func TestUploadBelowTheMinimumRateIsCutOff(t *testing.T) {
	s := serve(t, false, okHandler)
	f := start(t, yamlFor(s.URL, "http1", impatient+"scope: single-tenant\nroutes: [{path: /payments}, {path: /open, pass: true}]\n"))
	for name, request := range map[string]string{
		"protected": "POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 100000\r\n\r\n",
		"unrouted":  "PUT /other HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
		"pass":      "POST /open HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
		"GET":       "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
		"refused":   "POST /payments HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
	} {
		ended := make(chan struct{})
		go drip(f.dial(request), ended)
		wait(t, name, ended)
	}
	f.empty()
}

func TestUploadOfAStreamOfHTTP2BelowTheMinimumRateIsCutOff(t *testing.T) {
	s := serve(t, false, okHandler)
	f := start(t, yamlFor(s.URL, "http1", impatient+single))
	srv := httptest.NewUnstartedServer(f.proxy)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	defer srv.Close()
	transport := &http.Transport{Protocols: srv.Config.Protocols}
	defer transport.CloseIdleConnections()
	r, w := io.Pipe()
	ended := make(chan struct{})
	go drip(w, ended)
	req, _ := http.NewRequestWithContext(t.Context(), "PUT", srv.URL+"/other", r)
	if res, err := transport.RoundTrip(req); err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.StatusCode < 400 || res.ProtoMajor != 2 {
			t.Errorf("HTTP/%d: %d", res.ProtoMajor, res.StatusCode)
		}
	}
	_ = r.Close()
	wait(t, "HTTP/2", ended)
	f.empty()
}

// Its bytes earn it the time that it takes.
func TestUploadAboveTheMinimumRateMayTakeLongerThanUpload(t *testing.T) {
	s := serve(t, false, okHandler)
	f := start(t, yamlFor(s.URL, "http1", "limits: {stall: 10s, upload: 500ms, min_rate: 1KiB}\n"+single))
	const size, step = 200 << 10, 10 << 10
	r, w := io.Pipe()
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for sent := 0; sent < size; sent += step {
			<-tick.C
			_, _ = w.Write(bytes.Repeat([]byte("x"), step))
		}
		_ = w.Close()
	}()
	began := time.Now()
	req, _ := http.NewRequestWithContext(t.Context(), "PUT", f.url+"/other", r)
	res, err := f.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if took := time.Since(began); res.StatusCode != 200 || took < time.Second {
		t.Errorf("%d after %v", res.StatusCode, took)
	}
}

// The client takes a little now and then, so it never stalls.
func TestDownloadBelowTheMinimumRateIsCutOff(t *testing.T) {
	t.Parallel()
	s := serve(t, false, large(64<<20))
	f := start(t, yamlFor(s.URL, "http1", "limits: {stall: 10m, upload: 100ms, min_rate: 8MiB}\n"+single))
	c := f.dial("GET /report HTTP/1.1\r\nHost: x\r\n\r\n")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		some := make([]byte, 256<<10)
		for tick := time.NewTicker(50 * time.Millisecond); ; <-tick.C {
			if _, err := c.Read(some); err != nil {
				return
			}
		}
	}()
	wait(t, "download", ended)
	f.empty()
}

// switching is a service that switches to WebSocket, and then does unchanged told. ended
// gets the end of its connection.
func switching(t *testing.T, then func(net.Conn), ended chan<- struct{}) *service {
	return serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer close(ended)
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		then(c)
	})
}

const upgrade = "GET /chat HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"

func TestWebSocketIsClosed_ClientTakesNothing(t *testing.T) {
	ended := make(chan struct{})
	s := switching(t, func(c net.Conn) { _, _ = io.CopyN(c, zeros{}, 64<<20) }, ended)
	f := start(t, yamlFor(s.URL, "http1", "limits: {stall: 300ms}\n"+single))
	f.dial(upgrade)
	wait(t, "the service's connection", ended)
	f.empty()
}

func TestWebSocketStaysOpen_ClientIsSilent(t *testing.T) {
	ended := make(chan struct{})
	s := switching(t, func(c net.Conn) {
		for range 2 {
			b := make([]byte, 1)
			if _, err := io.ReadFull(c, b); err != nil {
				t.Error(err)
			}
			<-time.After(700 * time.Millisecond) // longer than stall and upload together
			_, _ = c.Write(b)
		}
	}, ended)
	f := start(t, yamlFor(s.URL, "http1", "limits: {stall: 200ms, upload: 200ms}\n"+single))
	c := f.dial(upgrade)
	head := make([]byte, len("HTTP/1.1 101 Switching Protocols\r\n"))
	if _, err := io.ReadFull(c, head); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, "ab")
	if got := rest(t, c); !strings.HasSuffix(got, "\r\n\r\nab") {
		t.Errorf("%q", got)
	}
	wait(t, "the service's connection", ended)
}

func TestUnprotectedRequestEndsAfterTheLongestTime(t *testing.T) {
	ended := make(chan struct{})
	s := switching(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, ended)
	f := start(t, yamlFor(s.URL, "http1", "limits: {longest: 300ms}\n"+single))
	c := f.dial(upgrade)
	wait(t, "WebSocket", ended)
	rest(t, c)
	f.empty()

	stream := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		for tick := time.NewTicker(20 * time.Millisecond); r.Context().Err() == nil; <-tick.C {
			_, _ = io.WriteString(w, "data\n")
			_ = http.NewResponseController(w).Flush()
		}
	})
	f = start(t, yamlFor(stream.URL, "http1", "limits: {longest: 300ms}\n"+single))
	if got := rest(t, f.dial("GET /events HTTP/1.1\r\nHost: x\r\n\r\n")); !strings.Contains(got, "data\n") || strings.HasSuffix(got, "0\r\n\r\n") {
		t.Errorf("the stream does not break off: %q", got)
	}
	f.empty()
}

// A protected request ends by its own times.
func TestProtectedRequestMayTakeLongerThanTheLongestTime(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(time.Second):
			okHandler(w, r)
		case <-r.Context().Done():
		}
	})
	f := start(t, yamlFor(s.URL, "http1", "limits: {longest: 100ms}\n"+single))
	if r := f.post("k", "{}"); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// dialFrom is dial from another address of this host.
func (f *front) dialFrom(local, request string) net.Conn {
	f.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
	c, err := d.DialContext(f.t.Context(), "tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, _ = io.WriteString(c, request)
	return c
}

func TestClientOfOneAddressCannotHoldAllOfTheMemory(t *testing.T) {
	s := serve(t, false, okHandler)
	whole := func(key, forwarded string) string {
		body := strings.Repeat("x", 100_000)
		return fmt.Sprintf("POST /payments HTTP/1.1\r\nHost: x\r\nConnection: close\r\nIdempotency-Key: %s\r\nX-Forwarded-For: %s\r\nContent-Length: %d\r\n\r\n%s", key, forwarded, len(body), body)
	}
	for name, c := range map[string]struct{ yaml, from, forwarded string }{
		"another address":           {"", "127.0.0.2", "203.0.113.1"},
		"another forwarded address": {"trust_forwarded: true\n", "127.0.0.1", "203.0.113.2"},
	} {
		f := start(t, yamlFor(s.URL, "http1", c.yaml+"limits: {memory: 4MiB}\n"+single))
		for i := range 2 {
			r := fmt.Sprintf(half, fmt.Sprint("k", i))
			f.dial(strings.Replace(r, "Host: x", "Host: x\r\nX-Forwarded-For: 203.0.113.1", 1) + strings.Repeat("x", 990_000))
		}
		stettest.Eventually(t, "half of the memory to be held", func() bool { return f.proxy.Counts().InHand >= 2*990_000 })
		if got := rest(t, f.dial(whole("same"+name[8:9], "203.0.113.1"))); !strings.Contains(got, "proxy-busy") {
			t.Errorf("%s: the client itself is not refused: %.200s", name, got)
		}
		if got := rest(t, f.dialFrom(c.from, whole("other"+name[8:9], c.forwarded))); !strings.HasPrefix(got, "HTTP/1.1 200 ") {
			t.Errorf("%s: another client is refused: %.300s", name, got)
		}
		if n := strings.Count(f.log.String(), "requests are refused: limits.memory"); n != 1 {
			t.Errorf("%s: the log has it %d times: %s", name, n, f.log)
		}
	}
}

// deadlines is a writer that notes its deadlines.
type deadlines struct {
	*httptest.ResponseRecorder
	read, write time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error  { d.read = at; return nil }
func (d *deadlines) SetWriteDeadline(at time.Time) error { d.write = at; return nil }

func TestRequestOfAnOperatorHasAnEnd(t *testing.T) {
	s := serve(t, false, okHandler)
	f := start(t, yamlFor(s.URL, "http1", single))
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/"} {
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		proxy.NewAdmin(f.proxy, nil).ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), "GET", path, http.NoBody))
		for _, at := range []time.Time{w.read, w.write} {
			if left := time.Until(at); left <= 0 || left > time.Minute {
				t.Errorf("%s ends at %v", path, at)
			}
		}
	}
}
