package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// Findings.
const (
	passed  = "✓"
	none    = "–"          // the scenario does not apply
	lost    = "lost"       // no execution, though a retry was answered as if there were one
	wrong   = "wrong"      // the outcome of another request was replayed
	leaked  = "leaks"      // the outcome of another account was replayed
	differs = "differs"    // a retry had another response
	stuck   = "stuck"      // retries had no result within the patience; nothing was executed twice
	failed  = "500"        // the same, and every retry gets the error
	unknown = "unknown"    // the same, and the responses say that the outcome is unknown
	open    = "fails open" // executed without a record
	refused = "refused"    // a request that must run did not
)

// times is the finding of an operation that was executed too often.
func times(n int) string { return fmt.Sprintf("%d×", n) }

// scenario is something that happens to a service.
type scenario struct {
	name  string
	store bool // it needs a server of records
	run   func(t *trial) (string, error)
}

// trial is a run of a scenario with a contender.
type trial struct {
	ctx       context.Context
	place     *place
	contender contender
	at        [2]*instance
	key       string
	note      string // the last response of a caller without a result
}

func (t *trial) request(do string) request {
	return request{key: t.key, account: "acct_1", path: "/payments", do: do, amount: 42}
}

func (t *trial) slow(seconds float64) request {
	r := t.request("")
	r.seconds = seconds
	return r
}

// patience is how long a client repeats a request.
var patience = 4*lease + 2*time.Second

// insist repeats a request until it has a result, as a client does. A service that has ended is started again.
func (t *trial) insist(i *instance, r request) (a answer, err error) {
	for end := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		if err := i.ensure(t.ctx); err != nil {
			return a, err
		}
		if a = i.send(t.ctx, r); a.final() || a.status == http.StatusUnprocessableEntity || time.Now().After(end) {
			return a, t.ctx.Err()
		}
	}
}

// judge compares the results of callers with each other, and with the ledger.
func (t *trial) judge(answers ...answer) (string, error) { return t.judgeOf(t.key, 1, answers...) }

func (t *trial) judgeOf(key string, want int, answers ...answer) (string, error) {
	n, err := t.place.effects(t.ctx, key)
	if err != nil || n > want {
		return times(n), err
	}
	for _, a := range answers {
		switch {
		case a.final():
		case a.status == http.StatusGatewayTimeout:
			return unknown, nil
		default:
			t.note = fmt.Sprintf("%d %.200s", a.status, a.body)
			if a.status == http.StatusInternalServerError {
				return failed, nil
			}
			return stuck, nil
		}
		if !a.equal(answers[0]) {
			return differs, nil
		}
	}
	if n < want {
		return lost, nil
	}
	return passed, nil
}

// together sends requests at once, and repeats each until it has a result.
func (t *trial) together(n int, r request, at func(n int) *instance) ([]answer, error) {
	answers, errs := make([]answer, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { answers[i], errs[i] = t.insist(at(i), r) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return answers, nil
}

// retried sends a request whose answer does not matter, and repeats it at the other process.
func (t *trial) retried(r request) (string, error) {
	t.at[0].send(t.ctx, r)
	a, err := t.insist(t.at[1], r)
	if err != nil {
		return "", err
	}
	return t.judge(a)
}

// same sends a request, and repeats it at the other process.
func (t *trial) same(do string, effects int) (string, error) {
	first := t.at[0].send(t.ctx, t.request(do))
	again, err := t.insist(t.at[1], t.request(do))
	if err != nil {
		return "", err
	}
	if !first.final() {
		return refused, nil
	}
	return t.judgeOf(t.key, effects, first, again)
}

func same(do string, effects int) func(*trial) (string, error) {
	return func(t *trial) (string, error) { return t.same(do, effects) }
}

func retried(do string) func(*trial) (string, error) {
	return func(t *trial) (string, error) { return t.retried(t.request(do)) }
}

var scenarios = []scenario{
	{name: "retry at another process", run: same("", 1)},
	{name: "ten at once, one process", run: func(t *trial) (string, error) {
		answers, err := t.together(10, t.slow(0.3), func(int) *instance { return t.at[0] })
		if err != nil {
			return "", err
		}
		return t.judge(answers...)
	}},
	{name: "ten at once, two processes", run: func(t *trial) (string, error) {
		answers, err := t.together(10, t.slow(0.3), func(n int) *instance { return t.at[n%2] })
		if err != nil {
			return "", err
		}
		return t.judge(answers...)
	}},
	{name: "20 keys, each at both processes", run: twenty},
	{name: "same key, other content", run: func(t *trial) (string, error) {
		t.at[0].send(t.ctx, t.request(""))
		return t.mismatch()
	}},
	{name: "same key, other content, while the first runs", run: func(t *trial) (string, error) {
		var wg sync.WaitGroup
		wg.Go(func() { t.at[0].send(t.ctx, t.slow(1)) })
		time.Sleep(400 * time.Millisecond) // the first is in its handler
		finding, err := t.mismatch()
		wg.Wait()
		if n, other := t.place.effects(t.ctx, t.key); other == nil && n > 1 {
			return times(n), err
		}
		return finding, err
	}},
	{name: "same key, another account", run: func(t *trial) (string, error) {
		return t.another(func(r *request) { r.account = "acct_2" }, leaked)
	}},
	{name: "same key, another path", run: func(t *trial) (string, error) {
		return t.another(func(r *request) { r.path = "/refunds" }, wrong)
	}},
	{name: "killed before the write", run: retried("die before")},
	{name: "killed after the write", run: retried("die after")},
	{name: "error before the write", run: retried("fail before")},
	{name: "error after the write", run: retried("fail after")},
	{name: "client departs during the handler", run: func(t *trial) (string, error) {
		r := t.slow(0.8)
		r.departs = 300 * time.Millisecond
		t.at[0].send(t.ctx, r)
		r.departs = 0
		a, err := t.insist(t.at[1], r)
		if err != nil {
			return "", err
		}
		return t.judge(a)
	}},
	{name: "handler runs longer than the lease", run: func(t *trial) (string, error) { return t.late(2.5*lease.Seconds(), false) }},
	{name: "process is paused longer than the lease", run: func(t *trial) (string, error) { return t.late(0.8, true) }},
	{name: "both processes killed and started again", run: func(t *trial) (string, error) {
		first := t.at[0].send(t.ctx, t.request(""))
		for _, i := range t.at {
			i.service.Kill()
		}
		again, err := t.insist(t.at[0], t.request(""))
		if err != nil {
			return "", err
		}
		return t.judge(first, again)
	}},
	{name: "store killed during the handler", store: true, run: stored(0.8, func(t *trial, r request, kill, start func() error) (answer, error) {
		var wg sync.WaitGroup
		wg.Go(func() { t.at[0].send(t.ctx, r) })
		time.Sleep(400 * time.Millisecond) // the first is in its handler
		err := kill()
		wg.Wait()
		if err == nil {
			err = start()
		}
		return answer{}, err
	})},
	{name: "store down at the first request", store: true, run: stored(0, func(t *trial, r request, kill, start func() error) (answer, error) {
		if err := kill(); err != nil {
			return answer{}, err
		}
		a := t.at[0].send(t.ctx, r)
		return a, start()
	})},
	{name: "402 is replayed", run: same("decline", 0)},
	{name: "204 is replayed", run: same("nothing", 1)},
	{name: "bytes are replayed", run: same("bytes", 1)},
	{name: "text is replayed", run: same("text", 1)},
	{name: "header fields are replayed", run: same("headers", 1)},
	{name: "700 KB are replayed", run: same("large", 1)},
}

// mismatch sends another payment with the same key, which must not run, nor have the result of the first.
func (t *trial) mismatch() (string, error) {
	r := t.request("")
	r.amount = 43
	a := t.at[1].send(t.ctx, r)
	n, err := t.place.effects(t.ctx, t.key)
	switch {
	case err != nil || n > 1:
		return times(n), err
	case a.final():
		return wrong, nil
	}
	return passed, nil
}

// another sends a request that is another operation, or is refused.
func (t *trial) another(change func(*request), finding string) (string, error) {
	first := t.at[0].send(t.ctx, t.request(""))
	r := t.request("")
	change(&r)
	second := t.at[1].send(t.ctx, r)
	n, err := t.place.effects(t.ctx, t.key)
	switch {
	case err != nil:
		return "", err
	case !first.final():
		return refused, nil
	case second.final() && n < 2:
		return finding, nil
	case r.account != "acct_1" && !second.final():
		return refused, nil // the other account has the same right to its key
	}
	return passed, nil
}

// late sends a request that ends, or is paused until, after its lease; a retry comes before its end.
func (t *trial) late(seconds float64, pause bool) (string, error) {
	first := make(chan answer, 1)
	go func() { first <- t.at[0].send(t.ctx, t.slow(seconds)) }()
	time.Sleep(300 * time.Millisecond) // the first is in its handler
	if pause {
		if err := t.at[0].signal(syscall.SIGSTOP); err != nil {
			return "", err
		}
		time.AfterFunc(2*lease, func() { _ = t.at[0].signal(syscall.SIGCONT) })
	}
	time.Sleep(lease * 3 / 2)
	again, err := t.insist(t.at[1], t.slow(seconds))
	if err != nil {
		return "", err
	}
	<-first
	if !again.final() { // the end of the first may have been an answer
		if again, err = t.insist(t.at[1], t.slow(seconds)); err != nil {
			return "", err
		}
	}
	return t.judge(again)
}

// stored runs a scenario in which the server with the records is killed, and started again. It returns the answer of the time between.
func stored(seconds float64, what func(t *trial, r request, kill, start func() error) (answer, error)) func(*trial) (string, error) {
	return func(t *trial) (string, error) {
		r, s := t.slow(seconds), t.place.server(t.contender)
		between, err := what(t, r, s.Kill, func() error { return s.Start(t.ctx) })
		if err != nil {
			return "", err
		}
		if n, err := t.place.effects(t.ctx, t.key); err != nil || between.final() && n > 0 {
			return open, err
		}
		a, err := t.insist(t.at[1], r)
		if err != nil {
			return "", err
		}
		return t.judge(a)
	}
}

// twenty sends many keys at once, each to both processes.
func twenty(t *trial) (string, error) {
	findings, errs := make([]string, 20), make([]error, 20)
	var wg sync.WaitGroup
	for k := range findings {
		wg.Go(func() {
			r := t.slow(0.1)
			r.key = fmt.Sprint(t.key, "-", k)
			answers, err := t.together(2, r, func(n int) *instance { return t.at[n] })
			if err == nil {
				findings[k], err = t.judgeOf(r.key, 1, answers...)
			}
			errs[k] = err
		})
	}
	wg.Wait()
	for k, err := range errs {
		if err != nil || findings[k] != passed {
			return findings[k], err
		}
	}
	return passed, nil
}
