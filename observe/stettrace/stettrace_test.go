package stettrace_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/observe/stettrace"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Canaries: none of these may be in a span.
const (
	key   = "canary-key"
	scope = "canary-scope"
	body  = "canary-body"
	path  = "/canary-path"
)

// process is a service with tracing, over a store that it may share.
type process struct {
	t        *testing.T
	recorder *tracetest.SpanRecorder
	provider *sdk.TracerProvider
	tracer   *stettrace.Tracer
	engine   *stet.Engine
	handler  http.Handler
	dump     exporter
	next     atomic.Int64 // events of the next observer
}

func start(t *testing.T, store store.Store, policy stet.Policy, h http.HandlerFunc) *process {
	t.Helper()
	p := &process{t: t, recorder: tracetest.NewSpanRecorder()}
	p.provider = sdk.NewTracerProvider(sdk.WithSpanProcessor(p.recorder), sdk.WithSyncer(&p.dump))
	t.Cleanup(func() { _ = p.provider.Shutdown(context.Background()) })
	p.tracer = stettrace.New(stettrace.Options{Provider: p.provider})
	engine := stettest.Engine(t, store, stet.Options{Classes: map[string]stet.Policy{"payments": policy}, Observer: observe.Join(p.tracer, observe.Func(func(context.Context, observe.Event) { p.next.Add(1) })), SweepEvery: -1})
	p.engine = engine
	o := stethttp.Options{
		Scope: func(*http.Request) (string, error) { return scope, nil },
		Class: func(*http.Request) string { return "payments" },
	}
	m, err := stethttp.New(engine, o)
	if tx, ok := store.(*sqlite.Store); ok {
		var inTx *stethttp.TxMiddleware[*sql.Tx]
		if inTx, err = stethttp.NewTx(stettest.TxEngine(engine, tx), o); err == nil {
			m = inTx.Middleware
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	p.handler = p.tracer.Middleware(m.Handler)(h)
	return p
}

// send serves a request as a server does, below a span of its own.
func (p *process) send(method, key, body string) *httptest.ResponseRecorder {
	ctx, span := p.provider.Tracer("test").Start(p.t.Context(), "server")
	defer span.End()
	r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	w := httptest.NewRecorder()
	defer func() {
		if v := recover(); v != nil && v != "canary panic" {
			panic(v)
		}
	}()
	p.handler.ServeHTTP(w, r)
	return w
}

// spans returns the spans since the last call, without the server's, and that.
func (p *process) spans() (ours []sdk.ReadOnlySpan, server sdk.ReadOnlySpan) {
	for _, s := range p.recorder.Ended() {
		if s.Name() == "server" {
			server = s
		} else {
			ours = append(ours, s)
		}
	}
	p.recorder.Reset()
	return ours, server
}

// names are the spans since the last call, in the order of their beginning, with
// their last event and their status.
func (p *process) names() string {
	ours, _ := p.spans()
	slices.SortStableFunc(ours, func(a, b sdk.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	var list []string
	for _, s := range ours {
		name := strings.TrimPrefix(s.Name(), "stet ")
		if ev := get(s, "stet.event"); ev != "" {
			name += " " + ev
		}
		if s.Status().Code == codes.Error {
			name += "!"
		}
		list = append(list, name)
	}
	return strings.Join(list, ", ")
}

func get(s sdk.ReadOnlySpan, name string) string {
	for _, kv := range s.Attributes() {
		if string(kv.Key) == name {
			return kv.Value.String()
		}
	}
	return ""
}

func pay(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusCreated)
	_, _ = io.Copy(w, r.Body)
}

func stores(t *testing.T) map[string]store.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "s.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return map[string]store.Store{"lease": memory.New(memory.Options{}), "tx": s}
}

func TestRunHasSpansOfClaimHandlerAndSettling(t *testing.T) {
	for name, store := range stores(t) {
		t.Run(name, func(t *testing.T) {
			var within trace.SpanContext
			p := start(t, store, stet.Policy{}, func(w http.ResponseWriter, r *http.Request) {
				within = trace.SpanContextFromContext(r.Context())
				pay(w, r)
			})
			if w := p.send(http.MethodPost, key, body); w.Code != http.StatusCreated {
				t.Fatalf("got %d %s; want w.Code == http.StatusCreated", w.Code, w.Body)
			}
			spans, server := p.spans()
			if len(spans) != 3 {
				t.Fatalf("%d spans", len(spans))
			}
			claim, handler, settle := spans[0], spans[1], spans[2]
			for i, want := range []string{stettrace.SpanClaim, stettrace.SpanHandler, stettrace.SpanSettle} {
				s := spans[i]
				if s.Name() != want || s.Parent().SpanID() != server.SpanContext().SpanID() || s.EndTime().Before(s.StartTime()) ||
					get(s, "stet.class") != "payments" || get(s, "stet.attempt") != "1" || get(s, "stet.id") != p.engine.ID(scope, key).String() {
					t.Errorf("%s: %v, %v to %v", s.Name(), s.Attributes(), s.StartTime(), s.EndTime())
				}
			}
			if handler.SpanContext().SpanID() != within.SpanID() {
				t.Error("the handler is not within its span")
			}
			if claim.EndTime().After(handler.StartTime()) || handler.EndTime().After(settle.StartTime()) {
				t.Errorf("they overlap: %v, %v to %v, %v", claim.EndTime(), handler.StartTime(), handler.EndTime(), settle.StartTime())
			}
			if get(claim, "stet.state") != "running" || get(settle, "stet.state") != "completed" || get(settle, "stet.replayed") != "false" {
				t.Errorf("claim %v, settle %v", claim.Attributes(), settle.Attributes())
			}
			if p.next.Load() != 2 {
				t.Errorf("the next observer got %d events", p.next.Load())
			}
		})
	}
}

func TestReplayLinksToTheHandlersSpanOfAnotherProcess(t *testing.T) {
	for name, store := range stores(t) {
		t.Run(name, func(t *testing.T) {
			first, second := start(t, store, stet.Policy{}, pay), start(t, store, stet.Policy{}, pay)
			first.send(http.MethodPost, key, body)
			ran, _ := first.spans()
			for range 2 {
				if w := second.send(http.MethodPost, key, body); w.Header().Get("Idempotent-Replayed") != "true" {
					t.Fatalf("got %d %v; want w.Header().Get(\"Idempotent-Replayed\") == \"true\"", w.Code, w.Header())
				}
				spans, server := second.spans()
				if len(spans) != 1 || spans[0].Name() != stettrace.SpanClaim || get(spans[0], "stet.replayed") != "true" ||
					get(spans[0], "stet.state") != "completed" || get(spans[0], "stet.attempt") != "1" {
					t.Fatalf("%v", spans)
				}
				links := spans[0].Links()
				if len(links) != 1 || !links[0].SpanContext.Equal(ran[1].SpanContext().WithRemote(true)) {
					t.Errorf("links %v; want one to %v", links, ran[1].SpanContext())
				}
				if spans[0].SpanContext().TraceID() != server.SpanContext().TraceID() || server.SpanContext().TraceID() == ran[1].SpanContext().TraceID() {
					t.Error("the replay is not in its own trace")
				}
			}
		})
	}
}

// errStore fails on demand, with a secret in the error.
type errStore struct {
	*memory.Store
	err error
}

func (s *errStore) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	if s.err != nil {
		return store.Record{}, s.err
	}
	return s.Store.Claim(ctx, req)
}

// happen makes everything happen that a request can come to.
func happen(t *testing.T) (p *process, seen map[string]string) {
	t.Helper()
	store := &errStore{Store: memory.New(memory.Options{})}
	verify := func(_ context.Context, st stet.Status) (stet.Resolution, error) {
		return stet.CannotKnow(), fmt.Errorf("no answer for %s of %s", st.Op.Key, st.Op.Scope)
	}
	entered, goOn := make(chan struct{}), make(chan struct{})
	p = start(t, store, stet.Policy{Verify: verify, RunTimeout: time.Hour}, func(w http.ResponseWriter, r *http.Request) {
		switch run := stet.FromContext(r.Context()); r.Header.Get("Idempotency-Key") {
		case key + "-panic":
			panic("canary panic")
		case key + "-unknown":
			run.Declare(stet.MayHaveExecuted, 0)
		case key + "-nothing":
			run.Declare(stet.NotExecuted, 0)
		case key + "-slow":
			entered <- struct{}{}
			<-goOn
		}
		pay(w, r)
	})
	seen = map[string]string{}
	send := func(what, key, body string) {
		p.send(http.MethodPost, key, body)
		seen[what] = p.names()
	}
	send("run", key, body)
	send("mismatch", key, body+"2")
	send("nothing", key+"-nothing", body)
	send("panic", key+"-panic", body)
	send("panic again", key+"-panic", body)
	send("unknown", key+"-unknown", body)
	send("unknown again", key+"-unknown", body)
	send("malformed", "", body)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.send(http.MethodPost, key+"-slow", body)
	}()
	<-entered
	seen["slow begins"] = p.names()
	send("in flight", key+"-slow", body)
	goOn <- struct{}{}
	<-done
	seen["slow"] = p.names()
	store.err = errors.New("cannot write " + key + " of " + scope)
	send("store", key+"-store", body)
	return p, seen
}

func TestSpansHaveTheOutcomeOfARequest(t *testing.T) {
	_, seen := happen(t)
	for what, want := range map[string]string{
		"run":           "claim claimed, handler, settle settled",
		"mismatch":      "claim mismatched",
		"nothing":       "claim claimed, handler, settle released",
		"panic":         "claim claimed, handler!, settle settled",
		"panic again":   "claim replayed",
		"unknown":       "claim claimed, handler, settle marked_unknown!",
		"unknown again": "claim told_unknown!",
		"malformed":     "",
		"in flight":     "claim in_flight",
		"slow begins":   "claim claimed",
		"slow":          "handler, settle settled",
		"store":         "claim store_failed!",
	} {
		if seen[what] != want {
			t.Errorf("%s: %q, want %q", what, seen[what], want)
		}
	}
}

func TestNoKeyScopePathOrBodyIsInASpan(t *testing.T) {
	p, _ := happen(t)
	_, _ = stet.Do(p.t.Context(), p.engine, stet.Op{Scope: scope, Key: key + "-do", Class: "payments"}, func(context.Context) (string, error) { return body, nil })
	if p.dump.spans < 20 || strings.Contains(p.dump.text.String(), "canary") {
		t.Errorf("%d spans: %s", p.dump.spans, p.dump.text.String())
	}
}

// exporter writes down all that it is given.
type exporter struct {
	text  strings.Builder
	spans int
}

func (e *exporter) ExportSpans(_ context.Context, spans []sdk.ReadOnlySpan) error {
	for _, s := range tracetest.SpanStubsFromReadOnlySpans(spans) {
		e.spans++
		fmt.Fprintf(&e.text, "%+v\n", s)
	}
	return nil
}

func (e *exporter) Shutdown(context.Context) error { return nil }

func TestRequestsThatAreNotProtectedHaveNoSpan(t *testing.T) {
	p := start(t, memory.New(memory.Options{}), stet.Policy{}, pay)
	p.send(http.MethodGet, key, "")
	if names := p.names(); names != "" || p.next.Load() != 0 {
		t.Errorf("%s, %d events", names, p.next.Load())
	}
}

func TestHandlerThatTimesOutIsAnError(t *testing.T) {
	p := start(t, memory.New(memory.Options{}), stet.Policy{RunTimeout: time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		pay(w, r)
	})
	p.send(http.MethodPost, key, body)
	if names := p.names(); !strings.HasPrefix(names, "claim claimed, handler!, settle ") {
		t.Error(names)
	}
}

// An operation that the handler begins is an event of the handler's span. An operation without
// a middleware is an event of the caller's.
func TestOtherOperationsAreEventsOfTheCallersSpan(t *testing.T) {
	var p *process
	p = start(t, memory.New(memory.Options{}), stet.Policy{}, func(w http.ResponseWriter, r *http.Request) {
		_, err := stet.Do(r.Context(), p.engine, stet.Op{Scope: scope, Key: key + "-inner", Class: "payments"}, func(context.Context) (int, error) { return 1, nil })
		if err != nil {
			t.Error(err)
		}
		pay(w, r)
	})
	p.send(http.MethodPost, key, body)
	spans, _ := p.spans()
	if len(spans) != 3 || len(spans[1].Events()) != 2 || spans[1].Events()[0].Name != "stet.claimed" || spans[1].Events()[1].Name != "stet.settled" {
		t.Fatalf("got %v; want len(spans) == 3, len(spans[1].Events()) == 2, spans[1].Events()[0].Name == \"stet.claimed\", spans[1].Events()[1].Name == \"stet.settled\"", spans)
	}
	inner := attribute.NewSet(spans[1].Events()[1].Attributes...)
	if v, _ := inner.Value("stet.state"); v.AsString() != "completed" {
		t.Errorf("got %v; want v.AsString() == \"completed\"", spans[1].Events())
	}
	if v, _ := inner.Value("stet.id"); v.AsString() != p.engine.ID(scope, key+"-inner").String() {
		t.Errorf("got %v; want v.AsString() == p.engine.ID(scope, key+\"-inner\").String()", spans[1].Events())
	}
}
