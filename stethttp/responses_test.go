package stethttp_test

import (
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// bank is a handler that does what its request says, with a row in its transaction
// if it has one: see testdata/responses.txt.
func bank(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if isTx(r) {
		tx := stethttp.Tx[*fakeTx](r.Context())
		tx.rows = append(tx.rows, string(body))
	}
	for _, word := range strings.Fields(string(body)) {
		status, _ := strconv.Atoi(word)
		switch {
		case word == "executing":
			stethttp.Executing(r.Context())
		case word == "harmless":
			stet.FromContext(r.Context()).Declare(stet.NotExecuted, 0)
		case word == "doubtful":
			stet.FromContext(r.Context()).Declare(stet.MayHaveExecuted, 0)
		case word == "panic":
			panic("boom")
		case word == "abort":
			panic(http.ErrAbortHandler)
		case word == "flush":
			w.(http.Flusher).Flush()
		case status > 0:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(status)
			_, _ = w.Write(body)
		}
	}
}

func isTx(r *http.Request) (ok bool) {
	defer func() { _ = recover() }()
	stethttp.Tx[*fakeTx](r.Context())
	return true
}

// TestResponses_StoredOrExecutedAgain runs the cases of a file: its first lines explain them.
func TestResponses_StoredOrExecutedAgain(t *testing.T) {
	stettest.Cases(t, "testdata/responses.txt", func(t *testing.T, input string) string {
		preset, requests, ok := strings.Cut(strings.TrimPrefix(input, "responses: "), "\n")
		if !ok || !strings.HasPrefix(input, "responses: ") {
			preset, requests = "", input
		}
		o := stethttp.Options{Responses: stethttp.Responses(preset)}
		st := newTxStore()
		lease := replies(start(t, setup{options: o, handler: bank}), requests)
		tx := replies(start(t, setup{options: o, handler: bank, tx: true, store: st}), requests)
		return fmt.Sprintf("lease: %s\ntx:    %s, %d rows", lease, tx, len(st.rows()))
	})
}

// replies sends requests, a line each, and returns the replies in short.
func replies(s *service, requests string) string {
	var all []string
	for request := range strings.Lines(requests) {
		key, body, _ := strings.Cut(strings.TrimSpace(request), " ")
		r := s.post(key, body)
		said := fmt.Sprint(r.status, " ", r.name())
		switch {
		case r.err != nil:
			said = "cut"
		case r.name() == "" && r.body != body:
			s.t.Errorf("%q has the response %q", request, r.body)
		}
		if r.replayed() {
			said += " replayed"
		}
		all = append(all, strings.Join(strings.Fields(said), " "))
	}
	if strings.Contains(s.log.String(), "boom") != strings.Contains(requests, "panic") {
		s.t.Errorf("the log has: %s", s.log)
	}
	return fmt.Sprintf("%s; %d runs", strings.Join(all, ", "), s.runs.Load())
}

func TestExecutingOutsideOfAProtectedHandlerDoesNothing(t *testing.T) {
	stethttp.Executing(t.Context())
}

// While the first runs, its effect may be happening: another request is refused, and gets
// the key once the first was refused.
func TestCorrectedRequestIsRefusedWhileTheFirstRuns(t *testing.T) {
	for _, tx := range []bool{false, true} {
		entered, leave := make(chan struct{}), make(chan struct{})
		var st store.Store
		if tx {
			st = &txStore{Store: memory.New(memory.Options{})}
		}
		s := start(t, setup{tx: tx, store: st, options: stethttp.Options{Responses: stethttp.StoreExecuted}, handler: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-First") != "" {
				close(entered)
				<-leave
				w.WriteHeader(422)
				return
			}
			bank(w, r)
		}})
		first := make(chan reply, 1)
		go func() { first <- s.post("k", "422 no amount", "X-First", "1") }()
		<-entered
		wantProblem(t, s.post("k", "201 paid"), 422, "mismatch")
		wantProblem(t, s.post("k", "422 no amount"), 409, "in-flight")
		waits := make(chan reply, 1)
		go func() { waits <- s.post("k", "422 no amount", "Prefer", "wait=10") }()
		close(leave)
		wantReply(t, <-first, 422, "", false)
		wantReply(t, <-waits, 422, "422 no amount", false) // it is the same request, and runs again
		wantReply(t, s.post("k", "201 paid"), 201, "201 paid", false)
		wantReply(t, s.post("k", "201 paid"), 201, "201 paid", true)
		s.wantRuns(3)
	}
}

// A run before this one broke off, and was taken over: its effect may have happened, so
// the key stays bound to its request, whatever the second run says.
func TestKeyIsNotFreed_FirstRunMayHaveExecuted(t *testing.T) {
	st := newFaulty()
	b := newBlocking()
	s := start(t, setup{store: st, engine: stet.Options{Policy: stet.Policy{Stale: stet.MayRunAgain()}},
		options: stethttp.Options{Responses: stethttp.StoreExecuted}, handler: func(w http.ResponseWriter, r *http.Request) {
			if stet.FromContext(r.Context()).Attempt() == 1 {
				b.ServeHTTP(w, r)
				return
			}
			w.WriteHeader(422)
		}})
	s.abandon("k", "x", b)
	wantReply(t, s.post("k", "x"), 422, "", false)
	wantProblem(t, s.post("k", "y"), 422, "mismatch")
}

func TestOwnNotExecutedInTheMannerOfStoreExecuted(t *testing.T) {
	s := start(t, setup{handler: bank, options: stethttp.Options{Responses: stethttp.StoreExecuted, NotExecuted: func(status int, _ http.Header) bool { return status == 409 }}})
	wantReply(t, s.post("k", "409 busy"), 409, "409 busy", false)
	wantReply(t, s.post("k", "422 no amount"), 422, "422 no amount", false)
	wantReply(t, s.post("k", "422 no amount"), 422, "422 no amount", true)
}

// No client can correct the request of an operation that a worker runs: it is repeated if
// nothing was executed, and not if it was refused.
func TestRespondDoesNotRepeatRefusals(t *testing.T) {
	for _, preset := range []stethttp.Responses{stethttp.StoreOutcomes, stethttp.StoreAll, stethttp.StoreExecuted} {
		engine := stettest.Engine(t, newFaulty(), stet.Options{})
		m := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant, Responses: preset}))
		for body, want := range map[string]stet.Execution{"422 no amount": stet.Executed, "500 no bank": stet.Executed, "429 later": stet.NotExecuted, "executing 429 later": stet.Executed} {
			lease, err := engine.Begin(t.Context(), stet.Op{Scope: "a", Key: body})
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequest("POST", "/", strings.NewReader(body))
			if out, _ := m.Respond(lease.Context(), http.HandlerFunc(bank), r); lease.Declared() != want {
				t.Errorf("%q, %q: declared %v, %+v; want %v", preset, body, lease.Declared(), out, want)
			}
			_ = lease.Release(t.Context(), stet.Again{})
		}
	}
}

// The same on a real database, whose rollback leaves no record.
func TestCorrectedRequestMayUseTheKeyOfATransactionInSQLite(t *testing.T) {
	st, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "payments.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if _, err := st.DB().ExecContext(t.Context(), `CREATE TABLE payments (amount TEXT)`); err != nil {
		t.Fatal(err)
	}
	engine := stettest.Engine(t, st, stet.Options{})
	m := stethttp.Must(stethttp.NewTx(stettest.TxEngine(engine, st), stethttp.Options{Scope: stethttp.SingleTenant, Responses: stethttp.StoreExecuted}))
	h := m.HandleTx(func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) {
		body, _ := io.ReadAll(r.Body)
		if _, err := tx.ExecContext(r.Context(), `INSERT INTO payments VALUES (?)`, string(body)); err != nil {
			t.Error(err)
		}
		status, _ := strconv.Atoi(string(body))
		w.WriteHeader(status)
	})
	for i, want := range []struct {
		key, body, problem string
		status, rows       int
	}{
		{"k", "422", "", 422, 0}, {"k", "422", "", 422, 0}, {"k", "201", "", 201, 1}, {"k", "201", "", 201, 1}, {"k", "422", "mismatch", 422, 1},
		{"failed", "500", "", 500, 1}, {"failed", "500", "", 500, 1}, {"failed", "201", "mismatch", 422, 1},
	} {
		w := ask(h, want.key, "", want.body)
		var rows int
		err := st.DB().QueryRowContext(t.Context(), `SELECT count(*) FROM payments`).Scan(&rows)
		if err != nil || w.Code != want.status || rows != want.rows || strings.Contains(w.Body.String(), "#mismatch") != (want.problem != "") {
			t.Errorf("%d: got %d %s, %d rows, %v; want %+v", i, w.Code, w.Body, rows, err, want)
		}
	}
}
