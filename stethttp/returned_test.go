package stethttp_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

var errBank = errors.New("the bank is closed")

// returns is a handler behind an adapter: it answers, and returns err in its first run. Later
// ones answer 201.
func returns(first *bool, status int, err func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if stethttp.InTx(r.Context()) {
			tx := stethttp.Tx[*fakeTx](r.Context())
			tx.rows = append(tx.rows, "row")
		}
		if !*first {
			w.WriteHeader(http.StatusCreated)
			return
		}
		*first = false
		stethttp.Returned(r.Context(), err(r.Context()))
		w.WriteHeader(status)
		_, _ = io.WriteString(w, strconv.Itoa(status))
	}
}

// again is what the second request gets.
type again string

const (
	runs     again = "it runs again"
	replayed again = "the first response"
	unknown  again = "outcome-unknown"
)

// TestReturnedErrorEndsItsRunAsItEndsThoseOfDo: its marks count, and in a transaction it
// rolls back whatever the answer is.
func TestReturnedErrorEndsItsRunAsItEndsThoseOfDo(t *testing.T) {
	plain := func(context.Context) error { return errBank }
	mark := func(as func(error) error) func(context.Context) error {
		return func(context.Context) error { return as(errBank) }
	}
	ended := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, c := range map[string]struct {
		tx        bool
		responses stethttp.Responses
		status    int
		err       func(context.Context) error
		problem   string // of the first response; "": the handler's
		code      int
		then      again
	}{
		"an error":                                {status: 500, err: plain, then: replayed},
		"an error with a status":                  {status: 422, err: plain, then: replayed},
		"an error after a success":                {status: 201, err: plain, then: replayed},
		"Retryable":                               {status: 500, err: mark(stet.Retryable), then: runs},
		"Retryable, which is wrapped":             {status: 500, err: mark(func(err error) error { return errors.Join(err, stet.Retryable(err)) }), then: runs},
		"Retryable of another operation":          {status: 500, err: mark(func(err error) error { return &stet.Error{Kind: stet.KindRetryable, Cause: stet.Retryable(err)} }), then: replayed},
		"Retryable after a success":               {status: 201, err: mark(stet.Retryable), problem: "not-executed", code: 503, then: runs},
		"Repeatable":                              {status: 500, err: mark(stet.Repeatable), then: runs},
		"Repeatable after a success":              {status: 201, err: mark(stet.Repeatable), problem: "outcome-unknown", code: 504, then: runs},
		"Permanent with a status of not executed": {status: 401, err: mark(stet.Permanent), then: replayed},
		"of the run's context":                    {status: 500, err: ended, problem: "outcome-unknown", code: 504, then: unknown},

		"tx, an error":                            {tx: true, status: 500, err: plain, then: runs},
		"tx, an error with a status":              {tx: true, status: 422, err: plain, then: replayed},
		"tx, a redirect by an error":              {tx: true, status: 303, err: plain, then: replayed},
		"tx, an error that needs authentication":  {tx: true, status: 401, err: plain, then: runs},
		"tx, an error after a success":            {tx: true, status: 201, err: plain, problem: "not-executed", code: 503, then: runs},
		"tx, Retryable":                           {tx: true, status: 422, err: mark(stet.Retryable), then: runs},
		"tx, Permanent":                           {tx: true, status: 422, err: mark(stet.Permanent), then: replayed},
		"tx, of the run's context":                {tx: true, status: 500, err: ended, then: runs},
		"tx, all stored, an error with a status":  {tx: true, responses: stethttp.StoreAll, status: 422, err: plain, then: replayed},
		"tx, all stored, Retryable":               {tx: true, responses: stethttp.StoreAll, status: 422, err: mark(stet.Retryable), then: runs},
		"tx, all stored, of the run's context":    {tx: true, responses: stethttp.StoreAll, status: 500, err: ended, then: runs},
		"tx, executed stored, an error of 409":    {tx: true, responses: stethttp.StoreExecuted, status: 409, err: plain, then: replayed},
		"tx, executed stored, an error of 422":    {tx: true, responses: stethttp.StoreExecuted, status: 422, err: plain, then: runs},
		"tx, executed stored, Permanent with 422": {tx: true, responses: stethttp.StoreExecuted, status: 422, err: mark(stet.Permanent), then: replayed},
	} {
		t.Run(name, func(t *testing.T) {
			store, first := newTxStore(), true
			s := start(t, setup{store: store, tx: c.tx, options: stethttp.Options{Responses: c.responses},
				engine: stet.Options{Policy: stet.Policy{RunTimeout: 100 * time.Millisecond}}, handler: returns(&first, c.status, c.err)})
			r := s.post("k", "{}")
			if c.problem != "" {
				wantProblem(t, r, c.code, c.problem)
			} else {
				wantReply(t, r, c.status, strconv.Itoa(c.status), false)
			}
			if rows := store.rows(); len(rows) != 0 {
				t.Errorf("committed: %v", rows)
			}
			wantAgain(t, s, c.then, r, c.tx)
			if !c.tx && c.then == runs && s.log.String() != "" && c.problem == "" {
				t.Errorf("the log has %s", s.log)
			}
		})
	}
	stethttp.Returned(t.Context(), errBank)
}

// TestSuccessThatWasFlushedIsCutOff if its handler returns an error that has it run again.
func TestSuccessThatWasFlushedIsCutOff(t *testing.T) {
	s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "paid")
		_ = http.NewResponseController(w).Flush()
		stethttp.Returned(r.Context(), stet.Retryable(errBank))
	}})
	if r := s.post("k", "{}"); r.err == nil {
		t.Errorf("got %d %q, and its end", r.status, r.body)
	}
}

// wantAgain sends the request again. A stored response says the same of its execution both times.
func wantAgain(t *testing.T, s *service, then again, first reply, tx bool) {
	t.Helper()
	r := s.post("k", "{}")
	switch then {
	case runs:
		wantReply(t, r, 201, "", false)
	case replayed:
		wantReply(t, r, first.status, strconv.Itoa(first.status), true)
		if was, is := first.header.Get("Idempotency-Execution"), r.header.Get("Idempotency-Execution"); was != is || (is == "not executed") != tx {
			t.Errorf("the first response says %q, the replay %q", was, is)
		}
	case unknown:
		wantProblem(t, r, 504, "outcome-unknown")
	}
}

func TestRefusalAfterExecutingMayHaveHadAnEffect(t *testing.T) {
	s := start(t, setup{store: newTxStore(), tx: true, options: stethttp.Options{Responses: stethttp.StoreAll}, handler: func(w http.ResponseWriter, r *http.Request) {
		stethttp.Executing(r.Context())
		w.WriteHeader(http.StatusInternalServerError)
	}})
	for range 2 {
		if r := s.post("k", "{}"); r.status != 500 || r.header.Get("Idempotency-Execution") == "not executed" {
			t.Errorf("got %d, %v", r.status, r.header)
		}
	}
	s.wantRuns(1)
}

// A transaction that cannot be committed was rolled back; what the handler did outside of it
// after Executing was not.
func TestAbortedTransaction_AfterExecuting(t *testing.T) {
	for executing, want := range map[bool]string{false: "not executed", true: "may have executed"} {
		st := newTxStore()
		st.commitErr = &store.AbortedError{Cause: errors.New("deferred constraint")}
		s := start(t, setup{store: st, tx: true, handler: func(w http.ResponseWriter, r *http.Request) {
			if executing {
				stethttp.Executing(r.Context())
			}
			w.WriteHeader(http.StatusCreated)
		}})
		r := s.post("k", "{}")
		wantProblem(t, r, 500, "transaction-aborted")
		if !strings.Contains(r.body, `"execution":"`+want+`"`) {
			t.Errorf("executing %v: %s; want %s", executing, r.body, want)
		}
	}
}
