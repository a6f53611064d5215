package proxy_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// TestAcceptedRequestIsSentByteForByte: also bytes that are not UTF-8.
func TestAcceptedRequestIsSentByteForByte(t *testing.T) {
	const content = "\x00{\xff\r\n"
	got, bodies := make(chan *http.Request, 10), make(chan string, 10)
	s := serve(t, false, func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies <- string(b)
		got <- r
	})
	f := startAsync(t, memory.New(memory.Options{}), orders(s.URL, ", headers: [X-Name, X-Other]", ""))
	for i, c := range []struct{ target, name string }{
		{"/payments?q=\xff\xe9&<>=1", "Jos\xe9"},
		{"/payments?q=\xc3\xa9\u20ac", "Jos\u00e9 \u20ac <&>"},
		{"/payments;a=1?b=%2F%zz;c", "\"quoted\", and, commas\t"},
		{"//payments?x", "a"},
		{"/payments/../payments?", "a"},
		{"/%70ayments", "a"},
	} {
		key := "k" + string(rune('0'+i))
		status := f.raw("POST " + c.target + " HTTP/1.1\r\nHost: shop.example:81\r\nIdempotency-Key: \"" + key + "\"\r\nX-Name: " + c.name + "\r\nX-Other: 1\r\nX-Other: 2, 3\r\nContent-Length: 5\r\n\r\n" + content).status
		if status != 202 {
			t.Errorf("%q: %d", c.target, status)
			continue
		}
		r := <-got
		if body := <-bodies; body != content {
			t.Errorf("%q: the content was sent as %q", c.target, body)
		}
		if r.RequestURI != c.target || r.Header.Get("X-Name") != strings.TrimSpace(c.name) || strings.Join(r.Header["X-Other"], "|") != "1|2, 3" || r.Host != "shop.example:81" {
			t.Errorf("%q with %q was sent as %q with %q, %q to %s", c.target, c.name, r.RequestURI, r.Header.Get("X-Name"), r.Header["X-Other"], r.Host)
		}
	}
}

// TestRequestThatCannotBeSentIsNotAccepted: other requests must not wait for it.
func TestRequestThatCannotBeSentIsNotAccepted(t *testing.T) {
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	f := startAsync(t, memory.New(memory.Options{}), orders(s.URL, "", ""))
	for _, target := range []string{"http://\xff/payments", "http://a\"b/payments", "http://a<b/payments"} {
		if status := f.raw("POST " + target + " HTTP/1.1\r\nHost: x\r\nIdempotency-Key: bad\r\nContent-Length: 2\r\n\r\n{}").status; status != 400 || f.state("bad") != store.None {
			t.Errorf("%q: %d, and the operation is %v", target, status, f.state("bad"))
		}
	}
	if r := f.outcome("k", "{}"); r.status != 200 || strings.Contains(f.log.String(), "cannot be used") {
		t.Errorf("another request: %d; the log: %s", r.status, f.log.String())
	}
}

// TestServiceReceivesTheSchemeOfTheCaller: TLS, or the fields of a trusted gateway.
func TestServiceReceivesTheSchemeOfTheCaller(t *testing.T) {
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	f := startAsync(t, memory.New(memory.Options{}), orders(s.URL, "", ""))
	secure := httptest.NewTLSServer(f.proxy)
	defer secure.Close()
	plain, client := f.url, f.client
	f.url, f.client = secure.URL, secure.Client()
	if r := f.outcome("k", "{}"); r.status != 200 || s.last().Get("X-Forwarded-Proto") != "https" {
		t.Errorf("over TLS: %d; the service got %v", r.status, s.last())
	}
	f.url, f.client = plain, client
	if r := f.outcome("l", "{}"); r.status != 200 || s.last().Get("X-Forwarded-Proto") != "http" {
		t.Errorf("without TLS: %d; the service got %v", r.status, s.last())
	}
	f = startAsync(t, memory.New(memory.Options{}), orders(s.URL, "", "")+"trust_forwarded: true\n")
	f.post("m", "{}", "X-Forwarded-Proto", "https", "X-Forwarded-Host", "shop.example", "Forwarded", "for=192.0.2.1")
	if r := f.outcome("m", "{}"); r.status != 200 || s.last().Get("X-Forwarded-Proto") != "https" || s.last().Get("X-Forwarded-Host") != "shop.example" || s.last().Get("Forwarded") != "for=192.0.2.1" {
		t.Errorf("behind another proxy: %d; the service got %v", r.status, s.last())
	}
}

// TestReloadEndsNoRun: a configuration that was replaced lets its runs end.
func TestReloadEndsNoRun(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	s := serve(t, false, func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") != "first" {
			return
		}
		close(begun)
		select {
		case <-end:
		case <-r.Context().Done():
			t.Error("the run was cut off")
		}
	})
	yaml := orders(s.URL, "", "") + "drain: 1ms\n"
	f := startAsync(t, memory.New(memory.Options{}), yaml)
	f.post("first", "{}")
	<-begun
	c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(strings.Replace(yaml, "20ms", "30ms", 1))), func(string) (string, bool) { return "", false })
	if err == nil {
		err = f.proxy.Reload(c)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"second", "third", "fourth"} { // which take longer than drain
		if r := f.outcome(key, "{}"); r.status != 200 {
			t.Errorf("%s: %d %s", key, r.status, r.body)
		}
	}
	close(end)
	if r := f.outcome("first", "{}"); r.status != 200 {
		t.Errorf("the first: %d %s", r.status, r.body)
	}
}

// TestOperationsWithoutARouteAreReported: accepted operations are not forgotten with their
// route, nor if no worker runs.
func TestOperationsWithoutARouteAreReported(t *testing.T) {
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	other := strings.Replace(orders(s.URL, "", ""), "path: /payments", "path: /parcels", 1)
	for name, yaml := range map[string]string{
		"another route":   other,
		"none":            "upstream: {url: " + s.URL + "}\nscope: single-tenant\n",
		"a route without": strings.Replace(orders(s.URL, "", ""), ", async: {min_backoff: 10ms, max_backoff: 20ms}", "", 1),
	} {
		t.Run(name, func(t *testing.T) {
			f := startWith(t, memory.New(memory.Options{}), orders(s.URL, "", ""), proxy.Options{})
			f.post("secret-key", "{}")
			g := startAsync(t, f.store, yaml)
			want := "accepted operations have no route with async here"
			for deadline := time.Now().Add(10 * time.Second); !strings.Contains(g.log.String(), want) && time.Now().Before(deadline); {
				time.Sleep(10 * time.Millisecond)
			}
			if log := g.log.String(); !strings.Contains(log, want) || !strings.Contains(log, "/payments") || strings.Contains(log, "secret-key") || strings.Contains(log, "no handler") {
				t.Errorf("the log: %s", log)
			}
		})
	}
	two := orders(s.URL, "", "") + "  - {path: /parcels, async: {}}\n"
	f := startAsync(t, memory.New(memory.Options{}), two)
	f.outcome("k", "{}")
	if log := f.log.String(); strings.Contains(log, "route here") || strings.Contains(log, "no handler") {
		t.Errorf("the log, with a worker for each: %s", log)
	}
}
