package adaptertest

import (
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/stet-go/stet/stethttp"
)

// txCases are about transactions.
var txCases = []testCase{
	{name: "transaction", tx: true, why: "the rows of the handler and its response are committed together, once",
		run: func(f *fixture) {
			f.serveTx(func(c Call, tx *Tx) error {
				tx.Insert("order " + c.Param("id"))
				return paid(c)
			})
			f.is("a payment", f.twice(), 201, "paid")
			f.rows(1)
		}},
	{name: "transaction rolled back on error", tx: true, why: "a handler that returns an error counts on its transaction being rolled back",
		run: func(f *fixture) {
			f.rollsBack(func(Call) error { return errBank }, func(r Reply) bool { return r.Status == f.adapter.ErrorStatus && r.Problem() == "" })
		}},
	{name: "transaction rolled back on 5xx", tx: true, why: "a response of 500 and above says that the operation failed",
		run: func(f *fixture) {
			f.rollsBack(func(c Call) error { return c.Send(502, "text/plain", []byte("no bank")) },
				func(r Reply) bool { return r.Status == 502 && r.Body == "no bank" })
		}},
	{name: "transaction rolled back on abort", tx: true, why: "a handler that ends the request with a failure has failed, even if the framework writes its answer later",
		run: func(f *fixture) {
			f.rollsBack(func(c Call) error { return c.Abort(503, "") }, func(r Reply) bool { return r.Status == 503 })
		}},
	{name: "transaction rolled back on an error with a status", tx: true, why: "a returned error undoes the writes; the refusal that the framework made of it is the outcome of every retry",
		run: func(f *fixture) {
			var answered atomic.Bool // Abort wrote the response itself, so its transaction commits
			f.serveTx(func(c Call, tx *Tx) error {
				tx.Insert("row")
				err := c.Abort(http.StatusConflict, "taken")
				answered.Store(err == nil)
				return err
			})
			for _, what := range []string{"the first", "the retry"} {
				if r := f.post("{}"); r.Status != http.StatusConflict || r.Problem() != "" {
					f.Errorf("%s: got %v; want the handler's 409", what, r)
				}
			}
			f.ran(1)
			if !answered.Load() {
				f.rows(0)
			}
		}},
	{name: "transaction committed with a refusal", tx: true, why: "a 4xx that the handler wrote itself is its outcome, and commits",
		run: func(f *fixture) {
			f.serveTx(func(c Call, tx *Tx) error {
				tx.Insert("refusal")
				return c.Send(http.StatusUnprocessableEntity, "text/plain", []byte("no"))
			})
			f.is("a refusal", f.twice(), 422, "no")
			f.rows(1)
		}},
	{name: "no transaction", tx: true, why: "a request that passes unprotected has no transaction, and a handler that needs one must not run",
		run: func(f *fixture) {
			o := f.options()
			o.Optional = true
			f.serveTxRoute(o, Route{HandleTx: func(c Call, _ *Tx) error { return paid(c) }})
			if r := f.post("{}", stethttp.DefaultHeader, "-"); r.Err == nil && r.Status < 400 {
				f.Errorf("got %v", r)
			}
			f.ran(0)
		}},
	{name: "transaction called again", tx: true, why: "if another transaction was faster and is then rolled back, the handler is called again: with the body from its beginning and a new response",
		run: func(f *fixture) {
			f.serveTx(func(c Call, tx *Tx) error {
				body, err := c.Body()
				if err != nil || string(body) != `{"amount":10}` || c.Param("id") != "42" {
					f.Errorf("call %d: body %s, parameter %s, %v", f.runs.Load(), quote(string(body)), c.Param("id"), err)
				}
				tx.Insert("row")
				if f.runs.Load() == 1 {
					clear(body) // some frameworks use it again
					c.AddHeader("X-Half", "done")
					return c.Send(http.StatusAccepted, "text/plain", []byte("first"))
				}
				return paid(c)
			})
			f.store.overtaken.Store(true)
			r := f.post(`{"amount":10}`, "Prefer", "wait=10")
			f.is("the second call", r, 201, "paid")
			if r.Header.Get("X-Half") != "" {
				f.Errorf("the response has the header of the first call")
			}
			f.ran(2)
			f.rows(1)
		}},
	{name: "transaction, protected twice", tx: true, chains: true, why: whyTwice,
		run: func(f *fixture) {
			f.serveTxRoute(f.options(), Route{Twice: true, HandleTx: func(c Call, _ *Tx) error { return paid(c) }})
			f.misconfigured()
		}},
	{name: "transaction rolled back on panic", tx: true, why: "what a handler wrote that has panicked is not whole",
		run: func(f *fixture) {
			f.rollsBack(func(Call) error { panic(http.ErrAbortHandler) }, func(r Reply) bool { return r.Err != nil || r.Status >= 500 })
		}},
	{name: "transaction without a response", tx: true, not: Missing, why: "a handler that has answered nothing has produced no outcome to commit",
		run: func(f *fixture) {
			f.rollsBack(func(Call) error { return nil }, func(r Reply) bool { return r.Status == 500 && r.Problem() == "response-missing" })
		}},
	{name: "transaction that is not committed", tx: true, why: "the response is sent after the commit: otherwise a success could be lost",
		run: func(f *fixture) {
			f.serveTx(func(c Call, tx *Tx) error {
				tx.Insert("row")
				if err := paid(c); err != nil {
					return err
				}
				_ = c.Flush() // which does nothing, or says that it cannot
				return nil
			})
			f.store.noCommit.Store(true)
			f.failed("no commit", f.post("{}"))
			f.rows(0)
			f.store.noCommit.Store(false)
			f.is("afterwards", f.post("{}"), 201, "paid")
			f.rows(1)
		}},
}

// rollsBack has the handler end wrongly twice, and then well.
func (f *fixture) rollsBack(wrong func(Call) error, answered func(Reply) bool) {
	f.Helper()
	f.serveTx(func(c Call, tx *Tx) error {
		tx.Insert(fmt.Sprint("row of run ", f.runs.Load()))
		if f.runs.Load() <= 2 {
			return wrong(c)
		}
		return paid(c)
	})
	for _, what := range []string{"the first", "the retry"} {
		if r := f.post("{}"); !answered(r) {
			f.Errorf("%s: got %v, which is not the answer of the handler that failed", what, r)
		}
		f.rows(0)
	}
	f.is("the third", f.post("{}"), 201, "paid")
	f.rows(1)
	f.ran(3)
}
