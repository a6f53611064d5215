package adaptertest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
)

// bug is a defect of an adapter of net/http.
type bug struct {
	name   string
	claims []string // that it breaks, and no others
	outer  func(w http.ResponseWriter, r *http.Request, protected, plain http.Handler)
	inner  func(w http.ResponseWriter, r *http.Request, next http.Handler)
	call   func(c Call, outer context.Context) Call
	callTx func(c Call) Call
	tx     bool // has the outer and the inner bug in transactions alone

	stale  bool // ends the context of outer middleware
	once   bool // ignores Route.Twice
	typos  bool // protects requests without a route
	unmark bool // hides marks of errors
	noTx   bool // calls handlers without their transaction
}

type outerKey struct{}

// adapter is net/http with the bug.
func (b *bug) adapter() Adapter {
	around := func(tx bool, plain, protected http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r = r.WithContext(context.WithValue(r.Context(), outerKey{}, r.Context()))
			if b.outer == nil || b.tx && !tx {
				protected.ServeHTTP(w, r)
				return
			}
			b.outer(w, r, protected, plain)
		})
	}
	within := func(tx bool, h http.Handler) http.Handler {
		if b.inner == nil || b.tx && !tx {
			return h
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { b.inner(w, r, h) })
	}
	return Adapter{
		Serve: func(t testing.TB, m *stethttp.Middleware, routes []Route) string {
			mux := http.NewServeMux()
			for _, r := range routes {
				h := within(false, link(r.Inside, b.wrapped(r).Handler(nil)))
				protected := m.Handler(h)
				if r.Twice && !b.once {
					protected = m.Handler(protected)
				}
				mux.Handle(r.Method+" "+r.Path, link(r.Around, b.staled(around(false, h, protected))))
			}
			if b.typos {
				mux.Handle("/", m.Handler(http.NotFoundHandler()))
			}
			return Serve(t, mux)
		},
		ServeTx: func(t testing.TB, m *stethttp.TxMiddleware[*Tx], routes []Route) string {
			mux := http.NewServeMux()
			for _, r := range routes {
				if handle := r.HandleTx; b.callTx != nil {
					r.HandleTx = func(c Call, tx *Tx) error {
						if err := handle(b.callTx(c), tx); !errors.Is(err, errAnswered) {
							return err
						}
						return nil
					}
				}
				next := r.HandlerTx(nil)
				h := m.Handler(within(true, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if b.noTx && !stethttp.InTx(r.Context()) {
						next(w, r, nil)
						return
					}
					next(w, r, stethttp.Tx[*Tx](r.Context()))
				})))
				if r.Twice && !b.once {
					h = m.Handler(h)
				}
				mux.Handle(r.Method+" "+r.Path, around(true, nil, h))
			}
			return Serve(t, mux)
		},
		Chains: true,
	}
}

// wrapped is a route with the bugs of what handlers get and return.
func (b *bug) wrapped(r Route) Route {
	handle := r.Handle
	if b.unmark {
		r.Handle = func(c Call) error {
			if err := handle(c); err != nil {
				return errBank
			}
			return nil
		}
	}
	if b.call == nil {
		return r
	}
	r.Handle = func(c Call) error {
		return handle(b.call(c, c.(*httpCall).r.Context().Value(outerKey{}).(context.Context)))
	}
	return r
}

// staled is h with the bug that outer middleware has a context that has ended.
func (b *bug) staled(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.stale {
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			*r = *r.WithContext(ctx)
		}
		h.ServeHTTP(w, r)
	})
}

func TestBrokenAdaptersFailTheirCaseAlone(t *testing.T) {
	was := patience
	patience = 2 * time.Second
	t.Cleanup(func() { patience = was })
	var mu sync.Mutex
	idle := make(map[string]bool)
	t.Cleanup(func() {
		for claim := range idle {
			t.Errorf("no broken adapter fails %q: that claim was never seen to fail", claim)
		}
	})
	for _, c := range casesOf(netHTTP) {
		idle[c.name] = true
	}
	for i := range broken {
		b := &broken[i]
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			failed := map[string]bool{}
			for _, c := range casesOf(netHTTP) {
				a := b.adapter()
				a.fill(t)
				rec := observe(t, c, a)
				if !rec.Failed() {
					continue
				}
				failed[c.name] = true
				mu.Lock()
				delete(idle, c.name)
				mu.Unlock()
				if !strings.Contains(rec.Text(), "why this is required: "+c.why) {
					t.Errorf("%q fails without its reason:\n%s", c.name, rec.Text())
				}
			}
			got, want := slices.Sorted(maps.Keys(failed)), slices.Sorted(slices.Values(b.claims))
			if !slices.Equal(got, want) {
				t.Errorf("an adapter that %s fails\n\t%s\nwant\n\t%s", b.name, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
			}
		})
	}
}

// broken are bugs that adapters have, or may have.
var broken = []bug{
	{name: "cuts replays at NUL", claims: []string{"replay byte for byte"},
		outer: func(w http.ResponseWriter, r *http.Request, protected, _ http.Handler) {
			protected.ServeHTTP(&rewriter{ResponseWriter: w, body: func(w *rewriter, p []byte) []byte {
				if w.Header().Get("Idempotent-Replayed") != "" {
					p, _, _ = bytes.Cut(p, []byte{0})
				}
				return p
			}}, r)
		}},
	{name: "waits for a write before it takes 204 for a response", claims: []string{"204"},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(&rewriter{ResponseWriter: w, status: func(_ *rewriter, status int) int {
				if status == 204 {
					return 0
				}
				return status
			}}, r)
		}},
	{name: "writes a status alone when all middleware has returned", claims: []string{"status alone", "404 of a handler", "abort without body", "transaction rolled back on abort"},
		outer: func(w http.ResponseWriter, r *http.Request, protected, _ http.Handler) {
			var late int
			protected.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), lateKey{}, &late)))
			if late != 0 {
				w.WriteHeader(late)
			}
		},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			noted := &rewriter{ResponseWriter: w}
			noted.status = func(_ *rewriter, status int) int {
				if status == 204 {
					return status
				}
				noted.note = status
				return 0
			}
			noted.body = func(_ *rewriter, p []byte) []byte {
				if noted.note != 0 {
					w.WriteHeader(noted.note)
					noted.note = 0
				}
				return p
			}
			next.ServeHTTP(noted, r)
			*r.Context().Value(lateKey{}).(*int) = noted.note
		}},
	{name: "drops bytes that are written without a status", claims: []string{"implicit 200", "streaming", "SSE"},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(&rewriter{ResponseWriter: w, body: func(w *rewriter, p []byte) []byte {
				if !w.wrote {
					return nil
				}
				return p
			}}, r)
		}},
	{name: "makes an empty 200 of nothing", claims: []string{"nothing written", "transaction without a response"},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			in := &rewriter{ResponseWriter: w}
			next.ServeHTTP(in, r)
			if !in.wrote {
				w.WriteHeader(200)
			}
		}},
	{name: "takes nothing for a failure of its own", claims: []string{"nothing written", "nothing written, which is allowed", "transaction without a response"},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			in := &rewriter{ResponseWriter: w}
			next.ServeHTTP(in, r)
			if !in.wrote {
				http.Error(w, "nothing", 500)
			}
		}},
	{name: "answers errors outside", claims: []string{"marked error", "returned error", "transaction rolled back on error"},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			in := &rewriter{ResponseWriter: w}
			in.status = func(_ *rewriter, status int) int {
				if status == 500 {
					return 0
				}
				return status
			}
			in.body = func(_ *rewriter, p []byte) []byte {
				if in.dropped {
					return nil
				}
				return p
			}
			next.ServeHTTP(in, r)
		}},
	{name: "drops failures without a body", claims: []string{"404 of a handler", "abort without body", "transaction rolled back on abort"},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			in := &rewriter{ResponseWriter: w}
			in.status = func(_ *rewriter, status int) int {
				if status >= 400 {
					in.note = status
					return 0
				}
				return status
			}
			in.body = func(_ *rewriter, p []byte) []byte {
				if in.note != 0 {
					w.WriteHeader(in.note)
					in.note = 0
				}
				return p
			}
			next.ServeHTTP(in, r)
		}},
	{name: "drops the reason of a failure", claims: []string{"abort with body"},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(&rewriter{ResponseWriter: w, body: func(w *rewriter, p []byte) []byte {
				if w.code == 402 {
					return nil
				}
				return p
			}}, r)
		}},
	{name: "takes a panic for a response", claims: []string{"panic", "panic after a write", "panic with a value", "panic after a flush", "transaction rolled back on panic", "no transaction"},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			defer func() {
				if recover() != nil {
					w.WriteHeader(200)
				}
			}()
			next.ServeHTTP(w, r)
		}},
	{name: "takes bytes before a panic for the response", claims: []string{"panic after a write", "panic with a value", "panic after a flush"},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			in := &rewriter{ResponseWriter: w}
			defer func() {
				if p := recover(); p != nil && !in.wrote {
					panic(p)
				}
			}()
			next.ServeHTTP(in, r)
		}},
	{name: "drops Retry-After", claims: []string{"not executed"},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(&rewriter{ResponseWriter: w, status: func(in *rewriter, status int) int {
				in.Header().Del("Retry-After")
				return status
			}}, r)
		}},
	{name: "takes the last of two keys", claims: []string{"repeated key"},
		outer: func(w http.ResponseWriter, r *http.Request, protected, _ http.Handler) {
			if keys := r.Header["Idempotency-Key"]; len(keys) > 1 {
				r.Header["Idempotency-Key"] = keys[1:]
			}
			protected.ServeHTTP(w, r)
		}},
	{name: "lets requests without a key pass", claims: []string{"missing key", "key in the body", "replays end the chain"},
		outer: func(w http.ResponseWriter, r *http.Request, protected, plain http.Handler) {
			if len(r.Header["Idempotency-Key"]) == 0 {
				protected = plain
			}
			protected.ServeHTTP(w, r)
		}},
	{name: "hides the body from the middleware", claims: []string{"another request with the key", "body that is too large", "key in the body", "replays end the chain"},
		outer: func(w http.ResponseWriter, r *http.Request, protected, _ http.Handler) {
			body, _ := io.ReadAll(r.Body)
			r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, body))
			r.Body, r.ContentLength = http.NoBody, 0
			r.Header.Del("Content-Length")
			protected.ServeHTTP(w, r)
		},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			r.Body = io.NopCloser(bytes.NewReader(r.Context().Value(bodyKey{}).([]byte)))
			next.ServeHTTP(w, r)
		}},
	{name: "has one account for all", claims: []string{"keys of two accounts"},
		outer: func(w http.ResponseWriter, r *http.Request, protected, _ http.Handler) {
			r.Header.Set("Account", "a")
			protected.ServeHTTP(w, r)
		}},
	{name: "calls the handler with a request of its own", claims: []string{"route parameters", "called again", "transaction called again"},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			own, _ := http.NewRequestWithContext(r.Context(), r.Method, r.URL.String(), r.Body)
			own.Header = r.Header
			next.ServeHTTP(w, own)
		}},
	{name: "hides the run", claims: []string{"run in the context"},
		call: func(c Call, _ context.Context) Call { return otherContext{c, context.Background()} }},
	{name: "ends the handler's context with the client", claims: []string{"client that leaves"},
		call: func(c Call, outer context.Context) Call {
			ctx, cancel := context.WithCancel(c.Context())
			context.AfterFunc(outer, cancel)
			return otherContext{c, ctx}
		}},
	{name: "runs duplicates beside", claims: []string{"duplicate while running", "client that leaves"}, outer: besides()},
	{name: "flushes nothing", claims: []string{"streaming", "SSE"},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(&rewriter{ResponseWriter: w, flush: func(*rewriter) bool { return false }}, r)
		}},
	{name: "holds events back", claims: []string{"SSE"},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(&rewriter{ResponseWriter: w, flush: func(in *rewriter) bool {
				return in.Header().Get("Content-Type") != "text/event-stream"
			}}, r)
		}},
	{name: "has one buffer for all responses", claims: []string{"late write"}, inner: oneBuffer()},
	{name: "lets a handler hijack", claims: []string{"hijack"},
		outer: func(w http.ResponseWriter, r *http.Request, protected, _ http.Handler) {
			protected.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), rawKey{}, w)))
		},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(hijacker{w, r.Context().Value(rawKey{}).(http.ResponseWriter)}, r)
		}},
	{name: "leaves the context of the run behind", stale: true, claims: []string{"replays end the chain"}},
	{name: "protects once a handler that is registered twice", once: true, claims: []string{"protected twice", "transaction, protected twice"}},
	{name: "keeps the answer to a typo", typos: true, claims: []string{"unknown route"}},
	{name: "runs again after a 404", claims: []string{"404 of a handler"}, outer: insteadOf(404)},
	{name: "hides marks of errors", unmark: true, claims: []string{"marked error"}},
	{name: "calls a handler without its transaction", noTx: true, claims: []string{"no transaction"}},
	{name: "loses the body of a second call", claims: []string{"called again", "transaction called again"},
		outer: func(w http.ResponseWriter, r *http.Request, protected, _ http.Handler) {
			protected.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), lateKey{}, new(int))))
		},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			calls := r.Context().Value(lateKey{}).(*int)
			if *calls++; *calls > 1 {
				r.Body = http.NoBody
			}
			next.ServeHTTP(w, r)
		}},
	{name: "loses the body of a request that passes", claims: []string{"key in the body"},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if stet.FromContext(r.Context()) == nil {
				r.Body = http.NoBody
			}
			next.ServeHTTP(w, r)
		}},
	{name: "hides a refusal from the middleware", tx: true, claims: []string{"transaction committed with a refusal"}, outer: outside(status(504, 422)), inner: status(422, 504)},
	{name: "lets HEAD pass", claims: []string{"HEAD"},
		outer: func(w http.ResponseWriter, r *http.Request, protected, plain http.Handler) {
			if r.Method == "HEAD" {
				protected = plain
			}
			protected.ServeHTTP(w, r)
		}},
	{name: "cuts the body of a request", claims: []string{"large body"},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			r.Body = io.NopCloser(io.LimitReader(r.Body, 64<<10))
			next.ServeHTTP(w, r)
		}},
	{name: "runs large bodies unprotected", claims: []string{"body that is too large"}, outer: insteadOf(413)},
	{name: "runs again if the response is not stored", claims: []string{"response that is too large to store"}, outer: insteadOf(410)},
	{name: "runs unprotected without a store", claims: []string{"store that is down"}, outer: func(w http.ResponseWriter, r *http.Request, protected, plain http.Handler) {
		insteadOf(503, "application/problem+json")(w, r, protected, plain)
	}},
	{name: "answers before the outcome is durable", claims: []string{"outcome that is not durable", "transaction that is not committed"}, outer: answersAnyway, inner: notes},
	{name: "answers before the commit", tx: true, claims: []string{"transaction that is not committed"}, outer: answersAnyway, inner: notes},
	{name: "hides a status from the middleware", tx: true, claims: []string{"transaction rolled back on 5xx"}, outer: outside(status(200, 502)), inner: status(502, 200)},
	{name: "writes an abort's status later", tx: true, claims: []string{"transaction rolled back on abort"}, outer: outside(status(204, 503)), inner: status(503, 204)},
	{name: "answers an error, and does not return it", tx: true, claims: []string{"transaction rolled back on an error with a status"},
		callTx: func(c Call) Call { return answering{c} }},
	{name: "commits twice", tx: true, claims: []string{"transaction", "transaction committed with a refusal", "transaction rolled back on error", "transaction rolled back on 5xx", "transaction rolled back on abort",
		"transaction rolled back on panic", "transaction without a response", "transaction that is not committed", "transaction called again"},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			stethttp.Tx[*Tx](r.Context()).Insert("again")
			next.ServeHTTP(w, r)
		}},
}

// observe tries a case, which may fail.
func observe(t *testing.T, c testCase, a Adapter) *stettest.Recorder {
	t.Helper()
	return stettest.Record(t, nil, func(t testing.TB) { c.do(t, a) })
}
