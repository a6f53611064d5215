package skintest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet/stethttp"
)

// bug is what is wrong with a skin of net/http.
type bug struct {
	name   string
	claims []string // that it breaks, and no others
	outer  func(w http.ResponseWriter, r *http.Request, protected, plain http.Handler)
	inner  func(w http.ResponseWriter, r *http.Request, next http.Handler)
	call   func(c Call, outer context.Context) Call
	callTx func(c Call) Call
	tx     bool // has the outer and the inner bug in transactions alone
}

type outerKey struct{}

// skin is net/http with the bug.
func (b *bug) skin() Skin {
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
	wrapped := func(r Route) Route {
		if b.call == nil {
			return r
		}
		handle := r.Handle
		r.Handle = func(c Call) error {
			return handle(b.call(c, c.(*httpCall).r.Context().Value(outerKey{}).(context.Context)))
		}
		return r
	}
	return Skin{
		Serve: func(t testing.TB, m *stethttp.Middleware, routes []Route) string {
			mux := http.NewServeMux()
			for _, r := range routes {
				h := within(false, wrapped(r).Handler(nil))
				mux.Handle(r.Method+" "+r.Path, around(false, h, m.Handler(h)))
			}
			return Serve(t, mux)
		},
		ServeTx: func(t testing.TB, m *stethttp.TxMiddleware[*Tx], routes []Route) string {
			mux := http.NewServeMux()
			for _, r := range routes {
				if handle := r.HandleTx; b.callTx != nil {
					r.HandleTx = func(c Call, tx *Tx) error { return handle(b.callTx(c), tx) }
				}
				next := r.HandlerTx(nil)
				h := m.Handler(within(true, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					next(w, r, stethttp.Tx[*Tx](r.Context()))
				})))
				mux.Handle(r.Method+" "+r.Path, around(true, nil, h))
			}
			return Serve(t, mux)
		},
	}
}

func TestBrokenSkinsFailTheirCaseAlone(t *testing.T) {
	was := patience
	patience = 2 * time.Second
	t.Cleanup(func() { patience = was })
	var mu sync.Mutex
	idle := make(map[string]bool)
	t.Cleanup(func() {
		for claim := range idle {
			t.Errorf("no broken skin fails %q: that claim was never seen to fail", claim)
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
				skin := b.skin()
				skin.fill(t)
				rec := observe(t, c, skin)
				if !rec.Failed() {
					continue
				}
				failed[c.name] = true
				mu.Lock()
				delete(idle, c.name)
				mu.Unlock()
				if !strings.Contains(rec.text(), "why this is required: "+c.why) {
					t.Errorf("%q fails without its reason:\n%s", c.name, rec.text())
				}
			}
			got, want := slices.Sorted(maps.Keys(failed)), slices.Sorted(slices.Values(b.claims))
			if !slices.Equal(got, want) {
				t.Errorf("a skin that %s fails\n\t%s\nwant\n\t%s", b.name, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
			}
		})
	}
}

// broken are bugs that skins have, or may have.
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
	{name: "writes a status alone when all middleware has returned", claims: []string{"status alone", "abort without body", "transaction rolled back on abort"},
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
	{name: "drops what is written without a status", claims: []string{"implicit 200", "streaming", "SSE"},
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
	{name: "answers errors outside", claims: []string{"returned error", "transaction rolled back on error"},
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
	{name: "drops failures without a body", claims: []string{"abort without body", "transaction rolled back on abort"},
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
	{name: "takes a panic for a response", claims: []string{"panic", "panic after a write", "transaction rolled back on panic"},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			defer func() {
				if recover() != nil {
					w.WriteHeader(200)
				}
			}()
			next.ServeHTTP(w, r)
		}},
	{name: "takes what was written before a panic for the response", claims: []string{"panic after a write"},
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
	{name: "lets requests without a key pass", claims: []string{"missing key"},
		outer: func(w http.ResponseWriter, r *http.Request, protected, plain http.Handler) {
			if len(r.Header["Idempotency-Key"]) == 0 {
				protected = plain
			}
			protected.ServeHTTP(w, r)
		}},
	{name: "hides the body from the middleware", claims: []string{"another request with the key", "body that is too large"},
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
	{name: "calls the handler with a request of its own", claims: []string{"route parameters"},
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
	{name: "runs unprotected what is too large", claims: []string{"body that is too large"}, outer: insteadOf(413)},
	{name: "runs again what is not kept", claims: []string{"response that is too large to keep"}, outer: insteadOf(410)},
	{name: "runs unprotected without a store", claims: []string{"store that is down"}, outer: func(w http.ResponseWriter, r *http.Request, protected, plain http.Handler) {
		insteadOf(503, "application/problem+json")(w, r, protected, plain)
	}},
	{name: "answers before the outcome is durable", claims: []string{"outcome that is not durable", "transaction that is not committed"}, outer: answersAnyway, inner: notes},
	{name: "answers before the commit", tx: true, claims: []string{"transaction that is not committed"}, outer: answersAnyway, inner: notes},
	{name: "hides a status from the middleware", tx: true, claims: []string{"transaction rolled back on 5xx"}, outer: outside(status(200, 502)), inner: status(502, 200)},
	{name: "writes an abort's status later", tx: true, claims: []string{"transaction rolled back on abort"}, outer: outside(status(204, 503)), inner: status(503, 204)},
	{name: "answers an error, and does not tell of it", tx: true, claims: []string{"transaction rolled back on an error with a status"},
		callTx: func(c Call) Call { return answering{c} }},
	{name: "commits twice", tx: true, claims: []string{"transaction", "transaction rolled back on error", "transaction rolled back on 5xx", "transaction rolled back on abort",
		"transaction rolled back on panic", "transaction without a response", "transaction that is not committed"},
		inner: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			stethttp.Tx[*Tx](r.Context()).Insert("again")
			next.ServeHTTP(w, r)
		}},
}

// recorder is a testing.TB that notes down what a case says.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failed   bool
	lines    []string
	cleanups []func()
}

// observe tries a case, which may fail.
func observe(t *testing.T, c testCase, skin Skin) *recorder {
	return observing(t, func(t testing.TB) { c.do(t, skin) })
}

func observing(t *testing.T, do func(testing.TB)) *recorder {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for _, f := range slices.Backward(r.cleanups) {
				f()
			}
		}()
		do(r)
	}()
	<-done
	return r
}

func (r *recorder) text() string { return strings.Join(r.lines, "\n") }

func (r *recorder) note(fail bool, line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || fail
	r.lines = append(r.lines, line)
}

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Helper()                           {}
func (r *recorder) Logf(format string, args ...any)   { r.note(false, fmt.Sprintf(format, args...)) }
func (r *recorder) Error(args ...any)                 { r.note(true, fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.note(true, fmt.Sprintf(format, args...)) }
func (r *recorder) Fatal(args ...any)                 { r.Error(args...); runtime.Goexit() }
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); runtime.Goexit() }
