package skintest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
)

// patience bounds what has to happen soon; only failures use it up.
var patience = 10 * time.Second

// errBank is an error that no framework knows.
var errBank = errors.New("the bank is down")

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

// fixture is what a case works with: an engine, a store, and the server that the skin has
// started.
type fixture struct {
	testing.TB
	skin   Skin
	store  *books
	log    *journal
	url    string
	client *http.Client
	runs   atomic.Int64 // of the handler
}

func newFixture(t testing.TB, skin Skin) *fixture {
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &fixture{TB: t, skin: skin, store: newBooks(), log: &journal{},
		client: &http.Client{Transport: transport, Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// path is where the routes of the cases are.
const path = "/orders/{id}"

// options are those that cases begin with.
func (f *fixture) options() stethttp.Options {
	return stethttp.Options{
		Scope:    func(r *http.Request) (string, error) { return r.Header.Get("Account"), nil },
		MaxBody:  1 << 20,
		ErrorLog: slog.New(slog.NewTextHandler(f.log, nil)),
	}
}

func (f *fixture) engine(o stet.Options) *stet.Engine {
	f.Helper()
	o.StoreTimeout = 300 * time.Millisecond // how long failed calls are repeated
	engine, err := stet.New(f.store, o)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = engine.Close() })
	return engine
}

// serve serves a handler for POST.
func (f *fixture) serve(handle func(Call) error) {
	f.Helper()
	f.serveWith(stet.Options{}, f.options(), "POST", handle)
}

func (f *fixture) serveWith(eo stet.Options, o stethttp.Options, method string, handle func(Call) error) {
	f.Helper()
	m, err := stethttp.New(f.engine(eo), o)
	if err != nil {
		f.Fatal(err)
	}
	f.url = f.skin.Serve(f, m, []Route{{Method: method, Path: path, Handle: func(c Call) error {
		f.runs.Add(1)
		return handle(c)
	}}})
}

// serveTx serves a handler for POST, with transactions.
func (f *fixture) serveTx(handle func(Call, *Tx) error) {
	f.Helper()
	te, err := stet.WithTx(f.engine(stet.Options{}), f.store)
	if err != nil {
		f.Fatal(err)
	}
	m, err := stethttp.NewTx(te, f.options())
	if err != nil {
		f.Fatal(err)
	}
	f.url = f.skin.ServeTx(f, m, []Route{{Method: "POST", Path: path, HandleTx: func(c Call, tx *Tx) error {
		f.runs.Add(1)
		return handle(c, tx)
	}}})
}

// reply is a response as the client saw it; err if it saw none, or not all of it.
type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

func (r reply) replayed() bool { return r.header.Get(stethttp.DefaultReplayedHeader) == "true" }

// problem returns the name of the problem that the reply is, "" for none.
func (r reply) problem() string {
	if r.header.Get("Content-Type") != "application/problem+json" {
		return ""
	}
	_, name, _ := strings.Cut(r.body, stethttp.DefaultProblemBase)
	name, _, _ = strings.Cut(name, `"`)
	return name
}

func (r reply) String() string {
	if r.err != nil {
		return "no whole response: " + r.err.Error()
	}
	body := r.body
	if len(body) > 300 {
		body = body[:300] + "…"
	}
	return http.StatusText(r.status) + " (" + strings.TrimSpace(strings.Join([]string{itoa(r.status), quote(body)}, " ")) + ", " + show(r.header) + ")"
}

// request is a POST for an order, with key k of account a, if header does not say
// otherwise; a field with the value "-" is not sent.
func (f *fixture) request(method, body string, header ...string) *http.Request {
	f.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, f.url+"/orders/42", strings.NewReader(body))
	if err != nil {
		f.Fatal(err)
	}
	req.GetBody = nil // the client must not repeat it by itself
	req.Header.Set("Account", "a")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(stethttp.DefaultHeader, `"k"`)
	for i := 0; i+1 < len(header); i += 2 {
		if header[i+1] == "-" {
			req.Header.Del(header[i])
		} else {
			req.Header.Set(header[i], header[i+1])
		}
	}
	return req
}

func (f *fixture) do(req *http.Request) reply {
	res, err := f.client.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(body), err}
}

func (f *fixture) post(body string, header ...string) reply {
	f.Helper()
	return f.do(f.request("POST", body, header...))
}

// twice posts the same twice: the second must be the replay of the first.
func (f *fixture) twice(header ...string) (first reply) {
	f.Helper()
	first = f.post(`{"amount":10}`, header...)
	if first.err != nil {
		f.Fatalf("the first request got %v", first)
	}
	f.replays(first, f.post(`{"amount":10}`, header...))
	f.ran(1)
	return first
}

// replays requires that again be the replay of first, with the same bytes.
func (f *fixture) replays(first, again reply) {
	f.Helper()
	if again.err != nil || first.status != again.status || first.body != again.body {
		f.Errorf("the replay differs from the first response\nfirst  %v\nreplay %v", first, again)
	}
	if was, is := lasting(first.header), lasting(again.header); !maps.EqualFunc(was, is, slices.Equal) {
		f.Errorf("the header of the replay differs\nfirst  %s\nreplay %s", show(was), show(is))
	}
	if first.replayed() || !again.replayed() {
		f.Errorf("%s is %v on the first response and %v on the second; only a replay has it",
			stethttp.DefaultReplayedHeader, first.replayed(), again.replayed())
	}
}

// lasting is a header without what is each response's own, and how it was framed.
func lasting(h http.Header) http.Header {
	h = h.Clone()
	for _, name := range []string{"Date", "Connection", "Content-Length", "Cache-Control", stethttp.DefaultReplayedHeader, "Idempotency-Expires"} {
		h.Del(name)
	}
	return h
}

// ran requires that the handler was called n times.
func (f *fixture) ran(n int64) {
	f.Helper()
	if got := f.runs.Load(); got != n {
		f.Errorf("the handler ran %d times; want %d", got, n)
	}
}

// rows requires that n rows are committed.
func (f *fixture) rows(n int) {
	f.Helper()
	if got := f.store.committed(); got != n {
		f.Errorf("%d rows are committed; want %d", got, n)
	}
}

// is requires a response.
func (f *fixture) is(what string, r reply, status int, body string) {
	f.Helper()
	if r.err != nil || r.status != status || r.body != body {
		f.Errorf("%s: got %v; want %d %s", what, r, status, quote(body))
	}
}

// refused requires that a reply be stet's problem of that name.
func (f *fixture) refused(what string, r reply, status int, problem string) {
	f.Helper()
	if r.err != nil || r.status != status || r.problem() != problem {
		f.Errorf("%s: got %v; want %d and the problem %s", what, r, status, problem)
	}
}

// failed requires that the client was not told that all went well.
func (f *fixture) failed(what string, r reply) {
	f.Helper()
	if r.err == nil && r.status < 500 {
		f.Errorf("%s: got %v; want 500 or above, or a connection that is cut", what, r)
	}
}

// loud requires that the log says what is wrong.
func (f *fixture) loud() {
	f.Helper()
	if !strings.Contains(f.log.String(), "level=ERROR") {
		f.Errorf("Options.ErrorLog has no error; it has %s", quote(f.log.String()))
	}
}

// wait waits for something that happens soon.
func wait(f *fixture, what string, c <-chan struct{}) {
	f.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		f.Fatalf("waited %v for %s", patience, what)
	}
}

// journal is a log that is kept.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

// once is a channel that can be closed more than once.
type once struct {
	c chan struct{}
	o sync.Once
}

func newOnce() *once { return &once{c: make(chan struct{})} }

func (o *once) close() { o.o.Do(func() { close(o.c) }) }
