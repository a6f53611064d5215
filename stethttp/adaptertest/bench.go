package adaptertest

import (
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
)

// Bench has a middleware for an adapter's own tests, over a store in memory. It is for
// promises that only one framework can keep or break; the others are cases of Run.
type Bench struct {
	Middleware *stethttp.Middleware
	Tx         *stethttp.TxMiddleware[*Tx]

	t      testing.TB
	engine *stet.Engine
	store  *books
	log    *journal
}

// NewBench returns a bench. The default of Options.Scope is stethttp.SingleTenant.
// Options.ErrorLog is replaced. Tx has the same options without Tries.
func NewBench(t testing.TB, eo stet.Options, o stethttp.Options) *Bench {
	t.Helper()
	b := &Bench{t: t, store: newBooks(), log: &journal{}}
	if o.Scope == nil {
		o.Scope = stethttp.SingleTenant
	}
	o.ErrorLog = slog.New(slog.NewTextHandler(b.log, nil))
	engine, err := stet.New(b.store, eo)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	b.engine, b.Middleware = engine, stethttp.Must(stethttp.New(engine, o))
	te, err := stet.WithTx(engine, b.store)
	if err != nil {
		t.Fatal(err)
	}
	o.Tries = 0
	b.Tx = stethttp.Must(stethttp.NewTx(te, o))
	return b
}

// Engine returns the engine of both middlewares.
func (b *Bench) Engine() *stet.Engine { return b.engine }

// Overtake has the next transaction roll back because another one was faster, which is then
// rolled back, too. A request with the header "Prefer: wait=10" calls its handler again.
func (b *Bench) Overtake() { b.store.overtaken.Store(true) }

// WantLog requires that Options.ErrorLog has received text n times.
func (b *Bench) WantLog(text string, n int) {
	b.t.Helper()
	if got := strings.Count(b.log.String(), text); got != n {
		b.t.Errorf("the log has %q %d times; want %d: %s", text, got, n, b.log)
	}
}

// WantRows requires that n rows are committed.
func (b *Bench) WantRows(n int) {
	b.t.Helper()
	if got := b.store.committed(); got != n {
		b.t.Errorf("%d rows are committed; want %d", got, n)
	}
}

// Reply is a response as the client received it. Err is set if it received none, or a
// part of it.
type Reply struct {
	Status int
	Header http.Header
	Body   string
	Err    error

	t testing.TB
}

// Send sends a request with pairs of header names and values, and with key "k" unless they
// have Idempotency-Key. A field with the value "-" is not sent. Redirects are not followed.
func Send(t testing.TB, method, url, body string, header ...string) Reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.GetBody = nil // the client must not send it twice
	req.Header.Set(stethttp.DefaultHeader, "k")
	setHeader(req.Header, header)
	return Do(t, req)
}

// Do sends a request. Redirects are not followed.
func Do(t testing.TB, req *http.Request) Reply {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: patience, CheckRedirect: stay}
	res, err := client.Do(req)
	return replyOf(t, res, err)
}

func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// setHeader sets pairs of names and values. A name that comes again adds a field; the value
// "-" deletes it.
func setHeader(h http.Header, pairs []string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		h.Del(pairs[i])
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "-" {
			h.Add(pairs[i], pairs[i+1])
		}
	}
}

// replyOf reads a response.
func replyOf(t testing.TB, res *http.Response, err error) Reply {
	if err != nil {
		return Reply{Err: err, t: t}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return Reply{res.StatusCode, res.Header, string(body), err, t}
}

// Replayed reports whether the response has the header of replays.
func (r Reply) Replayed() bool { return r.Header.Get(stethttp.DefaultReplayedHeader) == "true" }

// Want requires a response, which is or is not a replay.
func (r Reply) Want(status int, body string, replayed bool) {
	r.t.Helper()
	if r.Err != nil || r.Status != status || r.Body != body || r.Replayed() != replayed {
		r.t.Errorf("got %v, replayed %v; want %d %s, %v", r, r.Replayed(), status, quote(body), replayed)
	}
}

// WantProblem requires one problem document of that name, and nothing else.
func (r Reply) WantProblem(status int, name string) {
	r.t.Helper()
	if r.Err != nil || r.Status != status || r.Problem() != name || strings.Count(r.Body, "{") != 1 {
		r.t.Errorf("got %v; want %d and the problem %s", r, status, name)
	}
}

// Problem returns the name of the problem in a problem document; "" for other responses.
func (r Reply) Problem() string {
	if r.Header.Get("Content-Type") != "application/problem+json" {
		return ""
	}
	_, name, _ := strings.Cut(r.Body, stethttp.DefaultProblemBase)
	name, _, _ = strings.Cut(name, `"`)
	return name
}

// String shows the response.
func (r Reply) String() string {
	if r.Err != nil {
		return "no whole response: " + r.Err.Error()
	}
	body := r.Body
	if len(body) > 300 {
		body = body[:300] + "…"
	}
	return http.StatusText(r.Status) + " (" + strings.TrimSpace(strings.Join([]string{itoa(r.Status), quote(body)}, " ")) + ", " + show(r.Header) + ")"
}

// Same requires that two responses have the same status, body and header, apart from the
// fields that each response has for itself.
func (r Reply) Same(other Reply) {
	r.t.Helper()
	if r.Err != nil || other.Err != nil || r.Status != other.Status || r.Body != other.Body || !maps.EqualFunc(lasting(r.Header), lasting(other.Header), slices.Equal) {
		r.t.Errorf("these differ:\n%v\n%v", r, other)
	}
}

// WantPanic requires that wire panics with a text that has want in it.
func WantPanic(t testing.TB, want string, wire func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if text, _ := recover().(string); want == "" || !strings.Contains(text, want) {
			t.Errorf("it panics with %q; want %q", text, want)
		}
	}()
	wire()
}
