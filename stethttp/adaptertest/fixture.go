package adaptertest

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

// patience is the longest wait for an event; only failures reach it.
var patience = 10 * time.Second

// errBank is an error that no framework knows.
var errBank = errors.New("the bank is down")

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

// fixture is what a case works with: an engine, a store, and the server that the adapter has
// started.
type fixture struct {
	testing.TB
	adapter Adapter
	store   *books
	log     *journal
	url     string
	client  *http.Client
	runs    atomic.Int64 // of the handler
}

func newFixture(t testing.TB, a Adapter) *fixture {
	transport := &http.Transport{DisableCompression: !a.Compressed}
	t.Cleanup(transport.CloseIdleConnections)
	return &fixture{TB: t, adapter: a, store: newBooks(), log: &journal{},
		client: &http.Client{Transport: transport, Timeout: patience, CheckRedirect: stay}}
}

// path is where the routes of the cases are.
const path = "/orders/{id}"

// options are the initial options of cases.
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
	f.serveRoute(eo, o, Route{Method: method, Handle: handle})
}

// serveRoute serves a route, whose handler is counted, and others.
func (f *fixture) serveRoute(eo stet.Options, o stethttp.Options, r Route, others ...Route) {
	f.Helper()
	m, err := stethttp.New(f.engine(eo), o)
	if err != nil {
		f.Fatal(err)
	}
	handle := r.Handle
	r.Path, r.Handle = path, func(c Call) error {
		f.runs.Add(1)
		return handle(c)
	}
	f.url = f.adapter.Serve(f, m, append([]Route{r}, others...))
}

// serveTx serves a handler for POST, with transactions.
func (f *fixture) serveTx(handle func(Call, *Tx) error) {
	f.Helper()
	f.serveTxRoute(f.options(), Route{HandleTx: handle})
}

func (f *fixture) serveTxRoute(o stethttp.Options, r Route) {
	f.Helper()
	te, err := stet.WithTx(f.engine(stet.Options{}), f.store)
	if err != nil {
		f.Fatal(err)
	}
	m, err := stethttp.NewTx(te, o)
	if err != nil {
		f.Fatal(err)
	}
	handle := r.HandleTx
	r.Method, r.Path, r.HandleTx = "POST", path, func(c Call, tx *Tx) error {
		f.runs.Add(1)
		return handle(c, tx)
	}
	f.url = f.adapter.ServeTx(f, m, []Route{r})
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
	setHeader(req.Header, header)
	return req
}

func (f *fixture) do(req *http.Request) Reply {
	res, err := f.client.Do(req)
	return replyOf(f, res, err)
}

func (f *fixture) post(body string, header ...string) Reply {
	f.Helper()
	return f.do(f.request("POST", body, header...))
}

// twice posts the same twice: the second must be the replay of the first.
func (f *fixture) twice() (first Reply) {
	f.Helper()
	first = f.post(`{"amount":10}`)
	if first.Err != nil {
		f.Fatalf("the first request got %v", first)
	}
	f.replays(first, f.post(`{"amount":10}`))
	f.ran(1)
	return first
}

// replays requires that again be the replay of first, with the same bytes.
func (f *fixture) replays(first, again Reply) {
	f.Helper()
	if again.Err != nil || first.Status != again.Status || first.Body != again.Body {
		f.Errorf("the replay differs from the first response\nfirst  %v\nreplay %v", first, again)
	}
	if was, is := lasting(first.Header), lasting(again.Header); !maps.EqualFunc(was, is, slices.Equal) {
		f.Errorf("the header of the replay differs\nfirst  %s\nreplay %s", show(was), show(is))
	}
	if first.Replayed() || !again.Replayed() {
		f.Errorf("%s is %v on the first response and %v on the second; only a replay has it",
			stethttp.DefaultReplayedHeader, first.Replayed(), again.Replayed())
	}
}

// lasting is a header without the fields that differ in each response, and without framing.
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
func (f *fixture) is(what string, r Reply, status int, body string) {
	f.Helper()
	if r.Err != nil || r.Status != status || r.Body != body {
		f.Errorf("%s: got %v; want %d %s", what, r, status, quote(body))
	}
}

// refused requires that a Reply be stet's problem of that name.
func (f *fixture) refused(what string, r Reply, status int, problem string) {
	f.Helper()
	if r.Err != nil || r.Status != status || r.Problem() != problem {
		f.Errorf("%s: got %v; want %d and the problem %s", what, r, status, problem)
	}
}

// failed requires that the response is no success.
func (f *fixture) failed(what string, r Reply) {
	f.Helper()
	if r.Err == nil && r.Status < 500 {
		f.Errorf("%s: got %v; want 500 or above, or a connection that is cut", what, r)
	}
}

// loud requires that the log names the fault.
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
