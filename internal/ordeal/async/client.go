package async

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
)

const (
	customers    = 24 // operations under way at a time
	crowd        = 20 // callers of an operation that many want at once
	oneInCrowds  = 16 // operations, that many want
	oneCancelled = 12 // and that a client changes its mind about
	patience     = 3  // times that a client asks about an outcome nobody knows, which may stay so
	firstBackoff = 10 * time.Millisecond
	maxBackoff   = 300 * time.Millisecond
	maxAnswer    = 1 << 20
	waitSeconds  = 2
)

// operation is what a customer wants done once, and what all callers were told
// about it.
type operation struct {
	key, kind string
	body      string
	cancels   bool // its client asks for its end, when it has been accepted

	mu       sync.Mutex
	accepted []byte // the body of every 202
	location string
	fresh    int    // answers that said they had accepted it
	outcome  []byte // of whoever was told first
	attempts int    // as far as known
	unknowns int    // answers that nobody knows
	wrong    []string
}

// reply is a response, and what was known when the request was made.
type reply struct {
	status  int
	header  http.Header
	body    []byte
	waited  bool // for the outcome
	settled bool // somebody had been told the outcome before
	tried   int  // the attempts that somebody had been told of before
}

// clients are the clients of the APIs.
type clients struct {
	http  *http.Client
	addrs []string
	f     flavour

	mu  sync.Mutex
	ops []*operation
}

func newClients(f flavour, addrs []string) *clients {
	return &clients{f: f, addrs: addrs, http: &http.Client{Timeout: 20 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: 2 * customers, DialContext: (&net.Dialer{Timeout: 2 * time.Second}).DialContext}}}
}

func (c *clients) close() { c.http.CloseIdleConnections() }

func (c *clients) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.ops)
}

// orderUntil has operations done until enough is closed.
func (c *clients) orderUntil(ctx context.Context, enough <-chan struct{}) {
	var all sync.WaitGroup
	for range customers {
		all.Go(func() {
			for ctx.Err() == nil {
				select {
				case <-enough:
					return
				default:
				}
				op := c.invent()
				callers := 1
				if rand.IntN(oneInCrowds) == 0 {
					callers = crowd
				}
				c.want(ctx, op, callers)
			}
		})
	}
	all.Wait()
}

func (c *clients) invent() *operation {
	key := stet.NewKey()
	op := &operation{key: key, kind: c.f.kinds[rand.IntN(len(c.f.kinds))], body: `{"key":"` + key + `"}`,
		cancels: rand.IntN(oneCancelled) == 0}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ops = append(c.ops, op)
	return op
}

// want has callers ask for the same at the same time.
func (c *clients) want(ctx context.Context, op *operation, callers int) {
	var all sync.WaitGroup
	for range callers {
		all.Go(func() { c.see(ctx, op) })
	}
	all.Wait()
}

// see does what a client does: it asks until its order is accepted, looks at the
// status until it has an outcome, and fetches that. It gives up on an outcome that
// nobody knows if that may stay so.
func (c *clients) see(ctx context.Context, op *operation) {
	prefer := ""
	if rand.IntN(3) == 0 {
		prefer = fmt.Sprintf("wait=%d", waitSeconds)
	}
	if !c.repeat(ctx, op, func() bool { return c.post(ctx, op, prefer) }) {
		return
	}
	if op.cancels && op.place() != "" {
		pause(ctx, rand.N(lease))
		c.cancel(ctx, op)
	}
	for range 3 { // a status resource first, and then the outcome, and the acceptance again
		if !c.repeat(ctx, op, func() bool { return c.look(ctx, op) }) ||
			!c.repeat(ctx, op, func() bool { return c.post(ctx, op, "wait=1") && op.known() }) ||
			!c.repeat(ctx, op, func() bool { return c.post(ctx, op, "respond-async") }) {
			return
		}
		if rand.IntN(2) == 0 {
			return
		}
	}
}

// repeat tries until it has its answer. False: it was given up.
func (c *clients) repeat(ctx context.Context, op *operation, try func() bool) bool {
	for backoff := firstBackoff; ctx.Err() == nil; backoff = min(2*backoff, maxBackoff) {
		if try() {
			return true
		}
		if op.hopeless() {
			return false
		}
		pause(ctx, backoff/2+rand.N(backoff))
	}
	return false
}

// hopeless reports whether there is nothing more to be learned: something is wrong
// with the answers, or nobody knows the outcome, and nobody may ever.
func (op *operation) hopeless() bool {
	op.mu.Lock()
	defer op.mu.Unlock()
	return len(op.wrong) > 0 || op.kind == once && op.unknowns >= patience && op.outcome == nil
}

func (op *operation) known() bool {
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.outcome != nil
}

// post orders, with a preference; true if the answer is definite.
func (c *clients) post(ctx context.Context, op *operation, prefer string) bool {
	a, ok := c.send(ctx, op, http.MethodPost, orderPath+op.kind, prefer)
	return ok && op.judgeOrder(a)
}

// look asks for the status, of any of the APIs.
func (c *clients) look(ctx context.Context, op *operation) bool {
	location := op.place()
	if location == "" { // the very first answer was the outcome
		return true
	}
	a, ok := c.send(ctx, op, http.MethodGet, location, fmt.Sprintf("wait=%d", waitSeconds))
	return ok && op.judgeStatus(a)
}

// cancel asks for the end of an operation, once: what becomes of that, its status
// says.
func (c *clients) cancel(ctx context.Context, op *operation) {
	a, ok := c.send(ctx, op, http.MethodDelete, op.place(), "")
	if !ok || a.status == http.StatusServiceUnavailable || a.status == http.StatusConflict {
		return
	}
	if a.status == http.StatusAccepted {
		a.status = http.StatusOK // the document is the same
	}
	op.judgeStatus(a)
}

func (op *operation) place() string {
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.location
}

// send sends a request; false if there was no whole answer.
func (c *clients) send(ctx context.Context, op *operation, method, path, prefer string) (a reply, ok bool) {
	op.mu.Lock()
	a = reply{settled: op.outcome != nil, tried: op.attempts, waited: strings.HasPrefix(prefer, "wait=")}
	op.mu.Unlock()
	var body io.Reader
	if method == http.MethodPost {
		body = strings.NewReader(op.body)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.addrs[rand.IntN(len(c.addrs))]+path, body)
	if err != nil {
		op.accuse("it was told an address that is none: %v", err)
		return a, false
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(stethttp.DefaultHeader, strconv.Quote(op.key))
	}
	if prefer != "" {
		req.Header.Set("Prefer", prefer)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return a, false
	}
	defer res.Body.Close()
	a.body, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	a.status, a.header = res.StatusCode, res.Header
	return a, err == nil
}

// judgeOrder judges an answer to an order: whether it is the truth, and whether a
// client would stop at it.
func (op *operation) judgeOrder(a reply) bool {
	op.mu.Lock()
	defer op.mu.Unlock()
	switch a.status {
	case http.StatusAccepted:
		op.isAccepted(a)
		return true
	case http.StatusOK:
		op.isOutcome(bytes.TrimSpace(a.body))
		return true
	case http.StatusGatewayTimeout:
		op.isUnknown(a, a.body)
	case http.StatusServiceUnavailable: // to be tried again
	case http.StatusConflict:
		if op.isCancelled(a.body) {
			op.isOutcome(bytes.TrimSpace(a.body))
			return true
		}
	default:
		op.accuseLocked("an order was answered with %d: %s", a.status, a.body)
	}
	return false
}

// isCancelled reports whether a problem says that the operation was cancelled, as
// one was asked for, and not that it is in flight.
func (op *operation) isCancelled(problem []byte) bool {
	return op.cancels && bytes.Contains(problem, []byte("#operation-cancelled"))
}

func (op *operation) isAccepted(a reply) {
	if op.accepted == nil {
		op.accepted, op.location = a.body, a.header.Get("Location")
	}
	if !bytes.Equal(op.accepted, a.body) || op.location != a.header.Get("Location") {
		op.accuseLocked("two acceptances: %s at %s, and %s at %s", op.accepted, op.location, a.body, a.header.Get("Location"))
	}
	if a.header.Get(stethttp.DefaultReplayedHeader) == "" {
		op.fresh++
	}
	if op.fresh > 1 {
		op.accuseLocked("two answers said that they had accepted it")
	}
	if a.settled && a.waited {
		op.accuseLocked("the outcome was known, and a client that wanted it was told that it was accepted")
	}
}

func (op *operation) isOutcome(body []byte) {
	if op.outcome == nil {
		op.outcome = body
	}
	if !bytes.Equal(op.outcome, body) {
		op.accuseLocked("two outcomes: %s and %s", op.outcome, body)
	}
}

func (op *operation) isUnknown(a reply, said []byte) {
	op.unknowns++
	if a.settled {
		op.accuseLocked("the outcome was known, and a client was told otherwise: %s", said)
	}
}

// judgeStatus judges a status, and reports whether it is the last word.
func (op *operation) judgeStatus(a reply) bool {
	op.mu.Lock()
	defer op.mu.Unlock()
	if a.status == http.StatusServiceUnavailable {
		return false
	}
	var doc struct {
		State    string `json:"state"`
		Attempts int    `json:"attempts"`
		Outcome  struct {
			Status  int             `json:"status"`
			Result  json.RawMessage `json:"result"`
			Problem json.RawMessage `json:"problem"`
		} `json:"outcome"`
	}
	if err := json.Unmarshal(a.body, &doc); err != nil || a.status != http.StatusOK {
		op.accuseLocked("a status was answered with %d: %s", a.status, a.body)
		return false
	}
	if doc.Attempts < a.tried {
		op.accuseLocked("its attempts went back from %d: %s", a.tried, a.body)
	}
	op.attempts = max(op.attempts, doc.Attempts)
	switch doc.State {
	case stet.Completed.String():
		if doc.Outcome.Status != http.StatusOK {
			op.accuseLocked("it completed with %d: %s", doc.Outcome.Status, a.body)
		}
		op.isOutcome(doc.Outcome.Result)
		return true
	case stet.Failed.String():
		if doc.Outcome.Status != http.StatusConflict || !op.isCancelled(doc.Outcome.Problem) {
			op.accuseLocked("it failed: %s", a.body)
		}
		op.isOutcome(doc.Outcome.Problem)
		return true
	case stet.Unknown.String():
		op.isUnknown(a, a.body)
	case stet.Accepted.String(), stet.Running.String():
		if a.settled {
			op.accuseLocked("the outcome was known, and its status was %s", a.body)
		}
	default:
		op.accuseLocked("its status was %s", a.body)
	}
	return false
}

const maxAccusations = 5 // of an operation

func (op *operation) accuse(format string, args ...any) {
	op.mu.Lock()
	defer op.mu.Unlock()
	op.accuseLocked(format, args...)
}

func (op *operation) accuseLocked(format string, args ...any) {
	if len(op.wrong) < maxAccusations {
		op.wrong = append(op.wrong, fmt.Sprintf(format, args...))
	}
}

func (c *clients) all() []*operation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.ops)
}
