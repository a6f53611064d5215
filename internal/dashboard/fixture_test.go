package dashboard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/internal/dashboard"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "a-token-of-24-visible-ch"

// office is a handler over a store with an operation of the scope acme in each
// state, whose key is the state.
type office struct {
	t       *testing.T
	handler http.Handler
	engine  *stet.Engine
	store   *memory.Store
	now     clock
	audit   *book
	log     *book
}

// clock is the clock of the store, which background work reads, too.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) get() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// book is a log.
type book struct {
	mu   sync.Mutex
	text bytes.Buffer
	full bool
}

func (b *book) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.full {
		return 0, errors.New("disk full")
	}
	return b.text.Write(p)
}

func (b *book) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// entries are the lines of an audit.
func (b *book) entries(t *testing.T) (all []admin.Entry) {
	t.Helper()
	for line := range strings.Lines(b.String()) {
		var e struct {
			admin.Entry
			Time time.Time
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		e.At = e.Time
		all = append(all, e.Entry)
	}
	return all
}

const secretResult = "the secret <result>"

func open(t *testing.T, o dashboard.Options, eo stet.Options) *office {
	t.Helper()
	f := &office{t: t, now: clock{at: time.Now().Add(-time.Hour)}, audit: &book{}, log: &book{}}
	f.store = memory.New(memory.Options{Clock: f.now.get})
	eo.SweepEvery = -1
	engine, err := stet.New(f.store, eo)
	if err != nil {
		t.Fatal(err)
	}
	f.engine = engine
	t.Cleanup(func() { _ = engine.Close() })
	for _, key := range []string{"completed", "failed"} {
		out := stet.Outcome{Body: []byte(secretResult)}
		if key == "failed" {
			out.Failed = true
		}
		run, err := f.engine.Begin(t.Context(), op(key))
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Settle(t.Context(), out); err != nil {
			t.Fatal(err)
		}
	}
	f.claim("retryable", time.Minute, true)
	f.claim("running", 24*time.Hour, false)
	f.claim("dead", time.Minute, false)
	f.claim("unknown", time.Minute, false)
	f.now.add(2 * time.Minute)
	f.claim("unknown", time.Minute, false) // marks it unknown
	if len(o.Tokens) == 0 && !o.Loopback {
		o.Tokens = admins(token)
	}
	if o.Audit == nil {
		o.Audit = slog.NewJSONHandler(f.audit, nil)
	}
	o.ErrorLog, o.Store = slog.New(slog.NewTextHandler(f.log, nil)), "memory"
	if f.handler, err = dashboard.New(f.engine, o); err != nil {
		t.Fatal(err)
	}
	return f
}

// admins is one token with all rights.
func admins(secret string) []dashboard.Token {
	return []dashboard.Token{{Name: dashboard.DefaultTokenName, Secret: secret, Change: true}}
}

func op(key string) stet.Op {
	return stet.Op{Scope: "acme", Key: key, Fingerprint: stet.NewFingerprint([]byte("x"))}
}

// claim makes a run that is released, or dies.
func (f *office) claim(key string, lease time.Duration, release bool) {
	f.t.Helper()
	rec, err := f.store.Claim(f.t.Context(), store.ClaimRequest{ID: f.engine.ID("acme", key), Scope: store.DigestScope("", "acme"),
		Fingerprint: op(key).Fingerprint, Owner: store.NewOwner(), Lease: lease})
	if err == nil && release {
		err = f.store.Release(f.t.Context(), rec.Claim(), store.Retention{Result: 24 * time.Hour, Tombstone: 24 * time.Hour})
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *office) record(key string) store.Record {
	f.t.Helper()
	rec, err := f.store.Read(context.WithoutCancel(f.t.Context()), f.engine.ID("acme", key))
	if err != nil {
		f.t.Fatal(err)
	}
	return rec
}

// answer is a response.
type answer struct {
	status int
	header http.Header
	body   string
}

// problem is the name of the condition, "" for none.
func (a answer) problem() string {
	var doc struct {
		Type   string
		Title  string
		Status int
	}
	if a.header.Get("Content-Type") != "application/problem+json" || json.Unmarshal([]byte(a.body), &doc) != nil || doc.Status != a.status || doc.Title == "" {
		return ""
	}
	name, ok := strings.CutPrefix(doc.Type, admin.Base)
	if !ok {
		return ""
	}
	return name
}

// ask sends a request with the token from this host, unless a field says
// otherwise; "" takes one away.
func (f *office) ask(method, path, content string, header ...string) answer {
	f.t.Helper()
	r := httptest.NewRequestWithContext(f.t.Context(), method, path, strings.NewReader(content))
	r.Host, r.RemoteAddr = "127.0.0.1:9090", "127.0.0.1:5000"
	r.Header.Set("Authorization", "Bearer "+token)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		switch name, value := header[i], header[i+1]; {
		case name == "Host":
			r.Host = value
		case name == "Remote":
			r.RemoteAddr = value
		case value == "":
			r.Header.Del(name)
		default:
			r.Header.Set(name, value)
		}
	}
	return f.serve(r)
}

func (f *office) serve(r *http.Request) answer {
	f.t.Helper()
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, r)
	return answer{w.Code, w.Header(), w.Body.String()}
}

func (f *office) path(key string) string {
	return "/v1/operations/" + f.engine.ID("acme", key).String()
}

// change asks for a change of the present record.
func (f *office) change(key, action string, c admin.Change, header ...string) answer {
	f.t.Helper()
	if c.Fence == 0 {
		c.Fence = f.record(key).Fence
	}
	if c.Reason == "" {
		c.Reason = "case 7"
	}
	if c.Actor == "" {
		c.Actor = "ada"
	}
	content, err := json.Marshal(c)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.ask(http.MethodPost, f.path(key)+"/"+action, string(content), header...)
}

// decode reads a response that must be a success.
func decode[T any](t *testing.T, a answer) (v T) {
	t.Helper()
	if a.status != http.StatusOK || a.header.Get("Content-Type") != "application/json" {
		t.Fatalf("got %d %s; want a.status == http.StatusOK, a.header.Get(\"Content-Type\") == \"application/json\"", a.status, a.body)
	}
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatal(err)
	}
	return v
}
