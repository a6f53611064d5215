package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

const secret = "a-token-of-24-visible-ch"

func TestAdminIsReadyWhileTheStoreAnswersAndNotWhileDraining(t *testing.T) {
	store := &deaf{Store: memory.New(memory.Options{})}
	p, err := proxy.New(store, &proxy.Config{Upstream: proxy.Upstream{URL: "http://127.0.0.1:3000"}, Scope: &proxy.Scope{Kind: "single-tenant"}, Admin: proxy.Admin{Token: secret}}, proxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	a := proxy.NewAdmin(p, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "metrics") }))
	get := func(path, token string) (int, string) {
		r := httptest.NewRequest("GET", path, nil)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	want := func(path, token string, status int) {
		t.Helper()
		if got, body := get(path, token); got != status {
			t.Errorf("%s with %q: %d %s, want %d", path, token, got, body, status)
		}
	}
	want("/healthz", "", 200)
	want("/readyz", "", 200)
	want("/metrics", "", 401)
	want("/metrics", secret[1:], 401)
	want("/metrics", secret, 200)
	want("/v1/about", secret, 200)
	want("/v1/elsewhere", secret, 404)
	store.down = true
	want("/readyz", "", 503)
	want("/healthz", "", 200)
	store.down = false
	a.Drain()
	want("/readyz", "", 503)
	want("/healthz", "", 200)
}

// deaf is a store that may be down.
type deaf struct {
	*memory.Store
	down bool
}

func (d *deaf) Read(ctx context.Context, id store.ID) (store.Record, error) {
	if d.down {
		return store.Record{}, errors.New("down")
	}
	return d.Store.Read(ctx, id)
}

// operator asks the admin handler, as one on this host does.
func operator(t *testing.T, a http.Handler, method, path, content, token string) (int, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(content))
	r.Host, r.RemoteAddr = "127.0.0.1:9090", "127.0.0.1:5000"
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestOperatorResolvesUnknownOutcomesOfTheProxy(t *testing.T) {
	arrived := make(chan struct{})
	s := serve(t, false, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		_ = conn(r).SetLinger(0)
		_ = conn(r).Close()
	})
	yaml := yamlFor(s.URL, "http1", "scope: single-tenant\nroutes: [{path: /payments, name: payments, lease: 100ms, retention: {result: 5h, tombstone: 6h}}]\n") + "admin: {token: " + secret + "}\n"
	f := start(t, yaml)
	f.post("k", "pay")
	<-arrived
	stettest.Eventually(t, "the operation to be unknown", func() bool { return f.post("k", "pay").problem() == "outcome-unknown" && f.state("k") == store.Unknown })
	a := proxy.NewAdmin(f.proxy, nil)
	if status, body := operator(t, a, "GET", "/v1/about", "", secret); status != 200 || !strings.Contains(body, `"classes":["payments","unrouted"]`) {
		t.Errorf("%d %s", status, body)
	}
	rec, err := f.store.Read(t.Context(), store.Digest("", "single-tenant", "k"))
	if err != nil {
		t.Fatal(err)
	}
	path := "/v1/operations/" + rec.ID.String() + "/resolve"
	change := fmt.Sprintf(`{"fence":"%d","reason":"in the books","actor":"ada","as":"completed","class":"payments","response":{"status":201,"body":"Y2hhcmdlIDc="}}`, rec.Fence)
	if status, body := operator(t, a, "POST", path, change, ""); status != 401 || f.state("k") != store.Unknown {
		t.Errorf("without the token: %d %s", status, body)
	}
	if status, body := operator(t, a, "POST", path, change, secret); status != 200 {
		t.Fatalf("got %d %s; want status == 200", status, body)
	}
	if r := f.post("k", "pay"); r.status != 201 || r.body != "charge 7" || !r.replayed() || s.count("k") != 1 {
		t.Errorf("%+v, executed %d times", r, s.count("k"))
	}
	if !strings.Contains(f.log.String(), `who="the admin token" says=ada`) || strings.Contains(f.log.String(), secret) {
		t.Errorf("the audit is not in the log, or the token is: %s", f.log)
	}
	// After a reload the classes are others, and the token is the same.
	c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(strings.Replace(yaml, "name: payments", "name: refunds", 1))), env(nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.proxy.Reload(c); err != nil {
		t.Fatal(err)
	}
	if status, body := operator(t, a, "GET", "/v1/about", "", secret); status != 200 || !strings.Contains(body, `"classes":["refunds","unrouted"]`) {
		t.Errorf("%d %s", status, body)
	}
	_ = f.proxy.Close()
	if status, _ := operator(t, a, "GET", "/v1/about", "", secret); status != 503 {
		t.Errorf("closed: %d", status)
	}
}

func TestAdminWithoutATokenOnlyReadsAndOnlyOnThisHost(t *testing.T) {
	f := start(t, yamlFor("http://127.0.0.1:3000", "http1", "routes: [{path: /payments}]\n"))
	a := proxy.NewAdmin(f.proxy, nil)
	if status, body := operator(t, a, "GET", "/v1/operations", "", ""); status != 200 {
		t.Errorf("got %d %s; want status == 200", status, body)
	}
	id := strings.Repeat("ab", 32)
	if status, body := operator(t, a, "POST", "/v1/operations/"+id+"/release", "{}", ""); status != 403 || !strings.Contains(body, "STET_ADMIN_TOKEN") {
		t.Errorf("got %d %s; want status == 403, strings.Contains(body, \"STET_ADMIN_TOKEN\")", status, body)
	}
	r := httptest.NewRequest("GET", "http://evil.example/v1/operations", nil)
	w := httptest.NewRecorder()
	if a.ServeHTTP(w, r); w.Code != 403 {
		t.Errorf("by another name: %d", w.Code)
	}
}

func TestTokenOfAFileCanBeReplacedWhileTheProxyRuns(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(secret)
	yaml := yamlFor("http://127.0.0.1:3000", "http1", "routes: [{path: /payments}]\n") + "admin: {token_file: " + file + "}\n"
	f := start(t, yaml)
	a := proxy.NewAdmin(f.proxy, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	want := func(statuses map[string]int) {
		t.Helper()
		for given, want := range statuses {
			for _, path := range []string{"/v1/operations", "/metrics"} {
				if status, _ := operator(t, a, "GET", path, "", given); status != want {
					t.Errorf("%s with %q: %d, want %d", path, given, status, want)
				}
			}
		}
	}
	const other = "another-token-of-32-visible-char"
	want(map[string]int{"": 401, other: 401, secret: 200})
	reload := func() error {
		c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(yaml)), env(nil))
		if err != nil {
			t.Fatal(err)
		}
		return f.proxy.Reload(c)
	}
	write("short")
	if err := reload(); err == nil {
		t.Error("a token that is not safe was taken")
	}
	want(map[string]int{"short": 401, secret: 200})
	write(other)
	if err := reload(); err != nil {
		t.Fatal(err)
	}
	want(map[string]int{"": 401, secret: 401, other: 200}) // the one before is revoked
}

// A page of another site may have its own name resolved to this host.
func TestMetricsWithoutATokenAreForThisHostByItsName(t *testing.T) {
	f := start(t, yamlFor("http://127.0.0.1:3000", "http1", ""))
	a := proxy.NewAdmin(f.proxy, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "metrics") }))
	for _, tc := range []struct {
		host, from string
		want       int
	}{
		{"127.0.0.1:9090", "127.0.0.1:5000", 200}, {"localhost:9090", "127.0.0.1:5000", 200}, {"[::1]:9090", "[::1]:5000", 200},
		{"evil.example:9090", "127.0.0.1:5000", 403}, {"localhost.evil.example", "127.0.0.1:5000", 403}, {"127.0.0.1:9090", "10.0.0.7:5000", 403},
	} {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Host, r.RemoteAddr = tc.host, tc.from
		w := httptest.NewRecorder()
		if a.ServeHTTP(w, r); w.Code != tc.want {
			t.Errorf("%s from %s: %d %s", tc.host, tc.from, w.Code, w.Body)
		}
	}
}

func TestAdminTokensAllowReadingOrChangesAndAreReadAgain(t *testing.T) {
	const looking, changing = "a-token-to-look-with", "a-token-to-change-with"
	head := yamlFor("http://127.0.0.1:3000", "http1", "routes: [{path: /payments}]\n")
	f := start(t, head+"admin: {tokens: [{name: grafana, token: "+looking+"}, {name: ada, may: change, token: "+changing+"}]}\n")
	a := proxy.NewAdmin(f.proxy, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	release := "/v1/operations/" + strings.Repeat("ab", 32) + "/release"
	for token, want := range map[string][3]int{looking: {200, 200, 403}, changing: {200, 200, 404}, secret: {401, 401, 401}, "": {401, 401, 401}} {
		metrics, _ := operator(t, a, "GET", "/metrics", "", token)
		list, _ := operator(t, a, "GET", "/v1/operations", "", token)
		change, _ := operator(t, a, "POST", release, `{"fence":"1","reason":"r","actor":"a"}`, token)
		if got := [3]int{metrics, list, change}; got != want {
			t.Errorf("%q: %d, want %d", token, got, want)
		}
	}
	if err := f.reload(head + "admin: {tokens: [{name: ada, token: " + changing + "}]}\n"); err != nil {
		t.Fatal(err)
	}
	if gone, _ := operator(t, a, "GET", "/metrics", "", looking); gone != 401 {
		t.Errorf("a token that was taken out: %d", gone)
	}
	if less, _ := operator(t, a, "POST", release, "{}", changing); less != 403 {
		t.Errorf("a token that may not change any more: %d", less)
	}
	if err := f.reload(head + "admin: {listen: '127.0.0.1:9999'}\n"); err == nil || !strings.Contains(err.Error(), "admin.listen: it cannot change") {
		t.Error(err)
	}
}

func TestTokensThatCanBeReadOnTheWayAreKnown(t *testing.T) {
	for want, all := range map[bool][]proxy.Admin{
		true:  {{Listen: ":9090"}, {Listen: "10.0.0.7:9090"}},
		false: {{}, {Listen: "off"}, {Listen: "localhost:9090"}, {Listen: ":9090", TLS: &proxy.TLS{}}},
	} {
		for _, a := range all {
			if a.Exposed() != want {
				t.Errorf("%+v: %v", a, !want)
			}
		}
	}
}
