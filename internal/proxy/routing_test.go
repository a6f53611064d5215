package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stet-go/stet/store"
)

// raw sends bytes on a connection of its own, and returns the first response.
func (f *front) raw(request string) reply {
	f.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		f.t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return reply{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(b), err}
}

// A service may take each of these for /payments.
var spellings = []string{"/payments/", "/PAYMENTS", "/Payments/", "/payments;x=1", "/payments;", "/payments%3Bx=1", `/payments\`, "/%50ayments", "/payments.json", "/payments%23", "/v2/payments"}

func TestKeyedRequestThatNoRouteNamesIsProtected(t *testing.T) {
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	f := start(t, yamlFor(s.URL, "http1", single))
	for i, path := range spellings {
		key := fmt.Sprint("k", i)
		first, again := f.send("POST", path, key, "{}"), f.send("POST", path, key, "{}")
		if first.status != 200 || !again.replayed() || s.count(key) != 1 {
			t.Errorf("%s: %d %s, again %d, %d executions", path, first.status, first.body, again.status, s.count(key))
		}
		// Under the route's own path it is the same operation, asked for otherwise.
		if r := f.send("POST", "/payments", key, "{}"); r.problem() != "mismatch" || s.count(key) != 1 {
			t.Errorf("%s, then /payments: %d %s, %d executions", path, r.status, r.body, s.count(key))
		}
	}
	if n := f.proxy.Counts().Unprotected; n != 0 {
		t.Errorf("%d passed unprotected", n)
	}
	// Without a key, it passes as before.
	if r := f.send("POST", "/other", "", "{}"); r.status != 200 {
		t.Errorf("without a key: %d %s", r.status, r.body)
	}
}

// The route that names nearly the same path says whose key it is, not the default.
func TestSpellingOfARouteIsProtectedByThatRoute(t *testing.T) {
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	for _, more := range []string{
		"routes: [{path: /payments, scope: 'header:X-Account', key_header: X-Payment}, {path: /other, scope: 'header:X-Other'}]",
		"routes: [{path: /payments, scope: 'header:X-Account', key_header: X-Payment}, {path: /, pass: true}]",
		"routes: [{path: '/{name}', pass: true}, {path: /payments, scope: 'header:X-Account', key_header: X-Payment}]",
	} {
		f := start(t, yamlFor(s.URL, "http1", "scope: authorization\n"+more))
		for i, path := range spellings[:7] {
			id := store.Digest("", "acme", fmt.Sprint("k", i))
			r := f.send("POST", path, "", "{}", "X-Payment", fmt.Sprint("k", i), "X-Account", "acme")
			if _, err := f.store.Read(t.Context(), id); r.status != 200 || err != nil {
				t.Errorf("%s with %s: %d %s, record: %v", path, more, r.status, r.body, err)
			}
		}
	}
}

// An open path must not lead to a protected one.
func TestPathThatIsEncodedMoreThanOnceIsProtected(t *testing.T) {
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	f := start(t, yamlFor(s.URL, "http1", "scope: single-tenant\nroutes: [{path: /payments}, {path: /public/, pass: true}]\n"))
	for i, path := range []string{"/public/..%2fpayments", "/public/..%252fpayments", "/public/%252e%252e/payments", "/public/..%255cPAYMENTS", "/public/..%25252fpayments"} {
		key := fmt.Sprint("k", i)
		first, again := f.send("POST", path, key, "{}"), f.send("POST", path, key, "{}")
		if first.status != 200 || !again.replayed() || s.count(key) != 1 {
			t.Errorf("%s: %d %s, again %d, %d executions", path, first.status, first.body, again.status, s.count(key))
		}
	}
	for _, path := range []string{"/public/100%25", "/public/%25zz", "/public/a%252fb"} {
		if r := f.send("POST", path, "k", "{}"); r.status != 200 || r.replayed() {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
}

func TestUnroutedCanBeRefusedOrPassed(t *testing.T) {
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	refusing := start(t, yamlFor(s.URL, "http1", "unrouted: refuse\n"+single))
	for i, path := range spellings {
		if r := refusing.send("POST", path, fmt.Sprint("k", i), "{}"); r.status != 400 || r.problem() != "unrouted" || s.count(fmt.Sprint("k", i)) != 0 {
			t.Errorf("%s is not refused: %d %s", path, r.status, r.body)
		}
	}
	if r := refusing.send("POST", "/payments/", "", "{}"); r.status != 200 {
		t.Errorf("without a key: %d %s", r.status, r.body)
	}
	passing := start(t, yamlFor(s.URL, "http1", "unrouted: pass\n"+single))
	for i, path := range spellings {
		passing.send("POST", path, fmt.Sprint("p", i), "{}")
		passing.send("POST", path, fmt.Sprint("p", i), "{}")
		if n := s.count(fmt.Sprint("p", i)); n != 2 {
			t.Errorf("%s: %d executions, want 2", path, n)
		}
	}
	if n, said := passing.proxy.Counts().Unprotected, passing.log.String(); n != uint64(2*len(spellings)) || strings.Count(said, "passed unprotected: no route names its path") != 1 {
		t.Errorf("%d were counted, and the log says %s", n, said)
	}
	if said := passing.log.String(); strings.Contains(said, "payments") || strings.Contains(said, "p0") {
		t.Errorf("the log has the path or the key: %s", said)
	}
}

func TestSpellingsOfARoutesPath(t *testing.T) {
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	f := start(t, yamlFor(s.URL, "http1", `scope: single-tenant
unrouted: pass
routes:
  - {path: /payments, case_insensitive: true, trailing_slash: true}
  - {path: '/Orders/{id}/Items', case_insensitive: true}
  - {path: /refunds/, trailing_slash: true}
  - {path: /strict}
`))
	for path, protected := range map[string]bool{
		"/payments": true, "/PAYMENTS": true, "/payments/": true, "/Payments/": true, "/%50AYMENTS": true, "/payments/7": false,
		"/orders/7/items": true, "/Orders/A/Items": true, "/orders/7/items/": false,
		"/refunds": true, "/refunds/": true, "/refunds/1": true, "/Refunds/": false,
		"/strict": true, "/strict/": false, "/STRICT": false,
	} {
		// A key is required where the route counts.
		if r := f.send("POST", path, "", "{}"); (r.problem() == "key-missing") != protected {
			t.Errorf("%s without a key: %d %s", path, r.status, r.body)
		}
	}
}

func TestMethodsWithoutARoutePass(t *testing.T) {
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	f := start(t, yamlFor(s.URL, "http1", "scope: single-tenant\nroutes: [{path: /payments, methods: [POST]}, {path: /orders, methods: [PUT]}]\n"))
	for request, protected := range map[string]bool{
		"POST /payments": true, "PATCH /payments": false, "PUT /payments": false, "DELETE /payments": false,
		"PUT /orders": true, "POST /orders": false, "PUT /elsewhere": true, "DELETE /elsewhere": false,
	} {
		method, path, _ := strings.Cut(request, " ")
		key := strings.ReplaceAll(request, " ", "")
		f.send(method, path, key, "{}")
		if r := f.send(method, path, key, "{}"); r.replayed() != protected {
			t.Errorf("%s: replayed %v (%d %s)", request, r.replayed(), r.status, r.body)
		}
	}
	if n := f.proxy.Counts().Unprotected; n != 2*5 {
		t.Errorf("%d passed unprotected", n)
	}
	for _, method := range []string{"post", "Post", "pATCH", "put"} {
		for _, path := range []string{"/payments", "/elsewhere"} {
			r := f.raw(method + " " + path + " HTTP/1.1\r\nHost: x\r\nIdempotency-Key: m\r\nContent-Length: 0\r\n\r\n")
			if r.status != 400 || r.problem() != "method-misspelled" {
				t.Errorf("%s %s: %d %s %v", method, path, r.status, r.body, r.err)
			}
		}
	}
}

// Some services obey what overrides the method of any request.
func TestMethodIsNotOverriddenByAProtectedMethod(t *testing.T) {
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	for more, routes := range map[string]string{"": "[{path: /payments}]", "unrouted: pass\n": "[{path: /payments, methods: [POST]}, {path: /open, pass: true}]"} {
		f := start(t, yamlFor(s.URL, "http1", more+"scope: single-tenant\nroutes: "+routes+"\n"))
		for _, name := range []string{"X-HTTP-Method-Override", "X-HTTP-Method", "x-method-override", "X_HTTP_Method_Override"} {
			for _, method := range []string{"GET", "PUT", "DELETE"} {
				r := f.raw(method + " /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\n" + name + ": post\r\nContent-Length: 0\r\n\r\n")
				if r.status != 400 || r.problem() != "method-overridden" {
					t.Errorf("%s with %s: %d %s", method, name, r.status, r.body)
				}
			}
			for request, key := range map[string]string{"PUT /payments": "", "POST /payments": "Idempotency-Key: " + name + "\r\n"} {
				if r := f.raw(request + " HTTP/1.1\r\nHost: x\r\n" + key + name + ": DELETE\r\nContent-Length: 0\r\n\r\n"); r.status != 200 {
					t.Errorf("%s with %s: %d %s", request, name, r.status, r.body)
				}
			}
		}
		if r := f.send("PUT", "/open", "k", "{}", "X-HTTP-Method-Override", "POST"); more != "" && r.status != 200 {
			t.Errorf("where nothing is protected: %d %s", r.status, r.body)
		}
	}
}

// A service that sees headers as variables of an environment reads one for both.
func TestHeaderThatMayBeTakenForTheKeyOrTheScopeIsRefused(t *testing.T) {
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	f := start(t, yamlFor(s.URL, "http1", "scope: header:X-Account\nroutes: [{path: /payments}, {path: /refunds, key_header: X-Refund-Key}]\n"))
	for _, name := range []string{"Idempotency_Key", "idempotency_key", "IDEMPOTENCY_KEY", "X_Account", "x_refund_key", "X-Refund_Key", "X_Idempotency_Key", "Idempotency.Key"} {
		for _, path := range []string{"/payments", "/elsewhere"} {
			r := f.raw("POST " + path + " HTTP/1.1\r\nHost: x\r\nX-Account: a\r\nIdempotency-Key: k\r\n" + name + ": other\r\nContent-Length: 0\r\n\r\n")
			if r.status != 400 || r.problem() != "header-misspelled" || s.count("k") != 0 {
				t.Errorf("%s on %s: %d %s, %d executions", name, path, r.status, r.body, s.count("k"))
			}
		}
	}
	if r := f.raw("POST /payments HTTP/1.1\r\nHost: x\r\nX-Account: a\r\nidempotency-key: k\r\nX_Request_Id: 7\r\nContent-Length: 0\r\n\r\n"); r.status != 200 || s.count("k") != 1 {
		t.Errorf("got %d %s; want r.status == 200, s.count(\"k\") == 1", r.status, r.body)
	}
}
