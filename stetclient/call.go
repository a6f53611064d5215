package stetclient

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/misuse"
)

type callKey struct{}

// inlineReply is how large a response may be that is kept in the call itself.
const inlineReply = 1 << 10

// call is one operation on its way. It is the context of its requests, so that
// InfoOf finds it; it holds what a first attempt needs, so that this is one
// allocation.
type call struct {
	context.Context // the caller's

	t      *Transport
	key    string
	given  bool   // the key is the caller's
	intent string // its name in the journal
	from   *call  // the call that was redirected to this one; may be nil

	created   time.Time // of the intent
	minted    bool      // the key was never used before this call
	ours      bool      // no other call can send the intent again
	resuming  bool      // for Resume
	resending bool      // an http.Client has the body once more, if redirected
	req       http.Request
	field     [1]string // the values of the key's header
	body      body
	plain     []byte // the body in memory, before Service.PutKey
	series    series

	res      *http.Response // of the last attempt
	reply    reply
	replayed bool
	whole    bool // all of the response is in kept
	pending  bool // in the journal, without an outcome
	problem  *Problem
	err      error // of the last attempt
	refused  bool  // err is the circuit breaker's
	kept     []byte
	inline   [inlineReply]byte
}

// Value implements context.Context.
func (c *call) Value(key any) any {
	if _, ok := key.(callKey); ok {
		return c
	}
	return c.Context.Value(key)
}

func (c *call) info() Info {
	i := c.series.info()
	i.Key, i.Replayed, i.Problem, i.Pending = c.key, c.replayed, c.problem, c.pending
	return i
}

// prepare makes the request that is sent, and its body.
func (c *call) prepare(req *http.Request) error {
	s := &c.t.o.Service
	if req.URL == nil || req.Header == nil {
		return misuse.Errorf("stetclient: the request has no URL, or no header")
	}
	if _, named := c.Context.Value(intentName{}).(string); named && c.t.o.Journal == nil {
		return misuse.Errorf("stetclient: the request has an intent, and the Transport no journal to keep it: set Options.Journal")
	}
	c.from = redirected(req)
	c.resending = req.GetBody != nil || req.Body == nil || req.Body == http.NoBody
	key, field, err := c.chooseKey(req)
	if err != nil {
		return err
	}
	if err := c.body.load(req, c.t.o.MaxBody, s.PutKey != nil || c.t.o.Journal != nil); err != nil {
		return err
	}
	c.plain = c.body.bytes
	c.req = *req.WithContext(c)
	c.req.Header = maps.Clone(req.Header)
	c.req.Response = nil
	return c.useKey(key, field)
}

// useKey puts a key into the request.
func (c *call) useKey(key, field string) error {
	c.key = key
	if s := &c.t.o.Service; s.PutKey == nil {
		c.field[0] = field
		c.req.Header[s.Header] = c.field[:]
	} else {
		delete(c.req.Header, s.Header)
		b, err := s.PutKey(slices.Clone(c.plain), key)
		if err != nil {
			return fmt.Errorf("Service.PutKey: %w", err)
		}
		c.body.bytes = b
	}
	if c.body.held {
		c.req.ContentLength, c.req.TransferEncoding = int64(len(c.body.bytes)), nil
	}
	return nil
}

// do makes attempts until there is an outcome, or none to be had; known is what
// is known of attempts before this call.
func (c *call) do(known stet.Execution) (*http.Response, error) {
	defer c.body.close()
	if cause := context.Cause(c.Context); cause != nil {
		c.series.execution = known
		return nil, c.failure(ReasonContext, cause)
	}
	c.t.budgets.earn(c.req.URL.Host, c.t.o.Budget.Ratio)
	c.series.begin(c.Context, &c.t.o.Policy, c, known)
	c.series.run()
	switch {
	case c.series.reason != "":
		return nil, c.failure(c.series.reason, c.err)
	case c.refused:
		return nil, c.failure(ReasonBreaker, c.err)
	case c.err != nil:
		return nil, c.failure(ReasonFinal, c.err)
	case !c.series.last.stands && c.series.last.Execution == stet.NotExecuted && (c.resuming || c.series.execution != stet.NotExecuted):
		return nil, c.failure(ReasonRefused, nil)
	}
	return c.res, nil
}

// known is what is known of the attempts before this call, apart from what the
// journal knows: the response that redirected it here asked for the request to
// be sent elsewhere, and so is no execution.
func (c *call) known() stet.Execution {
	if c.from != nil {
		return c.from.series.earlier
	}
	return stet.NotExecuted
}

// failure is the error of the call.
func (c *call) failure(reason Reason, cause error) *Error {
	if ended := context.Cause(c.Context); reason == ReasonContext && !errors.Is(cause, ended) {
		cause = errors.Join(ended, cause)
	}
	c.drop()
	return &Error{Reason: reason, Info: c.info(), RetryAfter: c.series.last.After, Response: c.res, Cause: cause}
}

// drop closes the last response, which will not be returned.
func (c *call) drop() {
	if c.res == nil || c.res.Body == &c.reply {
		return
	}
	_ = c.res.Body.Close() // what it has to say does not matter any more
	c.reply.Reset(c.kept)
	c.res.Body = &c.reply
}

// again implements attempter.
func (c *call) again(wait time.Duration) Reason {
	if c.body.once {
		return ReasonBody
	}
	if c.t.o.Journal != nil && stale(c.created, wait, c.t.o.MaxAge) {
		return ReasonStale
	}
	if c.res != nil && c.res.StatusCode == http.StatusConflict {
		return ""
	}
	if !c.t.budgets.spend(c.req.URL.Host, time.Now()) {
		return ReasonBudget
	}
	return ""
}

// attempt implements attempter: it sends the request once.
func (c *call) attempt() Resolution {
	c.drop()
	c.res, c.err, c.problem, c.replayed = nil, nil, nil, false
	var done func(error)
	if c.t.o.Breaker != nil {
		if done, c.err = c.t.o.Breaker(&c.req); c.err != nil {
			c.refused = true
			return Resolution{Execution: stet.NotExecuted}
		}
	}
	v := c.exchange()
	if done != nil {
		done(c.against())
	}
	c.observe(v)
	return v
}

// against is what speaks against the service, for its circuit breaker.
func (c *call) against() error {
	if c.err == nil && c.res != nil && (c.res.StatusCode >= 500 || c.res.StatusCode == http.StatusTooManyRequests) && !c.replayed {
		return fmt.Errorf("status %d", c.res.StatusCode)
	}
	return c.err
}

func (c *call) observe(v Resolution) {
	if c.t.o.Observe == nil {
		return
	}
	ev := Event{Host: c.req.URL.Host, Intent: label(c.intent, c.key), Attempt: c.series.attempts, Err: c.err, Execution: v.Execution, Retry: v.Retry, After: v.After}
	if c.res != nil {
		ev.Status = c.res.StatusCode
	}
	c.t.o.Observe(c, ev)
}

// exchange sends the request and takes the response.
func (c *call) exchange() Resolution {
	req, err := c.outgoing()
	if err != nil {
		c.err = err
		return Resolution{Execution: stet.NotExecuted}
	}
	var cancel context.CancelCauseFunc
	var timer *time.Timer
	if d := c.t.o.Policy.AttemptTimeout; d > 0 {
		var ctx context.Context
		ctx, cancel = context.WithCancelCause(c)
		timer = time.AfterFunc(d, func() { cancel(errAttemptTimeout) })
		defer timer.Stop()
		req = req.WithContext(ctx)
	}
	req, wire := watched(req)
	fault.At(fault.SendBefore)
	res, err := c.t.base.RoundTrip(req)
	if err == nil && res == nil {
		err = errNothing
	}
	if err == nil {
		fault.At(fault.Answered)
		err = c.take(res, cancel)
	}
	if err != nil && cancel != nil && context.Cause(req.Context()) == errAttemptTimeout { //nolint:errorlint // it is returned as it is
		err = errAttemptTimeout
	}
	if cancel != nil && (err != nil || c.whole) {
		cancel(nil)
	}
	if err == nil {
		var v Resolution
		v, c.replayed, c.problem = c.t.o.Service.judge(res, c.kept)
		return v
	}
	c.err = err
	v := verdictOfFailure(err)
	if !wire.untouched() {
		v.Execution = stet.MayHaveExecuted
	}
	if c.res != nil { // it said something, and broke off
		v.Execution = executionOf(res.StatusCode, res.Header, res.Header.Get(c.t.o.Service.ReplayedHeader) == "true", nil)
		v.Retry = v.Retry && !never(res.StatusCode)
	}
	return v
}

var errNothing = errors.New("the RoundTripper returned neither a response nor an error")

// outgoing returns the request of the next attempt.
func (c *call) outgoing() (*http.Request, error) {
	rc, err := c.body.open()
	if err != nil {
		return nil, err
	}
	req := &c.req
	if c.series.attempts > 1 {
		// The RoundTripper may still be busy with the one before.
		req = c.req.Clone(c)
	}
	// net/http sends a request with a key again by itself when an idle connection
	// breaks, unless it cannot have the body once more. It must not: that attempt would
	// not be counted, and if it then cannot connect, the error looks as if nothing had
	// been sent.
	req.Body, req.GetBody = rc, nil
	if rc == nil && c.t.o.Policy.MaxAttempts == 1 {
		// Without a length it is sent in chunks, of which there are none.
		// Where there are retries this is left to watched, because not every
		// server takes that for an empty body.
		req.Body, req.ContentLength = opaque{}, -1
	}
	return req, nil
}

// wire is what an attempt did on the network, as far as net/http tells.
type wire struct {
	asked, got atomic.Bool // for a connection, and one that could be written to
	trace      httptrace.ClientTrace
}

// watched returns req with a note of what becomes of it.
func watched(req *http.Request) (*http.Request, *wire) {
	w := new(wire)
	w.trace.GetConn = func(string) { w.asked.Store(true) }
	w.trace.GotConn = func(httptrace.GotConnInfo) { w.got.Store(true) }
	return req.WithContext(httptrace.WithClientTrace(req.Context(), &w.trace)), w
}

// untouched reports whether it is certain that nothing was sent. The error alone
// does not say so: a RoundTripper that retries by itself may end with a failed
// dial after an attempt that was lost.
func (w *wire) untouched() bool { return w.asked.Load() && !w.got.Load() }

// take reads the response as far as it is kept in memory.
func (c *call) take(res *http.Response, cancel context.CancelCauseFunc) error {
	if res.Request == nil || res.Request.Context().Value(callKey{}) != c {
		res.Request = &c.req
	}
	if res.Body == nil { // against the contract; http.Client forgives it too
		res.Body = http.NoBody
	}
	c.res, c.kept, c.whole = res, nil, false
	limit, buffered := c.t.o.buffers(res)
	if !buffered {
		if cancel != nil || res.StatusCode != http.StatusSwitchingProtocols {
			res.Body = &stream{c: c, rest: res.Body, cancel: cancel}
		}
		return nil
	}
	b := c.inline[:0]
	if n := res.ContentLength; n > inlineReply && n <= int64(limit) {
		b = make([]byte, 0, n)
	}
	var err error
	rest := res.Body
	if c.kept, c.whole, err = readUpTo(b, rest, limit); err != nil || c.whole {
		_ = rest.Close() // read to its end, or broken
		c.reply.Reset(c.kept)
		res.Body = &c.reply
		return err
	}
	res.Body = &stream{c: c, ahead: c.kept, rest: rest, cancel: cancel}
	return nil
}
