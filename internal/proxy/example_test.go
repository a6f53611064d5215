package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/store/memory"
)

func ExampleNew() {
	charges := 0
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		charges++
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "charge %d", charges)
	}))
	defer service.Close()

	config, err := proxy.Parse("stet.yaml", strings.NewReader(`
upstream:
  url: `+service.URL+`
routes:
  - path: /payments
    scope: header:X-Account
`), os.LookupEnv)
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := proxy.New(memory.New(memory.Options{}), config, proxy.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	front := httptest.NewServer(p)
	defer front.Close()

	for range 2 {
		req, _ := http.NewRequest(http.MethodPost, front.URL+"/payments", strings.NewReader(`{"amount":42}`))
		req.Header.Set("X-Account", "acct_1")
		req.Header.Set("Idempotency-Key", `"8e03978e-40d5-43e8-bc93-6894a57f9324"`)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		fmt.Println(res.StatusCode, string(body), "replayed:", res.Header.Get("Idempotent-Replayed") == "true")
	}
	http.DefaultClient.CloseIdleConnections()
	// Output:
	// 201 charge 1 replayed: false
	// 201 charge 1 replayed: true
}

func ExampleParse() {
	_, err := proxy.Parse("stet.yaml", strings.NewReader("upstream:\n  url: http://127.0.0.1:3000\nlisten: ${LISTEN:-:8080}\nretries: 3\nscope: single-tenant\n"), os.LookupEnv)
	fmt.Println(err)
	// Output:
	// stet.yaml:4: "retries" is no field; there are admin, authorize, consume, drain, drain_delay, encryption, grace, limits, listen, log, namespace, new_records, previous, problem_base, reconcile, relay, replayed_header, retry_after, routes, scope, scope_label, store, tls, token_scope, trust_forwarded, unrouted, upstream, worker
}

func ExampleConfig_Check() {
	config, err := proxy.Parse("stet.yaml", strings.NewReader("upstream:\n  url: http://127.0.0.1:3000\nroutes:\n  - path: /payments\n    lease: 48h\nscope: single-tenant\n"), os.LookupEnv)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(config.Check())
	// Output:
	// stet.yaml:5: routes[0].lease: Lease is 48h0m0s; it must be 50ms to 24h0m0s
	// stet.yaml:5: routes[0].lease: Lease (48h0m0s) is longer than Retention.Result (24h0m0s)
}

func ExampleNewAdmin() {
	config := &proxy.Config{Upstream: proxy.Upstream{URL: "http://127.0.0.1:3000"}, Scope: &proxy.Scope{Header: "X-Account"}}
	p, err := proxy.New(memory.New(memory.Options{}), config, proxy.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	admin := proxy.NewAdmin(p, nil) // for http.ListenAndServe(config.Admin.Listen, admin)
	ask := func() {
		w := httptest.NewRecorder()
		admin.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		fmt.Println(w.Code, strings.TrimSpace(w.Body.String()))
	}
	ask()
	admin.Drain()
	ask()
	// Output:
	// 200 ready
	// 503 draining
}
