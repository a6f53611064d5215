// Package stettest finds duplicate effects. Check sends operations to an HTTP handler as real clients do:
// it repeats requests, sends duplicates at the same time, disconnects, and loses responses. CheckCommand does
// the same with a program, which it also kills with SIGKILL and starts again. Both count the effects in your
// database. They work with and without stet.
//
//	func TestPaymentsAreMadeOnce(t *testing.T) {
//		db, handler := newShop(t)
//		stettest.Check(t, handler, stettest.Service{
//			Request: func(n int) *http.Request {
//				return httptest.NewRequest("POST", "/payments", strings.NewReader(fmt.Sprintf(`{"amount":%d}`, n)))
//			},
//			Effects: func(n int) (count int, err error) {
//				err = db.QueryRow("SELECT count(*) FROM payments WHERE amount = $1", n).Scan(&count)
//				return count, err
//			},
//		})
//	}
//
// Each operation has a number of its own, and a new key. A response of 2xx promises one effect, and the same
// response to every retry. Any other response promises at most one. Retries continue after a transport error, and after 409,
// 425, 429, 500, 502 and 503. Another request with a used key must receive 4xx.
package stettest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"testing"
	"time"
)

// Service says how operations are requested, and how their effects are counted.
type Service struct {
	// Request returns the request of operation n, without a key. Only the path and the query of its URL are used.
	// Each operation needs another payload or target. Required; nil ends the test.
	Request func(n int) *http.Request
	// Effects returns the number of effects of operation n, for example rows. Required; nil or an error ends the test.
	Effects func(n int) (int, error)
	// Header has the key. Default: Idempotency-Key.
	Header string
	// Patience is the time after which an operation without a final response is reported. In lease mode it
	// must be longer than the lease. Default: 2 minutes.
	Patience time.Duration
}

const (
	duplicates = 4 // of an operation, at the same time
	rounds     = 3 // of each case that depends on time
)

// Check calls the handler through a listener, and reports each duplicate effect and each changed response by t.Errorf.
// It takes some 30 requests. A lost response is simulated by a panic with http.ErrAbortHandler at its first byte.
func Check(t testing.TB, handler http.Handler, s Service) {
	t.Helper()
	faults := &faults{next: handler, planned: map[string]*fault{}, header: cmp.Or(s.Header, "Idempotency-Key")}
	server := httptest.NewServer(faults)
	defer server.Close()
	c := newChecker(t, s)
	c.base, c.faults = server.URL, faults
	c.requests()
	for range rounds {
		c.disconnected()
		c.lost()
	}
	c.recount()
}

// CheckCommand calls a program, and kills it at several moments of a request: when its effect is
// visible, after its response, and in between. start returns the command, not started, of a service that listens
// on addr. State must survive in files or a database. On Linux the process group is killed, elsewhere the process only.
// CheckCommand takes some 15 starts of the program.
func CheckCommand(t testing.TB, start func(addr string) *exec.Cmd, s Service) {
	t.Helper()
	c := newChecker(t, s)
	c.program = &program{t: t, start: start, patience: c.Patience}
	defer c.program.kill()
	c.base = c.program.run()
	c.requests()
	for round := range rounds {
		c.disconnected()
		c.killed("killed when the effect is visible", c.visible)
		c.killed("killed after the response", func(_ int, answered <-chan answer) { <-answered })
		c.killed("killed during the request", func(_ int, answered <-chan answer) {
			wait(answered, c.typical*time.Duration(round+1)/(rounds+1))
		})
	}
	c.recount()
}

// checker runs the cases.
type checker struct {
	Service
	t       testing.TB
	base    string
	faults  *faults  // nil for a command
	program *program // nil for a handler
	typical time.Duration
	n       int
	sent    []*operation
}

// operation is a request with its key.
type operation struct {
	n    int
	key  string
	once int  // the number of effects that its responses promise: 1, or 0 for at most one
	told bool // an error was reported; one is enough
}

func newChecker(t testing.TB, s Service) *checker {
	t.Helper()
	if s.Request == nil || s.Effects == nil {
		t.Fatal("stettest: Service.Request and Service.Effects are required")
	}
	s.Header, s.Patience = cmp.Or(s.Header, "Idempotency-Key"), cmp.Or(s.Patience, 2*time.Minute)
	return &checker{Service: s, t: t, n: 1_000_000 + rand.IntN(900_000_000)} //nolint:gosec // a database can have the operations of earlier runs
}

// begin returns a new operation.
func (c *checker) begin() *operation {
	c.n++
	op := &operation{n: c.n, key: fmt.Sprintf("stettest-%d-%d", c.n, rand.Uint64())} //nolint:gosec // no secret
	c.sent = append(c.sent, op)
	return op
}

// requests runs the cases that need neither a fault nor a kill.
func (c *checker) requests() {
	c.t.Helper()
	op := c.begin()
	began := time.Now()
	first := c.send(c.t.Context(), op.n, op.key)
	c.typical = time.Since(began)
	if !first.ok() {
		c.t.Fatalf("stettest: the first request of operation %d received %v: let Service.Request return a request that succeeds", op.n, first)
	}
	for range rounds {
		c.same("repeated", op, first, c.final("repeated", op))
	}
	c.count("repeated", op, first)
	c.other(op, first)
	for range rounds {
		c.together()
	}
}

// other sends another request under a used key.
func (c *checker) other(op *operation, first answer) {
	c.t.Helper()
	other := c.begin()
	switch a := c.send(c.t.Context(), other.n, op.key); {
	case a.ok() && a.body == first.body:
		c.t.Errorf("stettest: another request: operation %d with the key of operation %d received the response of %d; want 4xx", other.n, op.n, op.n)
	case a.ok():
		c.t.Errorf("stettest: another request: operation %d with the key of operation %d received %v; want 4xx", other.n, op.n, a)
	}
}

// together sends duplicates of two operations at the same time.
func (c *checker) together() {
	c.t.Helper()
	const name = "at the same time"
	ops := []*operation{c.begin(), c.begin()}
	type pair struct {
		op *operation
		answer
	}
	answers := make(chan pair, len(ops)*duplicates)
	for i := range cap(answers) {
		op := ops[i%len(ops)]
		if c.faults != nil && i < len(ops) {
			c.faults.meet(op.key, duplicates)
		}
		go func() { answers <- pair{op, c.send(c.t.Context(), op.n, op.key)} }() // ends with its request
	}
	got := make(map[*operation][]answer)
	for range cap(answers) {
		a := <-answers
		got[a.op] = append(got[a.op], a.answer)
	}
	for _, op := range ops {
		last := c.final(name, op)
		for _, a := range got[op] {
			if a.ok() {
				c.same(name, op, a, last)
			}
		}
		c.count(name, op, last)
	}
}

// same compares the responses of two requests of one operation.
func (c *checker) same(name string, op *operation, first, again answer) {
	c.t.Helper()
	if first.ok() && !again.equal(first) && again.err == nil && !op.told {
		op.told = true
		c.t.Errorf("stettest: %s: operation %d received %v, and on a retry %v; want the same status, body, Content-Type and Location", name, op.n, first, again)
	}
}

// count compares the number of effects with the promise of the response.
func (c *checker) count(name string, op *operation, last answer) {
	c.t.Helper()
	if last.ok() {
		op.once = 1
	}
	if c.faults != nil {
		c.faults.wait(op.key, c.Patience)
	}
	n := c.effects(op)
	if (n > 1 || n < op.once) && !op.told {
		op.told = true
		c.t.Errorf("stettest: %s: operation %d has %d effects after %v; want %s", name, op.n, n, last, map[int]string{0: "at most 1", 1: "1"}[op.once])
	}
}

func (c *checker) effects(op *operation) int {
	c.t.Helper()
	n, err := c.Effects(op.n)
	if err != nil {
		c.t.Fatalf("stettest: Service.Effects(%d): %v", op.n, err)
	}
	return n
}

// recount finds effects that came late.
func (c *checker) recount() {
	c.t.Helper()
	for _, op := range c.sent {
		if n := c.effects(op); n > 1 && !op.told {
			c.t.Errorf("stettest: operation %d has %d effects at the end; want 1", op.n, n)
		}
	}
}
