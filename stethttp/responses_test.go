package stethttp_test

import (
	"database/sql"
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

// bank is a handler that answers with the status in the body, after a row if it has a
// transaction. "executing" says so first.
func bank(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	text, executing := strings.CutPrefix(string(body), "executing ")
	if executing {
		stethttp.Executing(r.Context())
	}
	if isTx(r) {
		tx := stethttp.Tx[*fakeTx](r.Context())
		tx.rows = append(tx.rows, text)
	}
	status, _ := strconv.Atoi(strings.Fields(text)[0])
	if status == 503 {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

func isTx(r *http.Request) (ok bool) {
	defer func() { _ = recover() }()
	stethttp.Tx[*fakeTx](r.Context())
	return true
}

// eachMode runs a test in lease mode and in transactions.
func eachMode(t *testing.T, o stethttp.Options, test func(t *testing.T, s *service, rows func(int))) {
	t.Helper()
	t.Run("lease", func(t *testing.T) {
		test(t, start(t, setup{options: o, handler: bank}), func(int) {})
	})
	t.Run("transaction", func(t *testing.T) {
		st := newTxStore()
		test(t, start(t, setup{options: o, handler: bank, tx: true, store: st}), func(n int) {
			t.Helper()
			if rows := st.rows(); len(rows) != n {
				t.Errorf("the rows are %q; want %d", rows, n)
			}
		})
	})
}

func TestCorrectedRequestMayUseTheKeyUnderStoreExecuted(t *testing.T) {
	eachMode(t, stethttp.Options{Responses: stethttp.StoreExecuted}, func(t *testing.T, s *service, rows func(int)) {
		wantReply(t, s.post("k", "422 no amount"), 422, "422 no amount", false)
		wantReply(t, s.post("k", "422 no amount"), 422, "422 no amount", false)
		wantReply(t, s.post("k", "400 no account"), 400, "400 no account", false)
		rows(0)
		wantReply(t, s.post("k", "201 paid"), 201, "201 paid", false)
		wantReply(t, s.post("k", "201 paid"), 201, "201 paid", true)
		wantProblem(t, s.post("k", "422 no amount"), 422, "mismatch")
		s.wantRuns(4)
		rows(1)
	})
}

func TestRequestThatIsRefusedKeepsItsKeyByDefault(t *testing.T) {
	eachMode(t, stethttp.Options{}, func(t *testing.T, s *service, rows func(int)) {
		wantReply(t, s.post("k", "422 no amount"), 422, "422 no amount", false)
		wantReply(t, s.post("k", "422 no amount"), 422, "422 no amount", true)
		wantProblem(t, s.post("k", "201 paid"), 422, "mismatch")
		s.wantRuns(1)
		rows(1)
	})
}

func TestFailureIsStoredByPresetsInTransactionsToo(t *testing.T) {
	for _, preset := range []stethttp.Responses{stethttp.StoreAll, stethttp.StoreExecuted} {
		eachMode(t, stethttp.Options{Responses: preset}, func(t *testing.T, s *service, rows func(int)) {
			wantReply(t, s.post("k", "500 no bank"), 500, "500 no bank", false)
			wantReply(t, s.post("k", "500 no bank"), 500, "500 no bank", true)
			wantProblem(t, s.post("k", "201 paid"), 422, "mismatch")
			s.wantRuns(1)
			rows(0)
			rec := stettest.Read(t, s.store, s.engine.ID("single-tenant", "k"))
			if rec.State != store.Failed {
				t.Errorf("the record is %v; want failed", rec.State)
			}
		})
	}
}

func TestFailureOfATransactionIsNotStoredByDefault(t *testing.T) {
	s := start(t, setup{handler: bank, tx: true, store: newTxStore()})
	for range 2 {
		wantReply(t, s.post("k", "500 no bank"), 500, "500 no bank", false)
	}
	s.wantRuns(2)
}

func TestStoreAllStoresEveryResponse(t *testing.T) {
	eachMode(t, stethttp.Options{Responses: stethttp.StoreAll}, func(t *testing.T, s *service, rows func(int)) {
		for _, status := range []int{201, 400, 401, 403, 404, 422, 429, 500, 503} {
			key, body := strconv.Itoa(status), strconv.Itoa(status)+" said"
			wantReply(t, s.post(key, body), status, body, false)
			wantReply(t, s.post(key, body), status, body, true)
		}
		s.wantRuns(9)
		rows(7) // not those of 500 and 503
	})
}

func TestStoreExecutedDoesNotStoreRefusals(t *testing.T) {
	eachMode(t, stethttp.Options{Responses: stethttp.StoreExecuted}, func(t *testing.T, s *service, rows func(int)) {
		for i, status := range []int{401, 403, 415, 429, 503} {
			body := strconv.Itoa(status) + " said"
			wantReply(t, s.post("k", body), status, body, false)
			wantReply(t, s.post("k", body), status, body, false)
			s.wantRuns(int64(2*i + 2))
		}
		for _, status := range []int{402, 404, 409, 412} {
			key, body := strconv.Itoa(status), strconv.Itoa(status)+" said"
			wantReply(t, s.post(key, body), status, body, false)
			wantReply(t, s.post(key, body), status, body, true)
		}
		rows(4)
	})
}

func TestRefusalAfterExecutingIsStored(t *testing.T) {
	for _, preset := range []stethttp.Responses{stethttp.StoreOutcomes, stethttp.StoreExecuted} {
		eachMode(t, stethttp.Options{Responses: preset}, func(t *testing.T, s *service, rows func(int)) {
			for _, status := range []string{"422", "401"} {
				body := "executing " + status + " after the effect"
				code, _ := strconv.Atoi(status)
				first := s.post(status, body)
				wantReply(t, first, code, status+" after the effect", false)
				wantReply(t, s.post(status, body), code, first.body, true)
				wantProblem(t, s.post(status, "201 paid"), 422, "mismatch")
			}
			s.wantRuns(2)
			rows(2)
		})
	}
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
func TestKeyWhoseFirstRunMayHaveExecutedIsNotFreed(t *testing.T) {
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

func TestNothingIsStoredOfATransactionWithoutAResponse(t *testing.T) {
	s := start(t, setup{tx: true, store: newTxStore(), options: stethttp.Options{Responses: stethttp.StoreAll}, handler: func(http.ResponseWriter, *http.Request) {}})
	for range 2 {
		wantProblem(t, s.post("k", "x"), 500, "response-missing")
	}
	s.wantRuns(2)
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
