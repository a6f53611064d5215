package stetclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/misuse"
)

type callKey struct{}

// call is one operation. It is the context of its requests, so that InfoOf finds it from
// a response.
type call struct {
	context.Context // the caller's

	t      *Transport
	key    string
	given  bool // the key is the caller's
	req    *http.Request
	body   body
	series series
	got    received
	entry  entry
}

// received is the result of the last attempt.
type received struct {
	res      *http.Response // nil without one
	err      error
	body     []byte // read of the response
	whole    bool   // body is all of it
	replayed bool
	problem  *Problem
	cancel   context.CancelCauseFunc // ends the context of the attempt
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
	i.Key, i.Replayed, i.Problem, i.Pending = c.key, c.got.replayed, c.got.problem, c.entry.pending
	return i
}

// prepare makes the request that is sent, and its body.
func (c *call) prepare(req *http.Request) error {
	if req.URL == nil || req.Header == nil {
		return misuse.Errorf("stetclient: the request has no URL, or no header")
	}
	if _, named := c.Context.Value(intentName{}).(string); named && c.t.o.Journal == nil {
		return misuse.Errorf("stetclient: the request has an intent, and the Transport no journal to store it: set Options.Journal")
	}
	key, err := c.chooseKey(req)
	if err != nil {
		return err
	}
	if err := c.body.load(req, c.t.o.MaxBody, c.t.o.Journal != nil); err != nil {
		return err
	}
	c.req = req.Clone(c)
	c.req.Response, c.req.Body, c.req.GetBody = nil, nil, nil
	if c.body.get == nil {
		c.req.ContentLength, c.req.TransferEncoding = int64(len(c.body.bytes)), nil
	}
	c.useKey(key)
	return nil
}

// useKey puts a key into the request. A key in the request's header stays as the caller
// wrote it.
func (c *call) useKey(key string) {
	c.key = key
	if name := c.t.o.Service.Header; !c.given || len(c.req.Header[name]) == 0 {
		c.req.Header[name] = []string{c.t.field(key)}
	}
}

// do makes attempts until there is an outcome, or the call ends without one. known is
// the knowledge from attempts before this call.
func (c *call) do(known stet.Execution) (*http.Response, error) {
	c.series = series{policy: &c.t.o.Policy, execution: known}
	if cause := context.Cause(c.Context); cause != nil {
		return nil, c.failure(ReasonContext, cause)
	}
	c.series.run(c.Context, c.attempt, c.again)
	switch {
	case c.series.reason != "":
		return nil, c.failure(c.series.reason, c.got.err)
	case c.got.err != nil:
		return nil, c.failure(c.finality(), c.got.err)
	case c.t.o.Journal != nil && redirects(c.got.res):
		c.series.execution = c.series.earlier // a redirect executes nothing
		return nil, c.failure(ReasonFinal, errRedirected)
	case !c.series.last.stands && c.series.last.Execution == stet.NotExecuted && (c.entry.resuming || c.series.execution != stet.NotExecuted):
		return nil, c.failure(ReasonRefused, nil)
	}
	return c.got.res, nil
}

var errRedirected = errors.New("the service redirects the request, and a Transport with a journal does not follow: use the URL of Location")

// redirects reports whether a response asks for the same request at another URL.
func redirects(res *http.Response) bool {
	return res.Header.Get("Location") != "" && (res.StatusCode == http.StatusTemporaryRedirect || res.StatusCode == http.StatusPermanentRedirect)
}

// finality is the reason of an error that is not retried. A circuit breaker can close again.
func (c *call) finality() Reason {
	if _, marked := errors.AsType[*final](c.got.err); marked && c.series.last.Execution == stet.NotExecuted {
		return ReasonRefused
	}
	return ReasonFinal
}

// failure is the error of the call.
func (c *call) failure(reason Reason, cause error) *Error {
	if ended := context.Cause(c.Context); reason == ReasonContext && !errors.Is(cause, ended) {
		cause = errors.Join(ended, cause)
	}
	c.drop()
	return &Error{Reason: reason, Info: c.info(), RetryAfter: c.series.last.After, Response: c.got.res, Cause: cause}
}

// drop closes the last response, which is not returned.
func (c *call) drop() {
	if res := c.got.res; res != nil && !c.got.whole {
		_ = res.Body.Close() // the rest is not used
		res.Body = inMemory(c.got.body)
	}
}

// again returns the reason not to make another attempt after wait; "" if there is none.
func (c *call) again(wait time.Duration) Reason {
	if c.t.o.Journal != nil && stale(c.entry.created, wait, c.t.o.MaxAge) {
		return ReasonStale
	}
	return ""
}

// attempt sends the request once.
func (c *call) attempt() Resolution {
	c.drop()
	c.got = received{}
	v := c.exchange()
	if c.t.o.Observe != nil {
		ev := c.event(c.got.err, v.Execution)
		ev.Retry, ev.After = v.Retry, v.After
		if c.got.res != nil {
			ev.Status = c.got.res.StatusCode
		}
		c.t.o.Observe(c, ev)
	}
	return v
}

func (c *call) event(err error, x stet.Execution) Event {
	return Event{Host: c.req.URL.Host, Intent: label(c.entry.name, c.key), Attempt: c.series.attempts, Err: err, Execution: x}
}

// exchange sends the request and classifies the response.
func (c *call) exchange() Resolution {
	// GetBody stays nil: otherwise net/http sends a request with a key again by itself
	// when an idle connection breaks. Nothing would count that attempt.
	rc, err := c.body.open()
	if err != nil {
		c.got.err = err
		return Resolution{Execution: stet.NotExecuted}
	}
	ctx, cancel := context.WithCancelCause(c)
	c.got.cancel = cancel
	if d := c.t.o.Policy.AttemptTimeout; d > 0 {
		defer time.AfterFunc(d, func() { cancel(errAttemptTimeout) }).Stop()
	}
	ctx, wire := watched(ctx)
	req := c.req.Clone(ctx) // the RoundTripper may still use that of the last attempt
	req.Body = rc
	fault.At(fault.SendBefore)
	res, err := c.t.base.RoundTrip(req)
	if err == nil && res == nil {
		err = errNothing
	}
	if err == nil {
		fault.At(fault.Answered)
		err = c.take(res)
	}
	if err != nil && errors.Is(context.Cause(ctx), errAttemptTimeout) {
		err = errAttemptTimeout
	}
	if err != nil || c.got.whole {
		cancel(nil)
	}
	if err == nil {
		var v Resolution
		v, c.got.replayed, c.got.problem = c.t.o.Service.classify(res, c.got.body)
		return v
	}
	c.got.err = err
	if e, ok := errors.AsType[resolved](err); ok { // of a circuit breaker, or another Transport
		v := e.resolution()
		if v.Execution == stet.NotExecuted && wire.got.Load() {
			v.Execution = stet.MayHaveExecuted // an attempt before may have sent it
		}
		return v
	}
	v := classifyError(err)
	if !wire.untouched() {
		v.Execution = stet.MayHaveExecuted
	}
	if res := c.got.res; res != nil { // the response broke off after its header
		v.Execution = executionOf(res.StatusCode, res.Header, res.Header.Get(c.t.o.Service.ReplayedHeader) == "true", nil)
		v.Retry = v.Retry && !never(res.StatusCode)
	}
	return v
}

var errNothing = errors.New("the RoundTripper returned neither a response nor an error")

// wire records the network use of an attempt, as far as net/http reports it.
type wire struct {
	asked, got atomic.Bool // for a connection, and a writable one
}

// watched returns a context whose request is recorded.
func watched(ctx context.Context) (context.Context, *wire) {
	w := new(wire)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { w.asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { w.got.Store(true) },
	}), w
}

// untouched reports whether it is certain that nothing was sent. The error alone is no
// proof: a RoundTripper that retries by itself can end with a failed dial after an attempt
// that was lost.
func (w *wire) untouched() bool { return w.asked.Load() && !w.got.Load() }

// take reads the response, up to the limit of Options.
func (c *call) take(res *http.Response) error {
	if callOf(res) != c {
		res.Request = c.req
	}
	if res.Body == nil { // a RoundTripper must not; http.Client accepts it too
		res.Body = http.NoBody
	}
	c.got.res = res
	s := &stream{Reader: res.Body, c: c, body: res.Body}
	limit, buffered := c.t.o.buffers(res)
	if buffered {
		var err error
		c.got.body, c.got.whole, err = readUpTo(res.Body, limit)
		if err != nil || c.got.whole {
			_ = res.Body.Close() // read to its end, or broken
			res.Body = inMemory(c.got.body)
			return err
		}
		s.Reader = io.MultiReader(bytes.NewReader(c.got.body), res.Body)
	}
	res.Body = s
	return nil
}
