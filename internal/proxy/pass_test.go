package proxy_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/proxy"
)

func TestServiceReceivesTheOperationAndClientsCannotSetIt(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Stet-Secret", "of the service")
	})
	f := start(t, yamlFor(s.URL, "http1", single))
	r := f.post("k", "{}", "Stet-Fence", "99", "stet-operation", "x", "Stet-Anything", "x", "X-Forwarded-For", "1.2.3.4", "Expect", "100-continue")
	h := s.last()
	if r.status != 200 || len(h.Values(proxy.HeaderOperation)) != 1 || len(h.Get(proxy.HeaderOperation)) != 64 || h.Get(proxy.HeaderFence) == "99" ||
		h.Get(proxy.HeaderFence) == "" || h.Get(proxy.HeaderAttempt) != "1" || h.Get("Stet-Anything") != "" || h.Get("Idempotency-Key") != "k" ||
		h.Get("X-Forwarded-For") != "127.0.0.1" {
		t.Errorf("%d, the service got %v", r.status, h)
	}
	if r.header.Get("Stet-Secret") != "" {
		t.Error("what the service tells the proxy reached the client")
	}
	f.send("POST", "/elsewhere", "", "", "Stet-Fence", "99")
	if h := s.last(); h.Get(proxy.HeaderFence) != "" {
		t.Errorf("on a route that is not protected the service got %v", h)
	}
}

func TestConnectionHeaderCannotHideTheKey(t *testing.T) {
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	f := start(t, yamlFor(s.URL, "http1", single))
	for _, connection := range []string{"Idempotency-Key", "close, idempotency-key", "x-idempotency-key , keep-alive"} {
		for _, path := range []string{"/payments", "/elsewhere"} {
			// net/http's client does not let it through unchanged.
			c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nConnection: %s\r\nContent-Length: 0\r\n\r\n", path, connection)
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			_ = c.Close()
			if res.StatusCode != 400 || !strings.Contains(string(body), "key-hop-by-hop") || s.count("k") != 0 {
				t.Errorf("%s, Connection: %s: %d %s, %d executions", path, connection, res.StatusCode, body, s.count("k"))
			}
		}
	}
}

func TestPathsThatAServiceMayTakeForAProtectedOneAreProtected(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RequestURI) })
	f := start(t, yamlFor(s.URL, "http1", single))
	for i, path := range []string{"/payments", "//payments", "/x/../payments", "/./payments", "/payments?a=1&b=%2F",
		"/x/%2e%2e/payments", "/x%2F..%2Fpayments", "/x%2f%2E%2e%2fpayments?a", "/%2e/payments", "/%2Fpayments", "/pay%6dents"} {
		key := fmt.Sprint("k", i)
		r := f.send("POST", path, key, "")
		again := f.send("POST", path, key, "")
		if r.status != 200 || r.body != path || !again.replayed() || s.count(key) != 1 {
			t.Errorf("%s: %d %q, again %d, %d executions", path, r.status, r.body, again.status, s.count(key))
		}
	}
}

func TestRootOfAProtectedTreeIsProtected(t *testing.T) {
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	for name, tc := range map[string]struct {
		routes string
		runs   map[string]int // of two requests
	}{
		"a tree":           {"[{path: /payments/}]", map[string]int{"/payments": 1, "/payments/": 1, "/payments/7": 1, "/x/..%2Fpayments": 1, "/payment": 2}},
		"beside a pass":    {"[{path: /payments/}, {path: /, pass: true}]", map[string]int{"/payments": 1, "/payments/7": 1, "/other": 2, "/x%2F..%2Fpayments": 1}},
		"the root written": {"[{path: /payments/}, {path: /payments, pass: true}]", map[string]int{"/payments": 2, "/payments/": 1}},
		"no tree":          {"[{path: '/payments/{$$}'}]", map[string]int{"/payments/": 1, "/payments/7": 2}},
	} {
		f := start(t, yamlFor(s.URL, "http1", "scope: single-tenant\nunrouted: pass\nroutes: "+tc.routes+"\n"))
		for path, want := range tc.runs {
			key := strings.ReplaceAll(name+path, " ", "-")
			for range 2 {
				f.send("POST", path, key, "")
			}
			if got := s.count(key); got != want {
				t.Errorf("%s: two requests for %s are executed %d times, want %d", name, path, got, want)
			}
		}
	}
}

// If the header with the owner of the key does not reach the service, the
// service would execute the operation for another owner.
func TestConnectionHeaderCannotHideTheScope(t *testing.T) {
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	for scope, names := range map[string][]string{
		"header:x-account":            {"X-Account", "close, x-account", "Authorization"},
		"{jwt: {header: X-Verified}}": {"x-verified", "authorization"},
		"authorization":               {"Authorization"},
		"basic":                       {"Authorization"},
	} {
		f := start(t, yamlFor(s.URL, "http1", "scope: "+scope+"\n"))
		for _, connection := range names {
			r := httptest.NewRequest("POST", "/payments", strings.NewReader("{}"))
			r.Header = http.Header{"Idempotency-Key": {"k"}, "X-Account": {"a"}, "Authorization": {"Basic YTpi"}, "Connection": {connection}}
			w := httptest.NewRecorder()
			f.proxy.ServeHTTP(w, r)
			if w.Code != 400 || !strings.Contains(w.Body.String(), "key-hop-by-hop") || s.count("k") != 0 {
				t.Errorf("scope %s, Connection: %s: %d %s, %d executions", scope, connection, w.Code, w.Body, s.count("k"))
			}
		}
	}
}

func TestUpgradesPassWhereNothingIsProtected(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" {
			w.WriteHeader(http.StatusUpgradeRequired)
			return
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.WriteHeader(http.StatusSwitchingProtocols)
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, rw)
	})
	f := start(t, yamlFor(s.URL, "http1", single))
	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET /socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != 101 {
		t.Fatalf("got %v %v; want res.StatusCode == 101, no error", res, err)
	}
	fmt.Fprint(c, "hello")
	echo := make([]byte, 5)
	if _, err := io.ReadFull(r, echo); err != nil || string(echo) != "hello" {
		t.Errorf("got %q %v; want string(echo) == \"hello\", no error", echo, err)
	}
	if r := f.post("k", "{}", "Connection", "Upgrade", "Upgrade", "websocket"); r.status != http.StatusUpgradeRequired {
		t.Errorf("an upgrade of a protected request: %d %s", r.status, r.body)
	}
}

func TestServerSentEventsArriveAsTheyAreSent(t *testing.T) {
	next := make(chan struct{})
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := 0; ; i++ {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-next:
			case <-r.Context().Done(): // the client's leaving reaches the service
				close(next)
				return
			}
		}
	})
	f := start(t, yamlFor(s.URL, "http1", single))
	req, _ := http.NewRequestWithContext(t.Context(), "GET", f.url+"/events", nil)
	res, err := f.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(res.Body)
	for i := range 3 {
		if !lines.Scan() || lines.Text() != fmt.Sprint("data: ", i) || !lines.Scan() {
			t.Fatalf("event %d: %q %v", i, lines.Text(), lines.Err())
		}
		next <- struct{}{}
	}
	_ = res.Body.Close()
	for range next { // closed when the service has received it
	}
}

func TestLargeUploadsPassWhereNothingIsProtected(t *testing.T) {
	const size = 64 << 20
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		fmt.Fprintf(w, "%d %x %v", n, h.Sum(nil), err)
	})
	f := start(t, yamlFor(s.URL, "http1", single))
	want := sha256.New()
	body := io.TeeReader(io.LimitReader(zeros{}, size), want)
	req, _ := http.NewRequestWithContext(t.Context(), "POST", f.url+"/upload", body)
	res, err := f.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	got, _ := io.ReadAll(res.Body)
	if string(got) != fmt.Sprintf("%d %x <nil>", size, want.Sum(nil)) {
		t.Errorf("got %s; want string(got) == fmt.Sprintf(\"%%d %%x <nil>\", size, want.Sum(nil))", got)
	}
	if r := f.post("k", strings.Repeat("x", 1<<20+1)); r.status != 413 {
		t.Errorf("a protected one: %d", r.status)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestExpectContinueIsAnsweredByTheService(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }) // without reading
	f := start(t, yamlFor(s.URL, "http1", single))
	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "POST /upload HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || res.StatusCode != http.StatusForbidden {
		t.Errorf("got %v %v; want res.StatusCode == http.StatusForbidden, no error", res, err)
	}
}

func TestResponsesPassUnchanged(t *testing.T) {
	payload := bytes.Repeat([]byte("ab\x00\xff"), 1000)
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Add("X-List", "a, b")
		w.Header().Add("X-List", "c")
		w.Header().Set("Content-Encoding", "gzip") // it is not: the proxy must not decode it
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write(payload)
		w.Header().Set("X-Sum", "42")
	})
	f := start(t, yamlFor(s.URL, "http1", "unrouted: pass\n"+single))
	for _, path := range []string{"/payments", "/elsewhere", "/payments"} {
		req, _ := http.NewRequestWithContext(t.Context(), "POST", f.url+path, strings.NewReader("{}"))
		req.Header.Set("Idempotency-Key", "k")
		req.Header.Set("Accept-Encoding", "gzip")
		res, err := f.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != 202 || !bytes.Equal(body, payload) || res.Trailer.Get("X-Sum") != "42" ||
			fmt.Sprint(res.Header.Values("X-List")) != "[a, b c]" {
			t.Errorf("%s: %d, %d bytes, %v, trailer %v (%v)", path, res.StatusCode, len(body), res.Header, res.Trailer, err)
		}
	}
}
