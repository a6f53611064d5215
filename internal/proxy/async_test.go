package proxy_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// orders is a configuration whose route accepts. more is added to async, route to the route.
func orders(upstream, more, route string) string {
	return "upstream: {url: " + upstream + "}\nscope: single-tenant\nroutes:\n  - {path: /payments" + route + ", async: {min_backoff: 10ms, max_backoff: 20ms" + more + "}}\n"
}

// startAsync starts a proxy with a worker in it.
func startAsync(t *testing.T, s store.Store, yaml string) *front {
	t.Helper()
	return startWith(t, s, yaml, proxy.Options{Parts: proxy.Workers})
}

// state is what a status page tells.
type state struct {
	State      string
	Attempts   int
	Cancelling bool
	Progress   *struct {
		Fraction float64
		Message  string
	}
}

// look asks a status page.
func (f *front) look(path string, header ...string) (d state) {
	f.t.Helper()
	r := f.send("GET", path, "", "", header...)
	if err := json.Unmarshal([]byte(r.body), &d); err != nil || r.status != 200 {
		f.t.Errorf("the status at %s: %d %s (%v)", path, r.status, r.body, err)
	}
	return d
}

// outcome waits for the outcome of an operation.
func (f *front) outcome(key, body string) reply {
	f.t.Helper()
	return f.post(key, body, "Prefer", "wait=10")
}

func TestAcceptedOperationIsSentOnceAndItsRetriesGetTheServicesResponse(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Location", "/payments/7")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(201)
		_, _ = fmt.Fprintf(w, `{"got":%s,"at":%q,"type":%q}`, b, r.URL.RequestURI(), r.Header.Get("Content-Type"))
	})
	f := startAsync(t, memory.New(memory.Options{}), orders(s.URL, "", ""))
	first := f.send("POST", "/payments?x=%2F", "k", `{"n":1}`, "Content-Type", "application/json; charset=utf-8", "Authorization", "secret", "X-Other", "1")
	location := first.header.Get("Location")
	if first.status != 202 || !strings.HasPrefix(location, "/operations/") || first.header.Get("Retry-After") == "" {
		t.Fatalf("accepted: %d %v %s", first.status, first.header, first.body)
	}
	var last reply
	for i := range 3 {
		r := f.send("POST", "/payments?x=%2F", "k", `{"n":1}`, "Content-Type", "application/json; charset=utf-8", "Prefer", "wait=10")
		if want := `{"got":{"n":1},"at":"/payments?x=%2F","type":"application/json; charset=utf-8"}`; r.status != 201 || r.body != want || r.header.Get("Location") != "/payments/7" || !r.replayed() {
			t.Errorf("retry %d: %d %v %s", i, r.status, r.header, r.body)
		}
		last = r
	}
	if byKey := f.send("GET", "/operations/by-key", "k", ""); byKey.status != 200 || !strings.Contains(byKey.body, `"completed"`) || f.look(location).State != "completed" {
		t.Errorf("by key: %d %s", byKey.status, byKey.body)
	}
	h := s.last()
	if s.count("k") != 1 || last.status != 201 {
		t.Errorf("the service has executed it %d times", s.count("k"))
	}
	for name, want := range map[string]string{"Authorization": "", "X-Other": "", proxy.HeaderAttempt: "1", proxy.HeaderScope: "single-tenant", proxy.HeaderStatusPage: location, "Idempotency-Key": "k"} {
		if h.Get(name) != want {
			t.Errorf("the service got %s %q, want %q", name, h.Get(name), want)
		}
	}
	if h.Get("Stet-Progress") == "" || h.Get(proxy.HeaderClaim) != "" || h.Get(proxy.HeaderFence) == "" || !strings.HasSuffix(location, h.Get(proxy.HeaderOperation)) {
		t.Errorf("the service got %v", h)
	}
	if r := f.post("k", `{"n":2}`); r.problem() != "mismatch" {
		t.Errorf("another request under the key: %d %s", r.status, r.body)
	}
}

// TestServiceThatIsDownCostsNoAttempt: an operation waits until the service listens.
func TestServiceThatIsDownCostsNoAttempt(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	f := startAsync(t, memory.New(memory.Options{}), orders("http://"+addr, ", max_attempts: 1", ", timeout: 400ms, lease: 1s"))
	if r := f.post("k", "{}"); r.status != 202 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	if r := f.post("k", "{}", "Prefer", "wait=2"); r.status != 202 { // longer than a run lasts
		t.Errorf("while the service is down: %d %s", r.status, r.body)
	}
	if l, err = net.Listen("tcp", addr); err != nil {
		t.Skip("the port was taken by another process:", err)
	}
	var runs atomic.Int32
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { runs.Add(1); w.WriteHeader(204) })}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	for range 4 {
		if r := f.outcome("k", "{}"); r.status == 204 {
			break
		}
	}
	if r := f.outcome("k", "{}"); r.status != 204 || runs.Load() != 1 {
		t.Errorf("%d %s after %d runs", r.status, r.body, runs.Load())
	}
	if !strings.Contains(f.log.String(), "the service is unavailable; no more work") {
		t.Error("the log does not report that the service is unavailable")
	}
}

// The worker renews the lease while it waits for the service.
func TestServiceThatTakesLongerThanTheLeaseIsCalledOnce(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(2500 * time.Millisecond)
		_, _ = io.WriteString(w, "attempt "+r.Header.Get(proxy.HeaderAttempt))
	})
	f := startAsync(t, memory.New(memory.Options{}), orders(s.URL, ", repeatable: true", ", lease: 1s, timeout: 20s"))
	if r := f.outcome("k", "{}"); r.status != 200 || r.body != "attempt 1" || s.count("k") != 1 {
		t.Errorf("%d %s after %d calls; want the response of attempt 1, and one call", r.status, r.body, s.count("k"))
	}
}

func TestRunningOperationsOfARouteDoNotDelayAnotherRoute(t *testing.T) {
	var running atomic.Int32
	held := make(chan struct{})
	s := serve(t, false, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/payments" {
			running.Add(1)
			<-held
		}
	})
	defer close(held)
	f := startAsync(t, memory.New(memory.Options{}), orders(s.URL, ", concurrency: 2", "")+"  - {path: /parcels, async: {}}\n")
	for i := range 50 {
		f.post(fmt.Sprint("payment", i), "{}")
	}
	stettest.Eventually(t, "two payments to run", func() bool { return running.Load() == 2 })
	if r := f.send("POST", "/parcels", "parcel", "{}", "Prefer", "wait=10"); r.status != 200 {
		t.Errorf("the other route: %d %s", r.status, r.body)
	}
	if n := running.Load(); n != 2 {
		t.Errorf("%d payments run; want concurrency, 2", n)
	}
}

func TestRetryAfterOfTheServiceIsUsed(t *testing.T) {
	var at [2]time.Time
	var n atomic.Int32
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
		i := n.Add(1) - 1
		at[min(i, 1)] = time.Now()
		if i == 0 {
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(503)
		}
	})
	f := startAsync(t, memory.New(memory.Options{}), orders(s.URL, "", ""))
	if r := f.outcome("k", "{}"); r.status != 200 || at[1].Sub(at[0]) < 2*time.Second {
		t.Errorf("%d %s; the second attempt came %v after the first", r.status, r.body, at[1].Sub(at[0]))
	}
}

// TestWorkerOfAServiceThatSettles: a settled operation has its outcome, and an unsettled one is sent
// again, with another claim.
func TestWorkerOfAServiceThatSettles(t *testing.T) {
	var n atomic.Int32
	s := newSettling(t, func(s *settling, w http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 1 {
			_ = conn(r).Close() // it has not settled
			return
		}
		if err := s.settle(r.Header.Get(proxy.HeaderClaim)); err != nil {
			t.Error(err)
		}
		_ = conn(r).Close() // it has, and its answer is lost
	})
	f := startAsync(t, s.store, orders(s.URL, "", ", settles: service"))
	if r := f.outcome("k", "{}"); r.status != 201 || r.body != "settled" || s.count("k") != 2 {
		t.Errorf("%d %s after %d runs", r.status, r.body, s.count("k"))
	}
	first, second := <-s.claims, <-s.claims
	if first == second || s.settle(first) == nil {
		t.Error("the claim of the first attempt still counts")
	}
}

func TestServiceReportsProgressAndReceivesTheCancellation(t *testing.T) {
	begun, told, end := make(chan http.Header), make(chan string), make(chan struct{})
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		begun <- r.Header
		<-end
		w.WriteHeader(409)
	})
	f := startAsync(t, memory.New(memory.Options{}), orders(s.URL, ", running: conflict", ""))
	location := f.post("k", "{}").header.Get("Location")
	h := <-begun
	report := func(body string) {
		go func() {
			r := f.send("PATCH", h.Get(proxy.HeaderStatusPage), "", body, "Stet-Progress", h.Get("Stet-Progress"))
			told <- fmt.Sprint(r.status, " ", strings.TrimSpace(r.body))
		}()
	}
	report(`{"fraction":0.25,"message":"packing"}`)
	if got := <-told; got != `200 {"cancelling":false}` {
		t.Errorf("progress: %s", got)
	}
	if d := f.look(location); d.State != "running" || d.Progress == nil || d.Progress.Fraction != 0.25 || d.Progress.Message != "packing" {
		t.Errorf("the status is %+v", d)
	}
	if r := f.post("k", "{}"); r.status != 409 || r.problem() != "in-flight" || r.header.Get("Location") != location {
		t.Errorf("a retry while it runs: %d %v %s", r.status, r.header, r.body)
	}
	if r := f.send("DELETE", location, "", ""); r.status != 202 {
		t.Errorf("cancelling: %d %s", r.status, r.body)
	}
	report(`{"fraction":0.5}`)
	if got := <-told; got != `200 {"cancelling":true}` {
		t.Errorf("progress: %s", got)
	}
	close(end)
	if r := f.outcome("k", "{}"); r.status != 409 || r.problem() != "" {
		t.Errorf("the outcome is %d %s", r.status, r.body)
	}
	report(`{"fraction":1}`)
	if got := <-told; !strings.HasPrefix(got, "409") {
		t.Errorf("progress of an ended operation: %s", got)
	}
}

func TestStatusIsShownToItsScopeOnly(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(200); _, _ = io.WriteString(w, r.URL.Path) })
	f := startAsync(t, memory.New(memory.Options{}), strings.Replace(orders(s.URL, ", no_cancel: true", ""), "single-tenant", "header:X-Account", 1))
	location := f.post("k", "{}", "X-Account", "a").header.Get("Location")
	if r := f.post("k", "{}", "X-Account", "a", "Prefer", "wait=10"); r.status != 200 || s.last().Get("X-Account") != "a" {
		t.Errorf("%d %s; the service got %v", r.status, r.body, s.last())
	}
	for path, key := range map[string]string{location: "", "/operations/by-key": "k"} {
		if r := f.send("GET", path, key, "", "X-Account", "a"); r.status != 200 {
			t.Errorf("its own caller: %d %s", r.status, r.body)
		}
		if r := f.send("GET", path, key, "", "X-Account", "b"); r.problem() != "operation-not-found" {
			t.Errorf("another caller: %d %s", r.status, r.body)
		}
		if r := f.send("GET", path, key, ""); r.problem() != "scope-missing" {
			t.Errorf("no caller: %d %s", r.status, r.body)
		}
		if r := f.send("DELETE", path, key, "", "X-Account", "a"); r.status != 405 {
			t.Errorf("cancelling: %d %s", r.status, r.body)
		}
	}
	if r := f.send("GET", "/operations/of/mine", "", ""); r.status != 200 || r.body != "/operations/of/mine" {
		t.Errorf("a path of the service: %d %s", r.status, r.body)
	}
}

// TestStatusIsShownToAuthorizedCallersOnly: so is the existence of an operation. The
// service needs no authorization to report its progress.
func TestStatusIsShownToAuthorizedCallersOnly(t *testing.T) {
	begun, end := make(chan http.Header), make(chan struct{})
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/auth" && r.Header.Get("Authorization") == "revoked":
			w.WriteHeader(403)
		case r.URL.Path != "/auth":
			begun <- r.Header
			<-end
		}
	})
	f := startAsync(t, memory.New(memory.Options{}), orders(s.URL, "", "")+"authorize: {url: /auth}\n")
	location := f.post("k", "{}", "Authorization", "good").header.Get("Location")
	h := <-begun
	for path, key := range map[string]string{location: "", "/operations/by-key": "k"} {
		if r := f.send("GET", path, key, "", "Authorization", "good"); r.status != 200 {
			t.Errorf("with credentials: %d %s", r.status, r.body)
		}
		for _, method := range []string{"GET", "DELETE"} {
			if r := f.send(method, path, key, "", "Authorization", "revoked"); r.status != 403 {
				t.Errorf("%s with credentials that were revoked: %d %s", method, r.status, r.body)
			}
		}
	}
	if r := f.send("PATCH", location, "", `{"fraction":0.5}`, "Authorization", "revoked", "Stet-Progress", h.Get("Stet-Progress")); r.status != 200 {
		t.Errorf("progress: %d %s", r.status, r.body)
	}
	close(end)
}

// TestHugeAnswerIsNoSecondRun: the response cannot be stored, but the service has executed.
func TestHugeAnswerIsNoSecondRun(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 20<<20)) })
	f := startAsync(t, memory.New(memory.Options{}), orders(s.URL, ", repeatable: true", ""))
	if r := f.outcome("k", "{}"); r.problem() != "result-expired" || s.count("k") != 1 {
		t.Errorf("%d %s after %d runs", r.status, r.body, s.count("k"))
	}
	if held := f.proxy.Counts().InHand; held > 1<<20 {
		t.Errorf("%d bytes are still held", held)
	}
}

func TestRetriesUseUpNoNewRecords(t *testing.T) {
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	f := startAsync(t, memory.New(memory.Options{}), orders(s.URL, "", "")+"new_records: {total: 2}\n")
	for range 3 {
		if r := f.outcome("k", "{}"); r.status != 200 {
			t.Errorf("%d %s", r.status, r.body)
		}
	}
	if r := f.post("other", "{}"); r.status != 202 {
		t.Errorf("the second operation: %d %s", r.status, r.body)
	}
	if r := f.post("third", "{}"); r.status != 429 || f.state("third") != store.None {
		t.Errorf("the third operation: %d %s", r.status, r.body)
	}
	if r := f.post("k", "{}"); r.status != 200 {
		t.Errorf("a retry: %d %s", r.status, r.body)
	}
}

func TestRequestThatIsTooLargeToStoreIsRefused(t *testing.T) {
	s := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	f := startAsync(t, memory.New(memory.Options{}), orders(s.URL, "", ""))
	if r := f.post("k", strings.Repeat("x", store.MaxWork-16<<10)); r.status != 413 || f.state("k") != store.None {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := f.post("k", "{}", "User-Agent", strings.Repeat("x", 40<<10)); r.problem() != "too-large-to-accept" || f.state("k") != store.None {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := f.outcome("k", strings.Repeat("x", store.MaxWork-40<<10)); r.status != 200 {
		t.Errorf("what fits: %d %s", r.status, r.body)
	}
}

// TestOperationsContinueAfterAReload: with the worker of the new configuration.
func TestOperationsContinueAfterAReload(t *testing.T) {
	held := make(chan struct{})
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") == "first" {
			<-held
		}
	})
	yaml := orders(s.URL, ", concurrency: 1", "")
	f := startAsync(t, memory.New(memory.Options{}), yaml)
	f.post("first", "{}")
	stettest.Eventually(t, "the first is running", func() bool { return s.count("first") == 1 }) // else the next worker runs it
	f.post("second", "{}")
	c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(strings.Replace(yaml, "20ms", "30ms", 1))), func(string) (string, bool) { return "", false })
	if err == nil {
		err = f.proxy.Reload(c)
	}
	if err != nil {
		t.Fatal(err)
	}
	if r := f.outcome("second", "{}"); r.status != 200 {
		t.Errorf("the second: %d %s", r.status, r.body)
	}
	close(held)
	if r := f.outcome("first", "{}"); r.status != 200 || s.count("first") != 1 {
		t.Errorf("the first: %d %s after %d runs", r.status, r.body, s.count("first"))
	}
}
