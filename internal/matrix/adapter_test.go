package matrix

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/dashboard"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/webhook"
	"github.com/stet-go/stet/stetmsg"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// All adapters name the same operation, and ask for the same.
const (
	scope, key, body = "scope", "key", "body"
	workName         = "work"
)

var (
	fingerprint = stet.NewFingerprint([]byte("POST"), []byte("/op"), nil, nil, []byte(body))
	quiet       = slog.New(slog.DiscardHandler)
	// errRepeatable is what Options.Retryable of stetmsg says may be repeated.
	errRepeatable = errors.New("may be repeated")
)

// world is a store, an engine over it, and the handler that all adapters call.
type world struct {
	t      *testing.T
	store  *lab
	engine *stet.Engine

	// handle is the handler. Its result is sent with status and mediaType
	// over HTTP, and an error with status.
	handle     func(context.Context) (string, error)
	status     int
	mediaType  string
	flush      bool              // over HTTP, part of the response leaves before handle is called
	harmless   bool              // the run has no effect
	fp         store.Fingerprint // of the request, except over HTTP
	encryption stet.Encryption

	current *stetwork.Worker // that runs an accepted operation first

	runs, effects int
}

// newWorld returns a world over store, or over a new one. It is closed with the test.
func newWorld(t *testing.T, store *lab, o stet.Options) *world {
	t.Helper()
	if store == nil {
		store = &lab{Store: memory.New(memory.Options{})}
	}
	w := &world{t: t, store: store, status: http.StatusOK, fp: fingerprint}
	retention := webhook.Policy().Retention
	o.Policy.Retention = retention
	w.engine = must(stet.New(store, o))
	t.Cleanup(func() { _ = w.engine.Close() })
	return w
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (w *world) op() stet.Op { return stet.Op{Scope: scope, Key: key, Fingerprint: w.fp} }

func (w *world) record() store.Record {
	return must(w.store.Store.Look(context.Background(), w.engine.ID(scope, key)))
}

// run is one call of the handler, in a transaction unless that is nil.
func (w *world) run(ctx context.Context, t *tx) (string, error) {
	w.runs++
	switch {
	case w.harmless:
	case t == nil:
		w.effects++
	default:
		t.writes = append(t.writes, func() error { w.effects++; return nil })
	}
	return w.handle(ctx)
}

// respond is the handler over HTTP.
func (w *world) respond(rw http.ResponseWriter, r *http.Request, t *tx) {
	if w.mediaType != "" {
		rw.Header().Set("Content-Type", w.mediaType)
	}
	status := w.status
	if w.flush {
		rw.WriteHeader(status)
		_, _ = rw.Write([]byte("part of "))
		rw.(http.Flusher).Flush()
	}
	text, err := w.run(r.Context(), t)
	if err != nil {
		text = err.Error()
	}
	rw.WriteHeader(status)
	if status != http.StatusNoContent {
		_, _ = rw.Write([]byte(text))
	}
}

func ask(h http.Handler, method, path, content string) string {
	r := httptest.NewRequest(method, path, strings.NewReader(content))
	r.Header.Set("Idempotency-Key", key)
	rec := httptest.NewRecorder()
	how := ended(func() { h.ServeHTTP(rec, r) })
	return response(rec, how)
}

func (w *world) middleware(inTx bool) *stethttp.Middleware {
	o := stethttp.Options{Scope: func(*http.Request) (string, error) { return scope, nil }, ErrorLog: quiet}
	if inTx {
		return must(stethttp.NewTx(stettest.TxEngine(w.engine, w.store), o)).Middleware
	}
	return must(stethttp.New(w.engine, o))
}

// http asks the middleware.
func (w *world) http(inTx bool) string {
	h := w.middleware(inTx).Handler(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var t *tx
		if inTx {
			t = stethttp.Tx[*tx](r.Context())
		}
		w.respond(rw, r, t)
	}))
	return ask(h, "POST", "/op", body)
}

// do asks Do or DoTx.
func (w *world) do(inTx bool) (answer string) {
	how := ended(func() {
		var res stet.Result[string]
		var err error
		if inTx {
			res, err = stet.DoTx(context.Background(), stettest.TxEngine(w.engine, w.store), w.op(), w.run)
		} else {
			res, err = stet.Do(context.Background(), w.engine, w.op(), func(ctx context.Context) (string, error) { return w.run(ctx, nil) })
		}
		answer = fmt.Sprintf("%q", res.Value)
		if err != nil {
			answer = said(err)
		}
		if res.Replayed {
			answer += " replayed"
		}
	})
	return answer + how
}

// message has a consumer decide.
func (w *world) message(inTx bool, deliveries int) (answer string) {
	o := stetmsg.Options[string]{ErrorLog: quiet, Operation: func(string) (stet.Op, error) { return w.op(), nil },
		Backoff: func(int) time.Duration { return time.Second },
		Retryable: func(err error) bool {
			_, theirs := errors.AsType[*stet.Error](err)
			return errors.Is(err, errRepeatable) || !theirs && stet.KindOf(err) == stet.KindRetryable
		}}
	var c *stetmsg.Consumer[string]
	if inTx {
		c = must(stetmsg.NewTx(stettest.TxEngine(w.engine, w.store), o, func(ctx context.Context, t *tx, _ string) ([]byte, error) {
			text, err := w.run(ctx, t)
			return []byte(text), err
		}))
	} else {
		c = must(stetmsg.New(w.engine, o, func(ctx context.Context, _ string) ([]byte, error) {
			text, err := w.run(ctx, nil)
			return []byte(text), err
		}))
	}
	how := ended(func() {
		d := c.Decide(context.Background(), body, deliveries)
		answer = fmt.Sprintf("%v: %v", d.Action, d.Reason)
	})
	return answer + how
}

// unsigned is a webhook.Verifier.
type unsigned struct{}

func (unsigned) Verify(_ http.Header, content []byte, _ time.Time) (string, []byte, error) {
	return key, content, nil
}
func (unsigned) Horizon() time.Duration { return time.Hour }

// hook delivers a webhook.
func (w *world) hook(inTx bool) string {
	o := webhook.Options{Endpoint: scope, Verifier: unsigned{}, ErrorLog: quiet}
	var h http.Handler
	if inTx {
		h = must(webhook.NewTx(stettest.TxEngine(w.engine, w.store), o, func(ctx context.Context, t *tx, _ webhook.Delivery) error {
			_, err := w.run(ctx, t)
			return err
		}))
	} else {
		h = must(webhook.New(w.engine, o, func(ctx context.Context, _ webhook.Delivery) error {
			_, err := w.run(ctx, nil)
			return err
		}))
	}
	text := ask(h, "POST", "/hooks", body)
	if status, prose, ok := strings.Cut(text, " "); ok && !strings.HasPrefix(text, "connection") {
		_, later, _ := strings.Cut(prose, "+")
		return strings.TrimSuffix(status+" +"+later, " +") // without its prose
	}
	return text
}

// worker returns one with the handler, registered in one of three ways.
func (w *world) worker(kind string) *stetwork.Worker {
	worker := must(stetwork.New(w.engine, stetwork.Options{ErrorLog: quiet, Backoff: func(int) time.Duration { return time.Second }}))
	h := func(ctx context.Context, _ []byte) (string, error) { return w.run(ctx, nil) }
	var err error
	switch kind {
	case "plain":
		err = stetwork.Handle(worker, workName, h)
	case "idempotent":
		err = stetwork.HandleIdempotent(worker, workName, h)
	case "tx":
		err = stetwork.HandleTx(worker, stettest.TxEngine(w.engine, w.store), workName, func(ctx context.Context, t *tx, _ []byte) (string, error) { return w.run(ctx, t) })
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return worker
}

// work has a worker run the operation.
func (w *world) work(worker *stetwork.Worker) string {
	answer := "done"
	how := ended(func() {
		if err := worker.Do(context.Background(), stet.Item{ID: w.engine.ID(scope, key), Name: workName}); err != nil {
			answer = said(err)
		}
	})
	if how != "" {
		return how
	}
	return answer
}

// async has a client ask for the operation to be accepted, and tell the outcome if
// there is one; with "GET" it asks the status resource.
func (w *world) async(method string) string {
	a := must(stethttp.NewAsync(w.middleware(false), stethttp.AsyncOptions{StatusURL: "/operations/"}))
	defer a.Close()
	if method == "GET" {
		text := ask(a.Status(), method, "/operations/"+w.engine.ID(scope, key).String(), "")
		return text
	}
	return ask(a.Accept(workName, func(http.ResponseWriter, *http.Request) (stet.Work, bool) { return stet.Work{}, true }), method, "/op", body)
}

const operatorToken = "token-of-an-operator"

// operator asks the dashboard for the record with its result.
func (w *world) operator() string {
	h := must(dashboard.New(w.engine, dashboard.Options{Tokens: []dashboard.Token{{Name: "ops", Secret: operatorToken, Change: true}},
		Audit: slog.NewTextHandler(discard{}, nil), ErrorLog: quiet}))
	r := httptest.NewRequest("GET", "/v1/operations/"+w.engine.ID(scope, key).String()+"?result=true", nil)
	r.Header.Set("Authorization", "Bearer "+operatorToken)
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return response(rec, "")
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
