package proxy_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stet-go/stet/store"
)

const asking = "scope: header:X-Account\nauthorize: {url: /auth}\nroutes: [{path: /payments, key: optional}]\n"

// guardedService executes payments, and says of requests what answer does.
func guardedService(t *testing.T, answer http.HandlerFunc, work http.HandlerFunc) *service {
	t.Helper()
	return serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/auth" {
			answer(w, r)
			return
		}
		work(w, r)
	})
}

func done(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "account 4711") }

// The proxy stands in front of authentication, and a replay never reaches it.
func TestRevokedCredentialsGetNoReplay(t *testing.T) {
	var revoked atomic.Bool
	s := guardedService(t, func(w http.ResponseWriter, r *http.Request) {
		if revoked.Load() && r.Header.Get("Authorization") == "Bearer t" {
			w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, "revoked")
		}
	}, done)
	f := start(t, yamlFor(s.URL, "http1", "authorize: {url: /auth}\nroutes: [{path: /payments}]\n"))
	first := f.post("k", "{}", "Authorization", "Bearer t")
	if again := f.post("k", "{}", "Authorization", "Bearer t"); first.status != 200 || !again.replayed() || again.body != first.body {
		t.Fatalf("%d %s, then %d %s", first.status, first.body, again.status, again.body)
	}
	revoked.Store(true)
	for _, body := range []string{"{}", `{"another": "request"}`} {
		r := f.post("k", body, "Authorization", "Bearer t")
		if r.status != 401 || r.body != "revoked" || r.replayed() || r.header.Get("WWW-Authenticate") == "" || r.header.Get("Cache-Control") != "no-store" {
			t.Errorf("got %d %s %v; want r.status == 401, r.body == \"revoked\", not r.replayed(), r.header.Get(\"WWW-Authenticate\") != \"\", r.header.Get(\"Cache-Control\") == \"no-store\"", r.status, r.body, r.header)
		}
	}
	if n := s.count("k"); n != 1 {
		t.Errorf("executed %d times", n)
	}
}

func TestAuthorizationThatDoesNotAnswerFailsClosed(t *testing.T) {
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		more   string
	}{
		"500":        {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, ""},
		"404":        {http.NotFound, ""},
		"redirect":   {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/payments", http.StatusFound) }, ""},
		"breaks off": {func(_ http.ResponseWriter, r *http.Request) { _ = conn(r).Close() }, ""},
		"too late":   {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, ", timeout: 50ms"},
	} {
		t.Run(name, func(t *testing.T) {
			s := guardedService(t, tc.answer, done)
			f := start(t, yamlFor(s.URL, "http1", strings.Replace(asking, "url: /auth", "url: /auth"+tc.more, 1)))
			r := f.post("k", "{}", "X-Account", "acme")
			if r.status != 503 || r.problem() != "authorization-unavailable" || r.header.Get("Retry-After") == "" || s.count("k") != 0 {
				t.Errorf("%d %s, %d executions", r.status, r.body, s.count("k"))
			}
			if rec, err := f.store.Read(t.Context(), store.Digest("", "acme", "k")); err != nil || rec.State != store.None || rec.Fence != 0 {
				t.Errorf("got %+v, %v; want rec.State == store.None, rec.Fence == 0, no error", rec, err)
			}
		})
	}
}

// A caller without authorization does not learn from the proxy whether a key is in use.
func TestUnauthorizedCallerLearnsNothingOfAKey(t *testing.T) {
	arrived, leave := make(chan struct{}), make(chan struct{})
	s := guardedService(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer good" {
			w.WriteHeader(http.StatusForbidden)
		}
	}, blockingHandler(arrived, leave))
	f := start(t, yamlFor(s.URL, "http1", asking))
	first := make(chan reply, 1)
	go func() { first <- f.post("k", "{}", "X-Account", "acme", "Authorization", "Bearer good") }()
	<-arrived
	for _, key := range []string{"k", "another"} {
		for _, body := range []string{"{}", "{ }"} {
			if r := f.post(key, body, "X-Account", "acme", "Authorization", "Bearer bad"); r.status != 403 || r.body != "" {
				t.Errorf("%s %s: %d %s", key, body, r.status, r.body)
			}
		}
	}
	if r := f.post("k", "{}", "X-Account", "acme", "Authorization", "Bearer good"); r.status != 409 {
		t.Errorf("got %d %s; want r.status == 409", r.status, r.body)
	}
	close(leave)
	<-first
}

func TestAuthorizationRequestHasTheHeaderWithoutForgedFields(t *testing.T) {
	asked := make(chan *http.Request, 1)
	s := guardedService(t, func(_ http.ResponseWriter, r *http.Request) { asked <- r }, done)
	f := start(t, yamlFor(s.URL, "http1", asking))
	f.send("POST", "/payments?a=1;b=%zz", "k", "{}", "X-Account", "acme", "Cookie", "session=1", "Content-Type", "application/json", "Host", "acme.example",
		"X-Original-URI", "/public", "X_Original_Uri", "/public", "X.Original.Uri", "/public", "X~Original~Method", "GET", "Stet.Scope", "evil", "X.Real.Ip", "10.0.0.1", "X-Forwarded-For", "10.0.0.1", "X-Forwarded-Proto", "https", "Stet-Scope", "evil", "If-None-Match", "*")
	r := <-asked
	for name, want := range map[string]string{
		"X-Account": "acme", "Cookie": "session=1", "X-Original-Method": "POST", "X-Original-Uri": "/payments?a=1;b=%zz", "X_original_uri": "", "X.original.uri": "", "X~original~method": "", "Stet.scope": "", "X.real.ip": "",
		"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": "acme.example", "Stet-Scope": "acme",
		"Idempotency-Key": "", "Content-Type": "", "If-None-Match": "",
	} {
		if got := strings.Join(r.Header[name], "|"); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if r.Method != "GET" || r.Host != "acme.example" || r.ContentLength > 0 {
		t.Errorf("%s of %s with %d bytes", r.Method, r.Host, r.ContentLength)
	}
	// Without a key there is nothing to replay, and the service sees for itself.
	if r := f.post("", "{}", "X-Account", "acme"); r.status != 200 || len(asked) != 0 {
		t.Errorf("%d, asked %d times", r.status, len(asked))
	}
}

func TestRouteMayAskElsewhere(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	t.Cleanup(other.Close)
	for _, h2c := range []bool{false, true} {
		s := serve(t, h2c, done)
		protocol := map[bool]string{false: "http1", true: "h2c"}[h2c]
		f := start(t, yamlFor(s.URL, protocol, "scope: single-tenant\nauthorize: {url: /}\nroutes: [{path: /payments}, {path: /orders, authorize: {url: '"+other.URL+"'}}]\n"))
		if a, b := f.post("k", "{}"), f.send("POST", "/orders", "k", "{}"); a.status != 200 || b.status != 403 {
			t.Errorf("h2c %v: %d %s, %d %s", h2c, a.status, a.body, b.status, b.body)
		}
	}
}
