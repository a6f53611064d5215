package stetecho_test

import (
	"compress/gzip"
	"database/sql"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/labstack/echo/v5"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// guard is a middleware whose log is kept.
type guard struct {
	*stethttp.Middleware
	log *stettest.Log
}

func newGuard(t *testing.T, eo stet.Options, o stethttp.Options) guard {
	t.Helper()
	log := &stettest.Log{}
	if o.Scope == nil {
		o.Scope = stethttp.SingleTenant
	}
	o.ErrorLog = slog.New(slog.NewTextHandler(log, nil))
	m, err := stethttp.New(stettest.Engine(t, memory.New(memory.Options{}), eo), o)
	if err != nil {
		t.Fatal(err)
	}
	return guard{m, log}
}

// wantLog requires that the log has text.
func (g guard) wantLog(t *testing.T, text string) {
	t.Helper()
	if !strings.Contains(g.log.String(), text) {
		t.Errorf("the log does not have %q: %s", text, g.log)
	}
}

// books is a database with payments.
func books(t *testing.T, o stethttp.Options) (*sqlite.Store, *stethttp.TxMiddleware[*sql.Tx]) {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "books.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if _, err := store.DB().ExecContext(t.Context(), `CREATE TABLE payments (amount TEXT)`); err != nil {
		t.Fatal(err)
	}
	te, err := stet.WithTx(stettest.Engine(t, store, stet.Options{}), store)
	if err != nil {
		t.Fatal(err)
	}
	o.Scope = stethttp.SingleTenant
	m, err := stethttp.NewTx(te, o)
	if err != nil {
		t.Fatal(err)
	}
	return store, m
}

func wantPayments(t *testing.T, store *sqlite.Store, n int) {
	t.Helper()
	var got int
	if err := store.DB().QueryRowContext(t.Context(), `SELECT count(*) FROM payments`).Scan(&got); err != nil || got != n {
		t.Errorf("%d payments, want %d (%v)", got, n, err)
	}
}

type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

func (r reply) replayed() bool { return r.header.Get("Idempotent-Replayed") == "true" }

func (r reply) want(t *testing.T, status int, body string, replayed bool) {
	t.Helper()
	if r.err != nil || r.status != status || r.body != body || r.replayed() != replayed {
		t.Errorf("got %d %q, replayed %v (%v); want %d %q, %v", r.status, r.body, r.replayed(), r.err, status, body, replayed)
	}
}

// gunzip decodes a body that is compressed, and nothing else.
func (r *reply) gunzip(t *testing.T) {
	t.Helper()
	if r.header.Get("Content-Encoding") != "gzip" {
		return
	}
	zr, err := gzip.NewReader(strings.NewReader(r.body))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(zr)
	r.body, r.err = string(b), err
}

// strip removes the fields that are each response's own.
func (r reply) strip() {
	for _, name := range []string{"Date", "Content-Length", "Cache-Control", "Idempotent-Replayed", "Idempotency-Expires", "Last-Modified"} {
		r.header.Del(name)
	}
}

// wantProblem requires one problem document and nothing else.
func (r reply) wantProblem(t *testing.T, status int, name string) {
	t.Helper()
	if r.err != nil || r.status != status || !strings.Contains(r.body, "problems.md#"+name+`"`) || strings.Count(r.body, "{") != 1 {
		t.Errorf("got %d %q (%v); want %d and the problem %s alone", r.status, r.body, r.err, status, name)
	}
}

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.URL
}

// send sends a request with key "k", unless header has another; "-" stands for none.
func send(t *testing.T, method, url, body string, header ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.GetBody = nil // the client must not repeat it on its own
	req.Header.Set("Idempotency-Key", "k")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	if req.Header.Get("Idempotency-Key") == "-" {
		req.Header.Del("Idempotency-Key")
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(b), err}
}

// paid answers 201.
func paid(c *echo.Context) error { return c.String(http.StatusCreated, "paid") }
