package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestProxyTellsACollectorOfItsSpans: the trace of the client continues in the
// proxy's spans and in the service, and they have no secret.
func TestProxyTellsACollectorOfItsSpans(t *testing.T) {
	const trace, key, body = "0af7651916cd43dd8448eb211c80319c", "canary-key-4711", `{"canary":"body-4711"}`
	var mu sync.Mutex
	var sent bytes.Buffer
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = io.Copy(&sent, r.Body)
	}))
	defer collector.Close()
	parents := make(chan string, 2)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parents <- r.Header.Get("Traceparent")
		w.WriteHeader(http.StatusCreated)
	}))
	defer service.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=payments-sidecar,team") // the second is malformed, and only logged
	p := startProxy(t, "--upstream", service.URL, "--store", "memory", "--listen", "127.0.0.1:0", "--scope", "single-tenant")
	for range 2 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/payments", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", `"`+key+`"`)
		req.Header.Set("Traceparent", "00-"+trace+"-b7ad6b7169203331-01")
		res, err := oneShot.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusCreated {
			t.Fatalf("%s: %s", res.Status, p.log())
		}
	}
	if got := <-parents; !strings.Contains(got, trace) || strings.Contains(got, "b7ad6b7169203331") {
		t.Errorf("the service was sent the traceparent %q; want the client's trace and the handler's span", got)
	}
	p.signal(syscall.SIGTERM)
	<-p.done // which sends the remaining spans
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{"stet claim", "stet handler", "stet settle", "payments-sidecar", "stet.replayed"} {
		if !bytes.Contains(sent.Bytes(), []byte(want)) {
			t.Errorf("the collector did not get %q", want)
		}
	}
	for _, secret := range []string{key, "body-4711", "/payments"} {
		if bytes.Contains(sent.Bytes(), []byte(secret)) {
			t.Errorf("the collector got %q", secret)
		}
	}
}
