package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
)

// recorder is a service that stores its requests, byte for byte, and answers
// each request with an empty response.
type recorder struct {
	url string
	mu  sync.Mutex
	got []message
}

// message is a request on the wire.
type message struct {
	line    string // the first
	header  textproto.MIMEHeader
	trailer textproto.MIMEHeader
	body    string
}

func record(t *testing.T) *recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	rec := &recorder{url: "http://" + l.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { rec.serve(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return rec
}

// serve answers one request, and ends the connection.
func (rec *recorder) serve(c net.Conn) {
	defer c.Close()
	b := bufio.NewReader(c)
	text := textproto.NewReader(b)
	m := message{}
	var err error
	if m.line, err = text.ReadLine(); err != nil {
		return
	}
	if m.header, err = text.ReadMIMEHeader(); err != nil {
		return
	}
	if m.header.Get("Transfer-Encoding") == "chunked" {
		for {
			size, _ := text.ReadLine()
			var n int64
			if _, err := fmt.Sscanf(size, "%x", &n); err != nil || n == 0 {
				break
			}
			part, _ := io.ReadAll(io.LimitReader(b, n))
			m.body += string(part)
			_, _ = text.ReadLine()
		}
		m.trailer, _ = text.ReadMIMEHeader()
	} else if n := m.header.Get("Content-Length"); n != "" {
		var size int64
		_, _ = fmt.Sscan(n, &size)
		part, _ := io.ReadAll(io.LimitReader(b, size))
		m.body = string(part)
	}
	rec.mu.Lock()
	rec.got = append(rec.got, m)
	rec.mu.Unlock()
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

// take returns the bytes received since the last call.
func (rec *recorder) take() []message {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	got := rec.got
	rec.got = nil
	return got
}

// conversation sends bytes, and returns all that comes back until the connection ends.
func (f *front) conversation(request string) string {
	f.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, request); err != nil {
		f.t.Fatal(err)
	}
	b, _ := io.ReadAll(c)
	return string(b)
}

// Bytes behind a request whose end a gateway before the proxy may see
// elsewhere is never taken for a request.
func TestNoRequestIsSmuggledBehindAnother(t *testing.T) {
	const second = "POST /payments HTTP/1.1\r\nHost: x\r\nX-Account: victim\r\nIdempotency-Key: stolen\r\nContent-Length: 2\r\n\r\n{}"
	chunk := "0\r\n\r\n"
	for name, first := range map[string]string{
		"Content-Length and Transfer-Encoding": "POST %s HTTP/1.1\r\nHost: x\r\nX-Account: mallory\r\nIdempotency-Key: own\r\nContent-Length: 200\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk,
		"Transfer-Encoding and Content-Length": "POST %s HTTP/1.1\r\nHost: x\r\nX-Account: mallory\r\nIdempotency-Key: own\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + chunk,
		"the same, without a key":              "POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + chunk,
		"a GET":                                "GET %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + chunk,
		"HTTP/1.0 with Transfer-Encoding":      "POST %s HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\nX-Account: mallory\r\nIdempotency-Key: own\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.0 with both":                   "POST %s HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\nX-Account: mallory\r\nIdempotency-Key: own\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + chunk,
		"a refused one":                        "POST %s HTTP/1.1\r\nHost: x\r\nIdempotency_Key: own\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + chunk,
		"a method of another kind":             "CONNECT x:80 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + chunk,
		"an upgrade":                           "GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + chunk,
		"101 expected":                         "POST %s HTTP/1.1\r\nHost: x\r\nX-Account: mallory\r\nIdempotency-Key: own\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + chunk,
	} {
		for _, path := range []string{"/payments", "/elsewhere"} {
			s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusEarlyHints) })
			f := start(t, yamlFor(s.URL, "http1", "scope: header:X-Account\nroutes: [{path: /payments}]\n"))
			// Once, and again as the second attempt, when it is a replay.
			for range 2 {
				request := first
				if strings.Contains(first, "%s") {
					request = fmt.Sprintf(first, path)
				}
				got := f.conversation(request + second)
				if n := strings.Count(got, "HTTP/1.") - strings.Count(got, "HTTP/1.1 103") - strings.Count(got, "HTTP/1.1 100"); n != 1 {
					t.Errorf("%s on %s is answered %d times: %q", name, path, n, got)
				}
				if n := s.count("stolen"); n != 0 {
					t.Errorf("%s on %s: a smuggled request was executed %d times", name, path, n)
				}
			}
		}
	}
}

// Others keep their connections.
func TestConnectionsAreReusedIfTheEndIsClear(t *testing.T) {
	rec := record(t)
	f := start(t, yamlFor(rec.url, "http1", single))
	one := "POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}"
	if got := f.conversation(one + one + "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); strings.Count(got, "HTTP/1.1 200") != 3 {
		t.Errorf("got %q; want strings.Count(got, \"HTTP/1.1 200\") == 3", got)
	}
}

func TestTargetIsSentByteForByte(t *testing.T) {
	rec := record(t)
	for _, base := range []string{"", "/api", "/api/"} {
		f := start(t, fmt.Sprintf("upstream: {url: %q}\n%s", rec.url+base, single))
		for i, target := range []string{
			"/payments?amount=100&to=a;b", "/payments?amount=100;to=bob", "/payments?to=%zz&amount=100", "/payments?%", "/payments?b=2&a=1&b=1",
			"/payments?", "/payments??", "/payments?a=1?b=2", "/payments?a=+%20&q=ä", "/payments?a[]=1&a[]=2", "/payments?x=1#y",
			"/payments;v=1?a", "/PAYMENTS", "/payments/%2F%2e", "/pay%6Dents", "/a%20b", `/a"b<c>{d}|e\f^g` + "`", "/pä", "/a//b/../c/./d", "/x?redirect=http://y/?a=1",
			"//payments?a=1", "//payments;a?;", "http://other/payments?a=1;b", "http://other?a=1;b", "http://other", "//a%2Fb",
		} {
			for method, header := range map[string]string{"GET": "", "PUT": "", "POST": fmt.Sprintf("Idempotency-Key: %s-%d\r\n", strings.Trim(base, "/")+"k", i)} {
				want := target
				if rest, ok := strings.CutPrefix(target, "http://other"); ok {
					want = "/" + strings.TrimPrefix(rest, "/")
				}
				want = strings.TrimSuffix(base, "/") + want
				rec.take()
				r := f.raw(method + " " + target + " HTTP/1.1\r\nHost: x\r\n" + header + "Content-Length: 0\r\n\r\n")
				got := rec.take()
				if r.status != 200 || len(got) != 1 || got[0].line != method+" "+want+" HTTP/1.1" {
					t.Errorf("%s %s is sent as %v (%d %s)", method, target, got, r.status, r.body)
				}
			}
		}
	}
}

func TestTargetThatCannotBeSentUnchangedIsRefused(t *testing.T) {
	rec := record(t)
	f := start(t, yamlFor(rec.url, "http1", single))
	if r := f.raw("POST //a\"b HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"); r.problem() != "target-invalid" || len(rec.take()) != 0 {
		t.Errorf("got %d %s; want r.problem() == \"target-invalid\", len(rec.take()) == 0", r.status, r.body)
	}
	for _, target := range []string{"http:/payments", "http:payments", "x:/payments", "payments:payments", "*"} {
		if r := f.raw("POST " + target + " HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n"); r.problem() != "target-invalid" || len(rec.take()) != 0 {
			t.Errorf("%s: %d %s", target, r.status, r.body)
		}
	}
	// HTTP/2 lets a space through, which would end the target in HTTP/1.
	r := http.Request{Method: "POST", RequestURI: "/a?b HTTP/1.1", ProtoMajor: 2, Header: http.Header{}}
	r.URL = &url.URL{Path: "/a", RawQuery: "b HTTP/1.1"}
	w := &discarder{header: http.Header{}}
	f.proxy.ServeHTTP(w, &r)
	if w.status != 400 || len(rec.take()) != 0 {
		t.Errorf("got %d; want w.status == 400, len(rec.take()) == 0", w.status)
	}
}

// HTTP/2 carries methods that HTTP/1.1 cannot.
func TestMethodThatIsNoTokenIsRefusedAndNotCounted(t *testing.T) {
	rec := record(t)
	f := start(t, yamlFor(rec.url, "http1", "scope: single-tenant\nroutes: [{path: /payments}]\n"))
	for _, method := range []string{"POST /x", " POST", "POST\t", "P\x00ST", "P\u00d6ST", "POST/1", ""} {
		r := httptest.NewRequest("POST", "/other", strings.NewReader("{}"))
		r.Method, r.ProtoMajor, r.ProtoMinor = method, 2, 0
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		f.proxy.ServeHTTP(w, r)
		if w.Code != 400 || !strings.Contains(w.Body.String(), "method-invalid") || len(rec.take()) != 0 {
			t.Errorf("%q: %d %s", method, w.Code, w.Body)
		}
	}
	if n := f.proxy.Counts().Unprotected; n != 0 || strings.Contains(f.log.String(), "unprotected") {
		t.Errorf("%d are counted as unprotected: %s", n, f.log)
	}
	r := httptest.NewRequest("P!OST", "/other", http.NoBody) // an unusual one
	w := httptest.NewRecorder()
	f.proxy.ServeHTTP(w, r)
	if got := rec.take(); len(got) != 1 || got[0].line != "P!OST /other HTTP/1.1" {
		t.Errorf("%v", got)
	}
}

type discarder struct {
	header http.Header
	status int
}

func (d *discarder) Header() http.Header         { return d.header }
func (d *discarder) WriteHeader(status int)      { d.status = status }
func (d *discarder) Write(p []byte) (int, error) { return len(p), nil }

func TestOnlyWebSocketsAreUpgraded(t *testing.T) {
	rec := record(t)
	f := start(t, yamlFor(rec.url, "http1", single))
	for _, upgrade := range []string{"h2c", "H2C", "websocket, h2c", "h2c, websocket", "websocket\r\nUpgrade: h2c", "h2c\r\nUpgrade: websocket", "TLS/1.0", "tunnel"} {
		for _, method := range []string{"GET", "POST", "OPTIONS"} {
			r := f.raw(method + " /chat HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\nUpgrade: " + upgrade + "\r\nContent-Length: 0\r\n\r\n")
			got := rec.take()
			if r.status != 200 || len(got) != 1 || got[0].header.Get("Upgrade") != "" || got[0].header.Get("Http2-Settings") != "" || strings.Contains(strings.ToLower(got[0].header.Get("Connection")), "upgrade") {
				t.Errorf("%s with Upgrade: %s is sent as %v (%d)", method, upgrade, got, r.status)
			}
		}
	}
	for method, want := range map[string]string{"GET": "websocket", "POST": ""} {
		f.raw(method + " /chat HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n")
		if got := rec.take(); len(got) != 1 || got[0].header.Get("Upgrade") != want {
			t.Errorf("%s is sent as %v", method, got)
		}
	}
}

// A service that switches protocols gives no client a way past the proxy.
func TestServiceThatSwitchesUnaskedIsNoTunnel(t *testing.T) {
	var through sync.WaitGroup
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
		c, b, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
		if line, err := b.ReadString('\n'); err == nil {
			t.Errorf("%q came through", line)
		}
	})
	f := start(t, yamlFor(s.URL, "http1", single))
	got := f.conversation("GET /chat HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nPOST /payments HTTP/1.1\r\nHost: x\r\nConnection: close\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
	through.Wait()
	if strings.Contains(got, " 101 ") {
		t.Errorf("got %q; want not strings.Contains(got, \" 101 \")", got)
	}
}

func TestFieldsOfTheProxyCannotBeSetInAnySpelling(t *testing.T) {
	rec := record(t)
	f := start(t, yamlFor(rec.url, "http1", single))
	for _, path := range []string{"/payments", "/elsewhere"} {
		f.raw("POST " + path + " HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k-" + path[1:] + "\r\nStet_Fence: 99\r\nstet-fence: 99\r\nSTET_Operation: x\r\nStet.Attempt: 9\r\nStet~Fence: 99\r\nX_Forwarded_For: 1.2.3.4\r\nX~Forwarded~For: 1.2.3.4\r\nContent~Length: 7\r\n" +
			"Transfer_Encoding: chunked\r\nContent_Length: 7\r\nX_Mine: kept\r\nContent-Length: 2\r\n\r\n{}")
		got := rec.take()
		if len(got) != 1 {
			t.Fatalf("got %v; want len(got) == 1", got)
		}
		for name, values := range got[0].header {
			plain := strings.NewReplacer("_", "-", ".", "-", "~", "-").Replace(strings.ToLower(name))
			switch {
			case strings.HasPrefix(plain, "stet-") && (strings.ContainsAny(name, "_.~") || slices.Contains(values, "99")),
				name != "X-Forwarded-For" && plain == "x-forwarded-for", strings.ContainsAny(name, "_.~") && plain != "x-mine":
				t.Errorf("%s: %s: %v reaches the service", path, name, values)
			}
		}
		if got[0].header["X_mine"] == nil {
			t.Errorf("%s: %v lacks the client's own", path, got[0].header)
		}
	}
}

func TestTrailersOfRequestsAreNotForwarded(t *testing.T) {
	rec := record(t)
	f := start(t, yamlFor(rec.url, "http1", "scope: header:X-Account\nroutes: [{path: /payments, key_header: X-Digest-Key}]\n"))
	names := []string{"Stet-Fence", "Stet_Digest", "X-Account", "Authorization", "Idempotency-Key", "X-Digest-Key", "X-Custom", "Content-Digest", "X-Amz-Checksum-Crc32"}
	for _, path := range []string{"/payments", "/elsewhere"} {
		for _, declared := range []bool{true, false} {
			request := "POST " + path + " HTTP/1.1\r\nHost: x\r\nX-Account: a\r\nTransfer-Encoding: chunked\r\n"
			if path == "/payments" {
				request += fmt.Sprintf("X-Digest-Key: k%v\r\n", declared)
			}
			if declared {
				request += "Trailer: " + strings.Join(names, ", ") + "\r\n"
			}
			request += "\r\n2\r\n{}\r\n0\r\n" + strings.Join(names, ": spoofed\r\n") + ": spoofed\r\n\r\n"
			r := f.raw(request)
			got := rec.take()
			if r.status != 200 || len(got) != 1 || got[0].body != "{}" {
				t.Fatalf("%s: %d %s, %v", path, r.status, r.body, got)
			}
			if len(got[0].trailer) > 0 {
				t.Errorf("%s, declared %v: trailers %v", path, declared, got[0].trailer)
			}
			for name, values := range got[0].header {
				if slices.Contains(values, "spoofed") {
					t.Errorf("%s, declared %v: header %s: %v", path, declared, name, values)
				}
			}
		}
	}
}

func TestFieldsOfTheServiceToTheProxyReachNoClient(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h["Stet_Secret"], h["stet.secret"] = []string{"x"}, []string{"x"}
		h.Set("Trailer", "Stet-Declared, X-Sum")
		_, _ = io.WriteString(w, "done")
		h.Set("Stet-Declared", "x")
		h.Set("X-Sum", "42")
		h.Set(http.TrailerPrefix+"Stet_Later", "x")
	})
	f := start(t, yamlFor(s.URL, "http1", "unrouted: pass\n"+single))
	for _, path := range []string{"/payments", "/payments", "/elsewhere"} {
		got := f.conversation("POST " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nIdempotency-Key: k\r\nTE: trailers\r\nContent-Length: 2\r\n\r\n{}")
		if strings.Contains(strings.ToLower(got), "stet-") && strings.Contains(strings.ToLower(got), "stet-declared") || strings.Contains(got, "Secret") || strings.Contains(got, "secret") ||
			strings.Contains(got, "Later") || !strings.Contains(got, "X-Sum: 42") {
			t.Errorf("%s: %q", path, got)
		}
	}
	if f.state("k") != store.Completed {
		t.Error(f.state("k"))
	}
}
