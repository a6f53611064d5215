package proxy_test

import (
	"encoding/base64"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/reconcile"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

const reconciled = `
scope: header:X-Account
reconcile: {every: 20ms}
routes:
  - path: /payments
    keep_scope: true
    keep_key: true
    verify: {url: /happened, after: 0s}
`

// till is a service that finds its payments by scope and key, as most would.
type till struct {
	*service
	charges map[[2]string]string
	asked   []http.Header
}

// newTill returns a till that breaks off requests. "lost" is broken off before
// anything is done, and "fine" is not broken off.
func newTill(t *testing.T) *till {
	l := &till{charges: map[[2]string]string{}}
	l.service = serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		scope, _ := url.PathUnescape(r.Header.Get(proxy.HeaderScope))
		op := [2]string{scope, r.Header.Get("Idempotency-Key")}
		l.mu.Lock()
		defer l.mu.Unlock()
		if r.URL.Path == "/happened" {
			l.asked = append(l.asked, r.Header.Clone())
			w.Header().Set(proxy.HeaderOperation, r.Header.Get(proxy.HeaderOperation))
			charge, ok := l.charges[op]
			if !ok {
				w.Header().Set(proxy.HeaderExecution, "none")
				w.WriteHeader(http.StatusNotFound)
			}
			_, _ = io.WriteString(w, charge)
			return
		}
		body, _ := io.ReadAll(r.Body)
		if string(body) != "lost" {
			l.charges[op] = "charged " + strings.Join(op[:], " ")
		}
		if string(body) != "fine" && r.Header.Get(proxy.HeaderAttempt) == "1" {
			_ = conn(r).Close()
			return
		}
		_, _ = io.WriteString(w, "run again")
	})
	return l
}

func (l *till) questions() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.asked)
}

func parsed(t *testing.T, yaml string) *proxy.Config {
	t.Helper()
	c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(yaml)), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// once reconciles once, by a configuration.
func (f *front) once(yaml string, o proxy.ReconcileOptions) proxy.Reconciled {
	f.t.Helper()
	o.ErrorLog = slog.New(slog.NewTextHandler(f.log, nil))
	did, err := proxy.ReconcileOnce(f.t.Context(), f.store, parsed(f.t, yaml), o)
	if err != nil {
		f.t.Fatal(err)
	}
	return did
}

// Two tenants use the same key, and one's payment happened. That is the only fact that each retry
// gets.
func TestReconcilerAsksAboutTheOperationOfItsScope(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(secret, []byte(base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, more := range map[string]string{"in clear": "", "encrypted": "encryption: {keys: [{name: k, file: " + secret + "}]}\n"} {
		l := newTill(t)
		yaml := yamlFor(l.URL, "http1", reconciled+more)
		f := start(t, yaml)
		f.post("k%1", "paid", "X-Account", "a/ü")
		f.post("k%1", "lost", "X-Account", "b")
		want := proxy.Reconciled{Report: reconcile.Report{Looked: 2, Completed: 1, Again: 1}}
		if got := f.once(yaml, proxy.ReconcileOptions{DryRun: true}); got != want || l.questions() != 2 {
			t.Errorf("%s: a dry run: %+v, %d questions", name, got, l.questions())
		}
		if got := f.once(yaml, proxy.ReconcileOptions{}); got != want || l.questions() != 4 {
			t.Errorf("%s: %+v, %d questions; want %+v", name, got, l.questions(), want)
		}
		if r := f.post("k%1", "paid", "X-Account", "a/ü"); r.status != 200 || !r.replayed() || r.body != "charged a/ü k%1" {
			t.Errorf("%s: the first: %d %q, replayed %v", name, r.status, r.body, r.replayed())
		}
		if r := f.post("k%1", "lost", "X-Account", "b"); r.status != 200 || r.replayed() || r.body != "run again" {
			t.Errorf("%s: the other: %d %q, replayed %v", name, r.status, r.body, r.replayed())
		}
		if l.count("k%1") != 3 {
			t.Errorf("%s: %d executions; want 3", name, l.count("k%1"))
		}
		runs := map[string]http.Header{}
		for _, h := range l.seen {
			runs[h.Get(proxy.HeaderOperation)+h.Get(proxy.HeaderFence)] = h
		}
		for _, h := range l.asked {
			run := runs[h.Get(proxy.HeaderOperation)+h.Get(proxy.HeaderFence)]
			for _, field := range []string{"Idempotency-Key", proxy.HeaderScope, proxy.HeaderAttempt} {
				if h.Get(field) == "" || h.Get(field) != run.Get(field) {
					t.Errorf("%s: %s: the run had %q, the question %q", name, field, run.Get(field), h.Get(field))
				}
			}
			if h.Get(proxy.HeaderName) != "POST%20%2Fpayments" || h.Get(proxy.HeaderReference) != "" {
				t.Errorf("%s: the question has the name %q", name, h.Get(proxy.HeaderName))
			}
		}
	}
}

// A service that searches for an empty key finds nothing, also if it was paid.
func TestReconcilerDoesNotAskWithoutAKey(t *testing.T) {
	for _, scope := range []string{"", "keep_scope: true"} { // when the record was made
		l := newTill(t)
		yaml := yamlFor(l.URL, "http1", reconciled)
		f := start(t, strings.NewReplacer("keep_key: true", "", "keep_scope: true", scope, "reconcile: {every: 20ms}", "").Replace(yaml))
		f.post("k", "paid", "X-Account", "a")
		if got, want := f.once(yaml, proxy.ReconcileOptions{}), (proxy.Reconciled{Report: reconcile.Report{Blind: 1}}); got != want || l.questions() != 0 {
			t.Errorf("%+v, %d questions; want %+v, and none", got, l.questions(), want)
		}
		if r := f.post("k", "paid", "X-Account", "a"); !r.replayed() || r.body != "charged a k" {
			t.Errorf("a retry: %d %q; want the service asked with its key", r.status, r.body)
		}
	}
}

// Two services have a store in common, and classes of one name.
func TestReconcilerLeavesOtherNamespacesAlone(t *testing.T) {
	for _, by := range []string{"key", "operation"} {
		l := newTill(t)
		yaml := yamlFor(l.URL, "http1", strings.Replace(reconciled, "after: 0s", "after: 0s, by: "+by, 1))
		f := start(t, "namespace: theirs\n"+yaml)
		f.post("k", "lost", "X-Account", "a")
		if got, want := f.once("namespace: ours\n"+yaml, proxy.ReconcileOptions{}), (proxy.Reconciled{Report: reconcile.Report{Blind: 1}}); got != want || l.questions() != 0 {
			t.Errorf("by %s: %+v, %d questions; want %+v, and none", by, got, l.questions(), want)
		}
	}
}

func TestRecordsOfThePreviousNamespaceAreReplayedAndReconciled(t *testing.T) {
	l, shared := newTill(t), memory.New(memory.Options{})
	yaml := yamlFor(l.URL, "http1", strings.Replace(reconciled, "after: 0s", "after: 0s, by: key", 1))
	before := startOn(t, shared, yaml)
	for _, claim := range []string{"true", "false"} {
		before.post("k"+claim, "paid", "X-Account", "a") // the service charges, and then fails
		next := "namespace: v2\nprevious: {claim: " + claim + "}\n" + yaml
		f := startOn(t, shared, next)
		if got, want := f.once(next, proxy.ReconcileOptions{}), (proxy.Reconciled{Report: reconcile.Report{Looked: 1, Completed: 1}}); got != want {
			t.Errorf("claim %s: %+v; want %+v", claim, got, want)
		}
		if r := f.post("k"+claim, "paid", "X-Account", "a"); !r.replayed() || r.body != "charged a k"+claim {
			t.Errorf("claim %s: a retry got %d %q; want the outcome of the previous namespace", claim, r.status, r.body)
		}
		f.post("own"+claim, "paid", "X-Account", "a")
		if rec, err := shared.Read(t.Context(), store.Digest("", "a", "own"+claim)); err != nil || (rec.State != store.None) != (claim == "true") {
			t.Errorf("claim %s: a new operation is %v in the previous namespace, %v", claim, rec.State, err)
		}
		f.once(next, proxy.ReconcileOptions{}) // before the next pass
	}
}

func TestReconcilerLeavesRoutesWithoutAVerifierAlone(t *testing.T) {
	l := newTill(t)
	yaml := yamlFor(l.URL, "http1", reconciled+`
  - {path: /orders, stale: take-over, keep_scope: true, keep_key: true}
  - {path: /refunds, stale: fail, verify: {url: /happened, after: 0s, retries_only: true}}
`)
	f := start(t, yaml)
	for _, path := range []string{"/orders", "/refunds"} {
		f.send("POST", path, "k", "paid", "X-Account", path)
	}
	// Of what broke off without verify, the lease runs out first.
	stettest.Eventually(t, "both to be unknown", func() bool {
		got := f.once(yaml, proxy.ReconcileOptions{})
		if got.Report != (reconcile.Report{}) {
			t.Fatalf("%+v; want nothing looked into", got)
		}
		return got.Alone == 2
	})
	if l.questions() != 0 || l.count("k") != 2 {
		t.Errorf("%d questions, %d executions", l.questions(), l.count("k"))
	}
}

// Without a clear answer the operation stays unknown, for any Stale.
func TestReconcilerTakesNoUnclearAnswer(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request){
		"a 404 of a router": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) },
		"without Stet-Operation": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(proxy.HeaderExecution, "none")
			w.WriteHeader(404)
		},
		"a failure": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(proxy.HeaderOperation, r.Header.Get(proxy.HeaderOperation))
			w.WriteHeader(500)
		},
		"none": func(_ http.ResponseWriter, r *http.Request) { _ = conn(r).Close() },
	} {
		for _, stale := range []string{"unknown", "take-over", "fail"} {
			s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					_ = conn(r).Close()
					return
				}
				answer(w, r)
			})
			yaml := yamlFor(s.URL, "http1", strings.NewReplacer("keep_scope:", "stale: "+stale+"\n    keep_scope:", "header:X-Account", "single-tenant").Replace(reconciled))
			f := start(t, yaml)
			f.post("k", "{}")
			if got, want := f.once(yaml, proxy.ReconcileOptions{}), (proxy.Reconciled{Report: reconcile.Report{Looked: 1, Errors: 1}}); got != want || f.state("k") != store.Unknown {
				t.Errorf("%s, stale: %s: %+v, %v; want %+v", name, stale, got, f.state("k"), want)
			}
			if s.count("k") != 1 {
				t.Errorf("%s: %d executions", name, s.count("k"))
			}
		}
	}
}

// The service may be at work on what broke off for as long as verify.after says.
func TestReconcilerDoesNotAskBeforeVerifyAfter(t *testing.T) {
	l := newTill(t)
	yaml := yamlFor(l.URL, "http1", strings.Replace(reconciled, ", after: 0s", "", 1))
	f := start(t, yaml)
	f.post("k", "lost", "X-Account", "a")
	if got := f.once(yaml, proxy.ReconcileOptions{}); got != (proxy.Reconciled{}) || l.questions() != 0 {
		t.Errorf("%+v, %d questions; want none", got, l.questions())
	}
}

// The part of a proxy asks without a retry, and a reload that leaves it out ends it.
func TestProxyReconcilesUntilItIsReconfigured(t *testing.T) {
	l := newTill(t)
	yaml := yamlFor(l.URL, "http1", strings.Replace(reconciled, "header:X-Account", "single-tenant", 1))
	f := startWith(t, memory.New(memory.Options{}), yaml, proxy.Options{Parts: proxy.Reconciler})
	f.post("k", "paid")
	stettest.Eventually(t, "the outcome", func() bool { return f.state("k") == store.Completed })
	if l.count("k") != 1 || l.questions() != 1 {
		t.Errorf("%d executions, %d questions", l.count("k"), l.questions())
	}
	without := strings.Replace(yaml, "reconcile: {every: 20ms}", "", 1)
	if err := f.proxy.Reload(parsed(t, without)); err != nil {
		t.Fatal(err)
	}
	stettest.Eventually(t, "the old reconciler to end", func() bool {
		stacks := make([]byte, 1<<20)
		return !strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "proxy.(*reconciler).run")
	})
	f.post("k2", "paid")
	stettest.Eventually(t, "k2 to be unknown", func() bool { return f.state("k2") == store.Unknown })
	if l.questions() != 1 {
		t.Errorf("%d questions; want that of before", l.questions())
	}
	if err := f.proxy.Reload(parsed(t, yaml)); err != nil {
		t.Fatal(err)
	}
	stettest.Eventually(t, "the outcome after another reload", func() bool { return f.state("k2") == store.Completed })
}

// A service that finds operations by its own reference is not asked, on a retry either,
// about an operation without a reference.
func TestVerifierIsAskedByTheReference(t *testing.T) {
	for where, c := range map[string]struct{ body, header string }{"/order/id": {`{"order": {"id": "ö 7"}}`, "none"}, "header:x-order": {"{}", "ö 7"}} {
		var happened sync.Map // a set
		s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
			ref, _ := url.PathUnescape(r.Header.Get(proxy.HeaderReference))
			_, paid := happened.Load(r.Header.Get(proxy.HeaderScope) + " " + ref)
			switch w.Header().Set(proxy.HeaderOperation, r.Header.Get(proxy.HeaderOperation)); {
			case r.Method == http.MethodPost:
				happened.Store(r.Header.Get(proxy.HeaderScope)+" ö 7", true)
				_ = conn(r).Close()
			case paid && r.Header.Get("Idempotency-Key") == "":
				_, _ = io.WriteString(w, "charged "+ref)
			default:
				w.Header().Set(proxy.HeaderExecution, "none")
				w.WriteHeader(http.StatusNotFound)
			}
		})
		yaml := yamlFor(s.URL, "http1", strings.NewReplacer("after: 0s", "after: 0s, by: reference", "keep_key: true", "reference: "+where).Replace(reconciled))
		f := start(t, yaml)
		f.post("k", c.body, "X-Account", "a", "X-Order", c.header)
		f.post("bare", "[]", "X-Account", "a")
		if got, want := f.once(yaml, proxy.ReconcileOptions{}), (proxy.Reconciled{Report: reconcile.Report{Looked: 1, Completed: 1, Blind: 1}}); got != want {
			t.Errorf("%s: %+v; want %+v", where, got, want)
		}
		if r := f.post("k", c.body, "X-Account", "a", "X-Order", c.header); !r.replayed() || r.body != "charged ö 7" {
			t.Errorf("%s: %d %q", where, r.status, r.body)
		}
		if r := f.post("bare", "[]", "X-Account", "a"); r.status != 504 || s.count("bare") != 1 {
			t.Errorf("%s: without a reference: %d %q, %d executions", where, r.status, r.body, s.count("bare"))
		}
	}
}

func TestInvalidReferenceIsOmittedAndLogged(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
	f := start(t, yamlFor(s.URL, "http1", "scope: single-tenant\nroutes: [{path: /payments, reference: 'header:X-Order'}]\n"))
	long := strings.Repeat("x", store.MaxLabel+1)
	for i, ref := range []string{"order 7", "sealed:x", long} {
		key := strings.Repeat("k", i+1)
		f.post(key, "{}", "X-Order", ref)
		rec, err := f.store.Read(t.Context(), store.Digest("", "single-tenant", key))
		if fits := i == 0; err != nil || (rec.Label.Ref == ref) != fits || (rec.Label.Ref == "") == fits || strings.Contains(f.log.String(), "no reference") == fits {
			t.Errorf("%.20q: %q, %v; the log says %s", ref, rec.Label.Ref, err, f.log.String())
		}
	}
	if strings.Contains(f.log.String(), long) {
		t.Error("it is in the log")
	}
}

// A pass without a proxy reaches the service as the proxy does.
func TestReconcileTrustsTheAuthorityOfTheService(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(proxy.HeaderOperation, r.Header.Get(proxy.HeaderOperation))
		_, _ = io.WriteString(w, "charged")
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	t.Cleanup(s.Close)
	authority := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	st := memory.New(memory.Options{})
	e := stettest.Engine(t, st, stet.Options{Classes: map[string]stet.Policy{"/payments": {KeepScope: true, KeepKey: true}}})
	run, err := e.Begin(t.Context(), stet.Op{Scope: "a", Key: "k", Class: "/payments"})
	if err != nil {
		t.Fatal(err)
	}
	if err := run.MarkUnknown(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, ca := range []string{"", ", ca: " + authority} {
		yaml := "upstream: {url: '" + s.URL + "'" + ca + "}\n" + reconciled
		did, err := proxy.ReconcileOnce(t.Context(), st, parsed(t, yaml), proxy.ReconcileOptions{ErrorLog: slog.New(slog.DiscardHandler)})
		if want := (proxy.Reconciled{Report: reconcile.Report{Looked: 1, Errors: 1 - i, Completed: i}}); err != nil || did != want {
			t.Errorf("with %q: %+v, %v; want %+v", ca, did, err, want)
		}
	}
}

// While a service is away, a pass does not ask it about each of a thousand operations; and
// what another service answers is asked on.
func TestReconcilerSkipsARouteThatDoesNotAnswer(t *testing.T) {
	l := newTill(t)
	yaml := yamlFor(l.URL, "http1", strings.NewReplacer("header:X-Account", "single-tenant", "every: 20ms", "every: 20ms, concurrency: 1").Replace(reconciled)+`
  - {path: /orders, keep_key: true, verify: {url: 'http://127.0.0.1:1/', after: 0s}}
`)
	f := start(t, yaml)
	for i := range 20 {
		f.post("k"+strings.Repeat("k", i), "paid")
		f.send("POST", "/orders", "o"+strings.Repeat("o", i), "paid")
	}
	if got, want := f.once(yaml, proxy.ReconcileOptions{}), (proxy.Reconciled{Report: reconcile.Report{Looked: 36, Completed: 20, Errors: 16}, Skipped: 4}); got != want {
		t.Errorf("%+v; want %+v", got, want)
	}
}
