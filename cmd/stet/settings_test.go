package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
)

// ask sends a payment to a proxy.
func ask(t *testing.T, url, body string, header ...string) (int, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/payments", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	return res.StatusCode, res.Header
}

func TestProxyIsConfiguredByFlagsAlone(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	p := startProxy(t, "--upstream", upstream.URL, "--store", filepath.Join(t.TempDir(), "s.db"), "--listen", "127.0.0.1:0", "--scope", "single-tenant",
		"--replayed-header", "X-Again", "--retry-after=9s", "--store-busy-timeout", "2s", "--store-cache", "1MiB", "--limits-memory", "64MiB", "--new-records-total", "1",
		"--routes", "[{path: /payments, key_pointer: /id, key_policy: {min_length: 2}}]")
	for i, want := range []string{"", "true"} {
		if status, h := ask(t, p.url, `{"id": "ab"}`); status != 200 || h.Get("X-Again") != want {
			t.Errorf("request %d: %d %v", i, status, h)
		}
	}
	if status, _ := ask(t, p.url, `{"id": "a"}`); status != 400 {
		t.Errorf("a key that is too short: %d", status)
	}
	if status, _ := ask(t, p.url, `{"id": "cd"}`); status != 429 {
		t.Errorf("one record more than --new-records-total: %d", status)
	}
}

func TestFlagOverridesTheConfigurationAlsoAfterAReload(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	file := configured(t, upstream.URL, "replayed_header: X-File\n")
	p := startProxy(t, "--config", file, "--replayed-header", "X-Flag")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	reload := func(more, wait string) {
		if err := os.WriteFile(file, []byte(string(text)+more), 0o600); err != nil {
			t.Fatal(err)
		}
		p.signal(syscall.SIGHUP)
		p.saysNow(wait)
	}
	reload("drain: 2s\nunrouted: protect\nroutes: [{path: /payments}]\n", "the configuration was reloaded")
	ask(t, p.url, "{}", "Idempotency-Key", "k")
	if _, h := ask(t, p.url, "{}", "Idempotency-Key", "k"); h.Get("X-Flag") != "true" || h.Get("X-File") != "" {
		t.Errorf("%v", h)
	}
	// Each change that cannot be made is named, with its line.
	reload("tls: {certificate: a.pem}\nlimits: {memory: 3MiB, stall: 1s}\nnamespace: other\n", "tls.key: required")
	reload("limits: {memory: 3MiB, stall: 1s}\nnamespace: other\nadmin: {audit: a}\n", "namespace: it cannot change")
	for _, want := range []string{"stet.yaml:6: limits.memory: it cannot", "stet.yaml:6: limits.stall: it cannot", "stet.yaml:7: namespace: it cannot", "stet.yaml:8: admin.audit: it cannot"} {
		if !strings.Contains(p.log(), want) {
			t.Errorf("%q is missing from %s", want, p.log())
		}
	}
}

// A SIGHUP that comes while the process starts is obeyed, and does not end it.
func TestSignalOfTheFirstMomentReloadsTheConfiguration(t *testing.T) {
	file := configured(t, "http://127.0.0.1:1", "")
	for range 10 {
		p := startProxy(t, "--config", file)
		p.signal(syscall.SIGHUP)
		p.saysNow("the configuration was reloaded")
		p.kill()
	}
}

// The drain time that was read last counts.
func TestDrainTimeIsThatOfTheLastReload(t *testing.T) {
	hold := make(chan struct{})
	entered := make(chan struct{}, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-hold
	}))
	defer upstream.Close()
	defer close(hold)
	file := configured(t, upstream.URL, "")
	p := startProxy(t, "--config", file)
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte(string(text)+"drain: 100ms\n"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGHUP)
	p.saysNow("the configuration was reloaded")
	go func() {
		req, _ := http.NewRequest(http.MethodPost, p.url+"/payments", strings.NewReader("{}"))
		req.Header.Set("Idempotency-Key", "k")
		if res, err := http.DefaultClient.Do(req); err == nil {
			_ = res.Body.Close()
		}
	}()
	<-entered
	began := time.Now()
	p.signal(syscall.SIGTERM)
	<-p.done
	if took := time.Since(began); took > 20*time.Second || !strings.Contains(p.log(), "1 operations were cut off after 100ms") {
		t.Errorf("after %v: %s", took, p.log())
	}
}

func TestOptionsOfTheEngineReachIt(t *testing.T) {
	hold := make(chan struct{})
	entered := make(chan struct{}, 10)
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-hold
	}))
	defer upstream.Close()
	file := filepath.Join(t.TempDir(), "s.db")
	p := startProxy(t, "--upstream", upstream.URL, "--store", file, "--listen", "127.0.0.1:0", "--scope", "single-tenant", "--limits-waiters", "1",
		"--store-timeout", "300ms", "--store-busy-timeout", "200ms", "--routes", "[{path: /payments, wait: 30s, max_wait: 30s}]")
	results := make(chan int, 3)
	send := func(key string) {
		req, _ := http.NewRequest(http.MethodPost, p.url+"/payments", strings.NewReader("{}"))
		req.Header.Set("Idempotency-Key", key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			results <- 0
			return
		}
		_ = res.Body.Close()
		results <- res.StatusCode
	}
	go send("k")
	<-entered
	// Only one of two callers can wait; the other gets its response at once.
	go send("k")
	go send("k")
	if status := <-results; status != http.StatusConflict {
		t.Errorf("of two that would wait, one got %d", status)
	}
	s := mustOpen(t, "--store", file)
	end := beginWrite(t, s)
	began := time.Now()
	go send("other")
	if status := <-results; status != http.StatusServiceUnavailable || time.Since(began) > 4*time.Second { // the default is 5 s, and half of it
		t.Errorf("while the store does not answer: %d after %v", status, time.Since(began))
	}
	end()
	close(hold)
	<-results
	<-results
}

func TestSweepEveryIsTheInterval(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	often, never := filepath.Join(t.TempDir(), "often.db"), filepath.Join(t.TempDir(), "never.db")
	for file, every := range map[string]string{often: "20ms", never: "never"} {
		startProxy(t, "--upstream", upstream.URL, "--store", file, "--listen", "127.0.0.1:0", "--scope", "host", "--store-sweep-every", every)
		req := claimOf("a")
		req.Lease = store.MinLease
		if _, err := mustOpen(t, "--store", file).Claim(t.Context(), req); err != nil { // and no owner renews it
			t.Fatal(err)
		}
	}
	id := claimOf("a").ID
	for s, state := mustOpen(t, "--store", often), store.Running; state != store.Unknown; {
		rec, err := s.Read(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		state = rec.State
	}
	if rec, err := mustOpen(t, "--store", never).Read(t.Context(), id); err != nil || rec.State != store.Running {
		t.Errorf("a store that is never swept: %v, %v", rec.State, err)
	}
}
