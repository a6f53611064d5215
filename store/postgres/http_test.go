package postgres

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// While a transaction runs, another process claims its key in lease mode and dies.
// The policy takes over, so the same request runs again, in a second transaction.
func TestRequestIsHandledAgainWhole_TransactionWithoutEffect(t *testing.T) {
	s := ledger(t, Options{})
	policy := stet.Policy{Stale: stet.MayRunAgain()}
	engines := [2]*stet.Engine{}
	for i := range engines {
		e := stettest.Engine(t, s, stet.Options{SweepEvery: -1, Policy: policy})
		engines[i] = e
	}
	m, err := stethttp.NewTx(stettest.TxEngine(engines[0], store.TxStore[pgx.Tx](s)), stethttp.Options{Scope: stethttp.SingleTenant})
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	srv := httptest.NewServer(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if calls == 1 {
			dieInLeaseMode(t, engines[1], stet.FromContext(r.Context()))
			w.Header().Set("X-Lost", "1")
		}
		if _, err := stethttp.Tx[pgx.Tx](r.Context()).Exec(r.Context(), "INSERT INTO charges VALUES ($1)", string(body)); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "charged "+string(body))
	})))
	defer srv.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/charges", strings.NewReader("42 euros"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "k")
	res, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 201 || string(body) != "charged 42 euros" || res.Header.Get("X-Lost") != "" {
		t.Errorf("%d %v %q, %v", res.StatusCode, res.Header, body, err)
	}
	var charged string
	if err := s.Pool().QueryRow(t.Context(), "SELECT string_agg(name, ', ') FROM charges").Scan(&charged); err != nil || charged != "42 euros" || calls != 2 {
		t.Errorf("%d calls charged %q, %v", calls, charged, err)
	}
}

// dieInLeaseMode claims the operation of a run elsewhere, and leaves it unknown.
func dieInLeaseMode(t *testing.T, e *stet.Engine, run *stet.Run) {
	t.Helper()
	dead, err := e.Begin(context.Background(), stet.Op{Scope: run.Op().Scope, Key: run.Op().Key, Fingerprint: run.Op().Fingerprint})
	if err != nil {
		t.Error(err)
		return
	}
	if err := dead.MarkUnknown(context.Background()); err != nil {
		t.Error(err)
	}
}
