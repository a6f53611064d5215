package stethttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service is a protected handler behind a real server.
type service struct {
	t      *testing.T
	store  store.Store
	engine *stet.Engine
	url    string
	addr   string
	client *http.Client
	log    *stettest.Log
	events *stettest.Events
	runs   atomic.Int64
}

type setup struct {
	store        store.Store
	engine       stet.Options
	options      stethttp.Options
	tx           bool
	around       func(http.Handler) http.Handler // middleware around the protected handler
	handler      http.HandlerFunc
	http2        bool
	writeTimeout time.Duration // of the server

	async   *stethttp.AsyncOptions // accepts instead, POSTs below /
	prepare func(http.ResponseWriter, *http.Request) (stet.Work, bool)
	close   func() // of what accepts, once it has been made
}

func start(t *testing.T, set setup) *service {
	t.Helper()
	s := &service{t: t, store: set.store, log: &stettest.Log{}, events: &stettest.Events{}}
	if s.store == nil {
		s.store = memory.New(memory.Options{})
	}
	set.engine.Observer = s.events
	if _, ok := s.store.(*faulty); ok {
		set.engine.StoreTimeout = 300 * time.Millisecond // how long failed calls are repeated
	}
	engine := stettest.Engine(t, s.store, set.engine)
	s.engine = engine
	if set.options.Scope == nil {
		set.options.Scope = stethttp.SingleTenant
	}
	if set.options.ErrorLog == nil {
		set.options.ErrorLog = slog.New(slog.NewTextHandler(s.log, nil))
	}
	var m *stethttp.Middleware
	var err error
	if set.tx {
		var inTx *stethttp.TxMiddleware[*fakeTx]
		if inTx, err = stethttp.NewTx(stettest.TxEngine(engine, s.store.(store.TxStore[*fakeTx])), set.options); err == nil {
			m = inTx.Middleware
		}
	} else {
		m, err = stethttp.New(engine, set.options)
	}
	if err != nil {
		t.Fatal(err)
	}
	inner := set.handler
	if inner == nil {
		inner = func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.Copy(w, r.Body)
		}
	}
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		inner(w, r)
	}))
	if set.async != nil {
		h = set.accepting(m)
	}
	if set.around != nil {
		h = set.around(h)
	}
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(s.log, nil), slog.LevelError)
	srv.Config.WriteTimeout = set.writeTimeout
	if set.http2 {
		srv.EnableHTTP2 = true
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	s.url, s.addr, s.client = srv.URL, srv.Listener.Addr().String(), srv.Client()
	s.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return s
}

// reply is a response as the client saw it.
type reply struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
	err     error
}

func (r reply) replayed() bool { return r.header.Get("Idempotent-Replayed") == "true" }

type document struct {
	Type, Title, Detail, Execution, Operation string
	Status                                    int
	Retryable                                 *bool
}

func (r reply) problem() document {
	var d document
	if r.header.Get("Content-Type") != "application/problem+json" {
		return d
	}
	_ = json.Unmarshal([]byte(r.body), &d)
	return d
}

// name is the problem's name, "" if the reply is none that is well-formed.
func (r reply) name() string {
	d := r.problem()
	name, ok := strings.CutPrefix(d.Type, stethttp.DefaultProblemBase)
	if !ok || d.Status != r.status || d.Title == "" || d.Detail == "" || d.Retryable == nil || d.Execution == "" ||
		r.header.Get("Cache-Control") != "no-store" {
		return ""
	}
	return name
}

func (s *service) request(method, path, key, body string, header ...string) *http.Request {
	s.t.Helper()
	req, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.GetBody = nil // the client must not repeat it on its own
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return req
}

func (s *service) do(req *http.Request) reply {
	s.t.Helper()
	resp, err := s.client.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, resp.Trailer, string(body), err}
}

// post sends a POST with a key.
func (s *service) post(key, body string, header ...string) reply {
	s.t.Helper()
	return s.do(s.request("POST", "/payments", key, body, header...))
}

func (s *service) wantRuns(n int64) {
	s.t.Helper()
	if got := s.runs.Load(); got != n {
		s.t.Errorf("the handler ran %d times, want %d", got, n)
	}
}

func wantProblem(t *testing.T, r reply, status int, name string) {
	t.Helper()
	if r.err != nil || r.status != status || r.name() != name {
		t.Errorf("got %d %q (%v), want %d and problem %s; body %.300s", r.status, r.name(), r.err, status, name, r.body)
	}
}

func wantReply(t *testing.T, r reply, status int, body string, replayed bool) {
	t.Helper()
	if r.err != nil || r.status != status || r.body != body || r.replayed() != replayed {
		t.Errorf("got %d, %.300q, replayed %v (%v), want %d, %.300q, %v", r.status, r.body, r.replayed(), r.err, status, body, replayed)
	}
}

// faulty fails the selected calls.
type faulty struct {
	*memory.Store
	claim, settle, settleAfter, release atomic.Bool
	accept, acceptAfter, look           atomic.Bool
	skip                                atomic.Int64 // how far its clock is ahead
}

var errDown = errors.New("the store is down")

func newFaulty() *faulty {
	f := &faulty{}
	f.Store = memory.New(memory.Options{Clock: func() time.Time { return time.Now().Add(time.Duration(f.skip.Load())) }})
	return f
}

func (f *faulty) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	if f.claim.Load() {
		return store.Record{}, errDown
	}
	return f.Store.Claim(ctx, req)
}

func (f *faulty) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	if f.settle.Load() {
		return errDown
	}
	err := f.Store.Settle(ctx, c, out, keep)
	if f.settleAfter.Load() {
		return errDown
	}
	return err
}

func (f *faulty) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	if f.release.Load() {
		return errDown
	}
	return f.Store.Release(ctx, c, keep)
}

func (f *faulty) Accept(ctx context.Context, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	if f.accept.Load() {
		return store.Record{}, errDown
	}
	rec, err := f.Store.Accept(ctx, req, work, after)
	if f.acceptAfter.Load() {
		return store.Record{}, errDown
	}
	return rec, err
}

func (f *faulty) Look(ctx context.Context, id store.ID) (store.Record, error) {
	if f.look.Load() {
		return store.Record{}, errDown
	}
	return f.Store.Look(ctx, id)
}

// fakeTx is a transaction of txStore: rows that are kept if it commits.
type fakeTx struct{ rows []string }

// txStore is a TxStore over memory.
type txStore struct {
	*memory.Store
	mu        sync.Mutex
	committed []string
	commitErr error
	inVain    atomic.Int64 // transactions that turn out to be without effect: an expired run of another process is in the way
}

func newTxStore() *txStore { return &txStore{Store: memory.New(memory.Options{})} }

func (s *txStore) rows() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.committed...)
}

func (s *txStore) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, *fakeTx, store.Record) (store.Settlement, error)) (store.Record, error) {
	rec, err := s.Claim(ctx, req)
	if err != nil || rec.State != store.Running || rec.Owner != req.Owner {
		return rec, err
	}
	committed := false
	defer func() {
		if !committed {
			_ = s.Release(context.WithoutCancel(ctx), rec.Claim(), store.Retention{}) // no record is left
		}
	}()
	tx := &fakeTx{}
	out, err := fn(ctx, tx, rec)
	if err != nil {
		return rec, err
	}
	if s.commitErr != nil {
		return rec, s.commitErr
	}
	if s.inVain.Add(-1) >= 0 {
		return store.Record{ID: req.ID, State: store.Unknown, Fingerprint: req.Fingerprint, Owner: store.NewOwner(), Fence: rec.Fence + 1}, nil
	}
	if err := s.Settle(ctx, rec.Claim(), out, keep); err != nil {
		return rec, err
	}
	committed = true
	s.mu.Lock()
	s.committed = append(s.committed, tx.rows...)
	s.mu.Unlock()
	rec.State, rec.Result, rec.Gone = out.State, out.Result, out.Gone
	return rec, nil
}

func (s *txStore) SettleTx(ctx context.Context, _ *fakeTx, c store.Claim, out store.Settlement, keep store.Retention) error {
	return s.Settle(ctx, c, out, keep)
}

// abandon makes the operation of a key an abandoned claim: the lease of its process expires, by
// a clock that the test moves.
func (s *service) abandon(key, body string, b *blocking) {
	s.t.Helper()
	store := s.store.(*faulty)
	store.settle.Store(true)
	close(b.leave)
	wantProblem(s.t, s.post(key, body), 504, "outcome-unknown")
	store.settle.Store(false)
	store.skip.Add(int64(time.Hour))
}

func verifyUnknown(context.Context, stet.Status) (stet.Resolution, error) {
	return stet.CannotKnow(), nil
}

func verifyHappened(context.Context, stet.Status) (stet.Resolution, error) {
	out, err := stethttp.Outcome(http.StatusCreated, http.Header{"Content-Type": {"text/plain"}}, []byte("found"))
	return stet.ItHappened(out), err
}

// sealed resolves an unknown operation, and encrypts its outcome with another key.
func sealed() stet.Options {
	return stet.Options{Policy: stet.Policy{Verify: verifyHappened},
		Encryption: stet.Encryption{Keys: []stet.EncryptionKey{{Name: "k", Secret: make([]byte, 32)}}}}
}

// middleware returns a middleware for a single tenant, with leases or with transactions.
func middleware(t *testing.T, engine *stet.Engine, store store.TxStore[*fakeTx], tx bool) *stethttp.Middleware {
	t.Helper()
	o := stethttp.Options{Scope: stethttp.SingleTenant}
	if tx {
		return stethttp.Must(stethttp.NewTx(stettest.TxEngine(engine, store), o)).Middleware
	}
	return stethttp.Must(stethttp.New(engine, o))
}

// ask sends a request with a key and a preference.
func ask(h http.Handler, key, prefer, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	r.Header["Idempotency-Key"] = []string{key}
	if prefer != "" {
		r.Header["Prefer"] = []string{prefer}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}
