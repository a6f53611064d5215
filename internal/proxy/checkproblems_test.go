package proxy_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stet-go/stet/internal/proxy"
)

const inContent = "scope: single-tenant\nroutes: [{path: /payments, key_pointer: /id}]\n"

func TestKeyInTheContentIsProtectedLikeOneInTheHeader(t *testing.T) {
	s := serve(t, false, okHandler)
	f := start(t, yamlFor(s.URL, "http1", inContent))
	for i, replayed := range []bool{false, true} {
		if r := f.post("", `{"id": "k"}`); r.status != 200 || r.replayed() != replayed {
			t.Errorf("request %d: %d %s", i, r.status, r.body)
		}
	}
	if r := f.post("other", `{"id": "k"}`); r.problem() != "key-repeated" {
		t.Errorf("two keys: %d %s", r.status, r.body)
	}
	if r := f.post("", `{}`); r.problem() != "key-missing" {
		t.Errorf("no key: %d %s", r.status, r.body)
	}
	if n := s.count(""); n != 1 {
		t.Errorf("executed %d times", n)
	}
}

// A service may take the path for the route's, and nothing in the header tells that the
// request has a key.
func TestKeyInTheContentOfANearPathIsProtected(t *testing.T) {
	for unrouted, want := range map[string]string{"protect": "", "refuse": "unrouted"} {
		s := serve(t, false, okHandler)
		f := start(t, yamlFor(s.URL, "http1", inContent+"unrouted: "+unrouted+"\n"))
		for i, path := range []string{"/payments", "/Payments/", "/payments;v=1"} {
			body := `{"id": "` + path + `"}`
			first, again := f.send("POST", path, "", body), f.send("POST", path, "", body)
			if i > 0 && want != "" {
				if first.problem() != want {
					t.Errorf("%s: %d %s", path, first.status, first.body)
				}
			} else if first.status != 200 || !again.replayed() {
				t.Errorf("%s: %d, then %d, replayed %v", path, first.status, again.status, again.replayed())
			}
		}
		if r := f.send("POST", "/orders", "", `{"id": "k"}`); r.status != 200 || r.replayed() {
			t.Errorf("another path: %d %s", r.status, r.body)
		}
	}
}

// A request with its key in the content gets no replay either, once its credentials are revoked.
func TestRevokedCredentialsGetNoReplayOfAKeyInTheContent(t *testing.T) {
	var revoked atomic.Bool
	s := guardedService(t, func(w http.ResponseWriter, _ *http.Request) {
		if revoked.Load() {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}, done)
	f := start(t, yamlFor(s.URL, "http1", "authorize: {url: /auth}\n"+inContent))
	if r := f.post("", `{"id": "k"}`); r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	revoked.Store(true)
	if r := f.post("", `{"id": "k"}`); r.status != 401 || r.replayed() {
		t.Errorf("%d %s", r.status, r.body)
	}
}

func TestProblemsHaveTheFieldsOfTheConfiguration(t *testing.T) {
	s := serve(t, false, okHandler)
	f := start(t, yamlFor(s.URL, "http1", "scope: single-tenant\nreplayed_header: X-Replayed\nretry_after: 7s\nproblem_base: https://example.com/p/\n"+
		"unrouted: refuse\nroutes: [{path: /payments, key_policy: {min_length: 3}}]\n"))
	f.post("long", "{}")
	if r := f.post("long", "{}"); r.header.Get("X-Replayed") != "true" || r.replayed() {
		t.Errorf("a replay: %v", r.header)
	}
	if r := f.post("k", "{}"); r.status != 400 || !strings.Contains(r.body, `"https://example.com/p/key-invalid"`) || !strings.Contains(r.body, "at least 3") {
		t.Errorf("a short key: %d %s", r.status, r.body)
	}
	if r := f.send("POST", "/orders", "long", "{}"); r.status != 400 || !strings.Contains(r.body, `"https://example.com/p/unrouted"`) {
		t.Errorf("of the proxy's own: %d %s", r.status, r.body)
	}
	gone := serve(t, false, okHandler)
	gone.Close()
	f = start(t, yamlFor(gone.URL, "http1", "scope: single-tenant\nretry_after: 7s\nproblem_base: https://example.com/p/\n"))
	if r := f.post("another", "{}"); r.status != 502 || !strings.Contains(r.body, `"https://example.com/p/upstream-unreachable"`) || r.header.Get("Retry-After") != "7" {
		t.Errorf("no service: %d %v %s", r.status, r.header, r.body)
	}
}

// securely is a service over TLS, which only clients with its own certificate may ask.
func securely(t *testing.T, pair tls.Certificate, accepts *x509.Certificate) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	pool := x509.NewCertPool()
	pool.AddCert(accepts)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

func TestServiceAndProxyKnowEachOtherByTheirCertificates(t *testing.T) {
	pair, certFile, keyFile := certificate(t)
	_, otherFile, otherKey := certificate(t)
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	srv := securely(t, pair, leaf)
	url := strings.Replace(srv.URL, "127.0.0.1", "localhost", 1)
	for name, tc := range map[string]struct {
		fields string
		ok     bool
	}{
		"both":               {"ca: " + certFile + ", certificate: " + certFile + ", key: " + keyFile, true},
		"no authority":       {"certificate: " + certFile + ", key: " + keyFile, false},
		"no certificate":     {"ca: " + certFile, false},
		"another one":        {"ca: " + certFile + ", certificate: " + otherFile + ", key: " + otherKey, false},
		"another authority":  {"ca: " + otherFile + ", certificate: " + certFile + ", key: " + keyFile, false},
		"both, and no HTTP2": {"protocol: http1, ca: " + certFile + ", certificate: " + certFile + ", key: " + keyFile, true},
	} {
		t.Run(name, func(t *testing.T) {
			// The certificate is one of example.com.
			yaml := "upstream: {url: '" + url + "', server_name: example.com, " + tc.fields + "}\n" + single
			r := start(t, yaml).post("k", "{}")
			if tc.ok != (r.status == 200 && r.body == "acct_1") {
				t.Errorf("%d %s", r.status, r.body)
			}
			if !tc.ok && r.problem() != "upstream-unreachable" && r.problem() != "outcome-unknown" {
				t.Errorf("%d %s", r.status, r.body)
			}
		})
	}
}

func TestFlagsGoBeforeTheFileAndErrorsNameThem(t *testing.T) {
	c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(head+"drain: 3s\nroutes: [{path: /a}]\n")), env(nil))
	if err != nil {
		t.Fatal(err)
	}
	for path, value := range map[string]string{
		"drain": "10s", "routes": "[{path: /b, lease: 10s, key_policy: {uuid: true}}]", "namespace": "a: b", "tls.certificate": "none.pem",
		"scope": "[host, 'header:X-Account']", "new_records.total": "7", "store.pgbouncer": "true", "limits.memory": "1KiB",
	} {
		if err := c.Set(path, value); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if len(c.Routes) != 1 || c.Routes[0].Path != "/b" || !c.Routes[0].KeyPolicy.UUID || c.Namespace != "a: b" || len(c.Scope.All) != 2 || c.NewRecords.Total != 7 || !c.Store.PgBouncer {
		t.Errorf("%+v", c)
	}
	err = c.Check()
	for _, want := range []string{"--tls-key", "--limits-memory: ", "--store-pgbouncer: that is an option of PostgreSQL"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing from %v", want, err)
		}
	}
	for path, want := range map[string]string{
		"drain=soon": "is no duration", "routes=[{pth: /b}]": `"pth" is no field`, "routes={": "", "routes=": "empty", "admin.token=a": "no field that can be set",
		"admin.tokens=[]": "no field that can be set", "nothing=1": "no field that can be set", "store=x": "no field", "upstream.max_idle=x": "whole number",
		"trust_forwarded=maybe": "true or false", "scope=everybody": "none of authorization",
	} {
		path, value, _ := strings.Cut(path, "=")
		if err := c.Set(path, value); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "line ") {
			t.Errorf("%s=%s: %v", path, value, err)
		}
	}
}
