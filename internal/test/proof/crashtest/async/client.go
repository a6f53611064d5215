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
	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

const (
	customers    = 24 // operations in progress at a time
	manyCallers  = 20 // callers of an operation that many want at once
	oneInCrowds  = 16 // operations, that many want
	oneCancelled = 12 // and that a client changes its mind about
	patience     = 3  // times that a client asks about an unknown outcome, which may stay so
	firstBackoff = 10 * time.Millisecond
	maxBackoff   = 300 * time.Millisecond
	maxAnswer    = 1 << 20
	waitSeconds  = 2
)

// operation is what a customer wants done once, and what its callers need to know
// of each other's answers.
type operation struct {
	key, kind string
	cancels   bool // its client asks for its end, when it has been accepted

	mu       sync.Mutex
	location string
	known    bool // a client got the outcome
	unknowns int  // replies that it is unknown
	odd      bool // a client got nonsense
}

// reply is a response.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// clients are the clients of the APIs.
type clients struct {
	h     *crashtest.History
	http  *http.Client
	addrs []string
	f     flavour

	mu  sync.Mutex
	ops []*operation
}

func newClients(h *crashtest.History, f flavour) *clients {
	return &clients{h: h, f: f, http: &http.Client{Timeout: 20 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: 2 * customers, DialContext: (&net.Dialer{Timeout: 2 * time.Second}).DialContext}}}
}

func (c *clients) close() error {
	c.http.CloseIdleConnections()
	return c.h.Close()
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
					callers = manyCallers
				}
				c.want(ctx, op, callers)
			}
		})
	}
	all.Wait()
}

func (c *clients) invent() *operation {
	key := stet.NewKey()
	op := &operation{key: key, kind: c.f.kinds[rand.IntN(len(c.f.kinds))], cancels: rand.IntN(oneCancelled) == 0}
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
// that is unknown if that may stay so.
func (c *clients) see(ctx context.Context, op *operation) {
	prefer := ""
	if rand.IntN(3) == 0 {
		prefer = fmt.Sprintf("wait=%d", waitSeconds)
	}
	if !c.repeat(ctx, op, func() bool { return c.post(ctx, op, prefer) }) {
		return
	}
	if op.cancels && op.place() != "" { // what becomes of that, its status says
		_ = crash.Pause(ctx, rand.N(lease))
		c.send(ctx, op, http.MethodDelete, op.place(), "")
	}
	for range 3 { // a status resource first, and then the outcome, and the acceptance again
		if !c.repeat(ctx, op, func() bool { return c.look(ctx, op) }) ||
			!c.repeat(ctx, op, func() bool { return c.post(ctx, op, "wait=1") && op.isKnown() }) ||
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
		_ = crash.Pause(ctx, backoff/2+rand.N(backoff))
	}
	return false
}

// hopeless reports whether there is nothing more to be learned: something is wrong
// with the answers, or the outcome is unknown, and may stay so.
func (op *operation) hopeless() bool {
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.odd || op.kind == once && op.unknowns >= patience && !op.known
}

func (op *operation) isKnown() bool {
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.known
}

// post orders, with a preference; true if the answer is definite.
func (c *clients) post(ctx context.Context, op *operation, prefer string) bool {
	ev := c.send(ctx, op, http.MethodPost, orderPath+op.kind, prefer)
	return ev.Says == crashtest.AcceptedOnly || ev.Says == crashtest.Outcome
}

// look asks for the status, of any of the APIs; true if it is the last word.
func (c *clients) look(ctx context.Context, op *operation) bool {
	location := op.place()
	if location == "" { // the very first answer was the outcome
		return true
	}
	return c.send(ctx, op, http.MethodGet, location, fmt.Sprintf("wait=%d", waitSeconds)).Says == crashtest.Outcome
}

func (op *operation) place() string {
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.location
}

// send sends a request, and returns what the answer says; the judge sees the same.
func (c *clients) send(ctx context.Context, op *operation, method, path, prefer string) (said crashtest.Event) {
	end := c.h.Begin(op.asks(strings.HasPrefix(prefer, "wait=")))
	said.Kind = crashtest.Unsure
	defer func() { end(said) }()
	var body io.Reader
	if method == http.MethodPost {
		body = strings.NewReader(`{"key":"` + op.key + `"}`)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.addrs[rand.IntN(len(c.addrs))]+path, body)
	if err != nil {
		said = op.nonsense(reply{body: []byte(err.Error())}) // it got an invalid address
		return said
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
		return said
	}
	defer res.Body.Close()
	a := reply{status: res.StatusCode, header: res.Header}
	if a.body, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer)); err == nil {
		said = op.read(method, a)
	}
	return said
}

// asks is a request as a history has it.
func (op *operation) asks(waits bool) crashtest.Event {
	return crashtest.Event{Verb: crashtest.VerbRequest, ID: crashtest.OperationID(scope, op.key), Scope: scope, Key: op.key,
		Name: op.kind, Cancels: op.cancels, Patient: true, Waits: waits}
}

// notNow reports whether an answer says that the store could not be asked, and
// nothing about the operation: it must be tried again.
func (a reply) notNow() bool {
	return a.status == http.StatusServiceUnavailable || a.status == http.StatusGatewayTimeout &&
		(bytes.Contains(a.body, []byte("#acceptance-unknown")) || bytes.Contains(a.body, []byte("#status-unavailable")))
}

// read says what an answer says, and remembers what other callers need to know.
func (op *operation) read(method string, a reply) (ev crashtest.Event) {
	op.mu.Lock()
	defer op.mu.Unlock()
	switch {
	case a.notNow() || method == http.MethodDelete && a.status == http.StatusConflict:
		return crashtest.Event{Kind: crashtest.Unsure, Status: a.status}
	case method == http.MethodPost:
		ev = op.readOrder(a)
	default:
		ev = op.readStatus(a, method == http.MethodDelete)
	}
	ev.Status = a.status
	op.known = op.known || ev.Says == crashtest.Outcome
	if ev.Says == crashtest.OutcomeUnknown {
		op.unknowns++
	}
	return ev
}

func says(what string) crashtest.Event { return crashtest.Event{Kind: crashtest.OK, Says: what} }

func (op *operation) nonsense(a reply) crashtest.Event {
	op.odd = true
	ev := says(crashtest.Nonsense)
	ev.Why = fmt.Sprintf("%d: %s", a.status, a.body)
	return ev
}

// outcome is an answer with an outcome, of which a completed one is a receipt.
func outcome(body []byte) crashtest.Event {
	ev := says(crashtest.Outcome)
	ev.Digest = crashtest.Digest(body)
	var r receipt
	if json.Unmarshal(body, &r) == nil {
		ev.Of = r.IDs
	}
	return ev
}

// readOrder reads the answer to an order.
func (op *operation) readOrder(a reply) (ev crashtest.Event) {
	switch {
	case a.status == http.StatusAccepted:
		if ev = says(crashtest.AcceptedOnly); op.location == "" {
			op.location = a.header.Get("Location")
		}
		ev.Digest = crashtest.Digest([]byte(a.header.Get("Location") + "\n" + string(a.body)))
		ev.Fresh = a.header.Get(stethttp.DefaultReplayedHeader) == ""
		return ev
	case a.status == http.StatusOK, a.status == http.StatusConflict && op.isCancelled(a.body):
		return outcome(bytes.TrimSpace(a.body))
	case a.status == http.StatusConflict: // it is in flight
		return crashtest.Event{Kind: crashtest.Unsure}
	case a.status == http.StatusGatewayTimeout:
		return says(crashtest.OutcomeUnknown)
	}
	return op.nonsense(a)
}

// isCancelled reports whether a problem says that the operation was cancelled, as
// one was asked for, and not that it is in flight.
func (op *operation) isCancelled(problem []byte) bool {
	return op.cancels && bytes.Contains(problem, []byte("#operation-cancelled"))
}

// readStatus reads a status; the one after a cancellation may be said to be
// accepted.
func (op *operation) readStatus(a reply, cancelled bool) (ev crashtest.Event) {
	var doc struct {
		State    string `json:"state"`
		Attempts int    `json:"attempts"`
		Outcome  struct {
			Status  int             `json:"status"`
			Result  json.RawMessage `json:"result"`
			Problem json.RawMessage `json:"problem"`
		} `json:"outcome"`
	}
	definite := a.status == http.StatusOK || cancelled && a.status == http.StatusAccepted
	if err := json.Unmarshal(a.body, &doc); err != nil || !definite {
		return op.nonsense(a)
	}
	switch {
	case doc.State == store.Completed.String() && doc.Outcome.Status == http.StatusOK:
		ev = outcome(doc.Outcome.Result)
	case doc.State == store.Failed.String() && doc.Outcome.Status == http.StatusConflict && op.isCancelled(doc.Outcome.Problem):
		ev = outcome(doc.Outcome.Problem)
	case doc.State == store.Unknown.String():
		ev = says(crashtest.OutcomeUnknown)
	case doc.State == store.Accepted.String(), doc.State == store.Running.String():
		ev = says(crashtest.InProgress)
	default:
		return op.nonsense(a)
	}
	ev.Attempt = doc.Attempts
	return ev
}

func (c *clients) all() []*operation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.ops)
}
