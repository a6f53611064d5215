package stethttp

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
)

// retryAfter is the hint where asking again will tell more.
const retryAfter = time.Second

// guard is a protected handler.
type guard struct {
	m    *Middleware
	next http.Handler
}

// call is one request that is protected.
type call struct {
	*guard
	w     http.ResponseWriter
	r     *http.Request
	op    stet.Op
	limit int // of the stored result, in bytes
	body  body
	inner *http.Request // the handler's
	begun time.Time     // only if the request prefers to wait
	wait  time.Duration // as the request prefers it, if it does
	waits bool

	undone bool // Options.NotExecuted says so of the response
}

// ServeHTTP implements http.Handler.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m := g.m
	keys := r.Header[m.header]
	if !slices.Contains(m.o.Methods, r.Method) || len(keys) == 0 && m.o.Optional || m.o.Skip != nil && m.o.Skip(r) {
		g.next.ServeHTTP(w, r)
		return
	}
	c := &call{guard: g, w: w, r: r}
	if problem, detail := c.name(keys); problem != nil {
		m.refuse(w, problem, detail, 0)
		return
	}
	buf := newBuffer()
	defer buf.free()
	if !c.read(buf, m.o.MaxBody) {
		return
	}
	defer c.close()
	if m.transact != nil {
		c.serveTx()
		return
	}
	c.serve()
}

// read reads the body, up to limit bytes, and digests the request. It is false
// if that was refused.
func (c *call) read(buf *buffer, limit int64) bool {
	if err := readBody(c.w, c.r, limit, buf); err != nil {
		problem, detail := &bodyUnreadable, ""
		if errors.Is(err, errBodyTooLarge) {
			problem, detail = &bodyTooLarge, "The request body is larger than "+strconv.FormatInt(limit, 10)+" bytes."
		}
		c.m.refuse(c.w, problem, detail, 0)
		return false
	}
	c.op.Fingerprint = c.m.fingerprint(c.r, buf.b)
	c.body.rest.Reset(buf.b)
	return true
}

// name finds out which operation the request names, from its header alone: a
// client that waits for 100 Continue is refused before it sends its body.
func (c *call) name(keys []string) (problem *condition, detail string) {
	m, r := c.m, c.r
	switch len(keys) {
	case 0:
		return &keyMissing, "Send the header " + m.header + " with a key that is new for each operation and the same for each retry of it."
	case 1:
	default:
		return &keyRepeated, ""
	}
	key, flaw := parseKey(keys[0], m.o.Strict, m.o.FoldCase)
	if flaw != "" {
		return &keyInvalid, string(flaw)
	}
	if problem := c.findScope(); problem != nil {
		return problem, ""
	}
	c.op.Key = key
	if m.o.Class != nil {
		c.op.Class = m.o.Class(r)
	}
	policy, ok := m.engine.Policy(c.op.Class)
	if !ok {
		m.log().ErrorContext(r.Context(), "stethttp: Options.Class named a class that is not among stet.Options.Classes; nothing was executed",
			slog.String("class", c.op.Class))
		return &misconfigured, ""
	}
	c.limit = policy.MaxResult
	if c.prefer(); c.waits {
		c.op.Wait = max(c.wait, 1) // 0 would be the policy's
	}
	return nil, ""
}

// findScope finds out whose operation it is.
func (c *call) findScope() *condition {
	scope, err := c.m.o.Scope(c.r)
	if err == nil && len(scope) > stet.MaxScope {
		err = errors.New("the scope is longer than stet.MaxScope")
	}
	if err != nil {
		c.m.log().ErrorContext(c.r.Context(), "stethttp: Options.Scope failed; nothing was executed", slog.Any("error", err))
		return &scopeFailed
	}
	if scope == "" {
		return &scopeMissing
	}
	c.op.Scope = scope
	return nil
}

// prefer finds out how long the request prefers to wait, if it says so.
func (c *call) prefer() {
	if prefer := c.r.Header["Prefer"]; len(prefer) > 0 && c.m.o.MaxWait > 0 {
		if c.wait, c.waits = preferredWait(prefer); c.waits {
			c.begun = time.Now()
			c.wait = min(c.wait, c.m.o.MaxWait)
		}
	}
}

// request returns the request for the handler.
func (c *call) request(ctx context.Context) *http.Request {
	c.inner = c.r.WithContext(ctx)
	c.inner.Body = &c.body
	return c.inner
}

// close takes the request back from the handler.
func (c *call) close() {
	_ = c.body.Close() // before its buffer is lent to others
	if c.inner != nil && c.r.MultipartForm == nil {
		c.r.MultipartForm = c.inner.MultipartForm // the server removes its files
	}
}

// serve runs or replays an operation in lease mode.
func (c *call) serve() {
	run, err := c.m.engine.Begin(c.r.Context(), c.op)
	if err != nil {
		if c.m.o.FailOpen && errors.Is(err, stet.ErrStore) && stet.ExecutionOf(err) == stet.NotExecuted {
			c.failOpen(err)
			return
		}
		c.refuse(err)
		return
	}
	if run.Replayed() {
		c.replay(run)
		return
	}
	rw := newCapture(c.w, c.r, c.limit, false)
	defer rw.free()
	rw.ctx = run.Context()
	c.handle(run, rw)
	c.settle(run, rw)
}

// failOpen runs the handler unprotected.
func (c *call) failOpen(err error) {
	ctx := c.r.Context()
	id := c.m.engine.ID(c.op.Scope, c.op.Key)
	c.m.engine.Observe(ctx, stet.Event{Kind: stet.EventFailedOpen, ID: id, Class: c.op.Class, Err: err})
	c.m.log().WarnContext(ctx, "stethttp: the store cannot be used; a request runs unprotected (Options.FailOpen)",
		slog.String("id", id.String()), slog.Any("error", err))
	c.next.ServeHTTP(c.w, c.request(ctx))
}

// handle calls the handler. If it panics, the operation is settled as failed,
// and the panic goes on.
func (c *call) handle(run *stet.Run, rw *capture) {
	returned := false
	defer func() {
		rw.finish()
		if returned {
			return
		}
		rw.retract()
		if run.SaysOutcomeUnknown() {
			c.park(run)
			return
		}
		if err := run.Settle(c.r.Context(), c.m.panicked); err != nil {
			c.failed(run, "the outcome of a handler that panicked was not stored", err)
		}
	}()
	fault.At(fault.HandlerBefore)
	c.next.ServeHTTP(rw, c.request(run.Context()))
	fault.At(fault.HandlerAfter)
	rw.finish()
	c.undone = !rw.invalid && c.m.o.NotExecuted(rw.status, c.w.Header()) // it may panic, too
	returned = true
}

// settle makes the response durable, or gives the claim back, and only then
// sends it, or the rest of it.
func (c *call) settle(run *stet.Run, rw *capture) {
	ctx := c.r.Context()
	if rw.invalid {
		c.failed(run, "the handler wrote a status that is none", nil)
	}
	if run.SaysOutcomeUnknown() {
		c.park(run)
		c.unknown(rw)
		return
	}
	if run.SaysNothingHappened() || c.undone {
		if err := run.Release(ctx); err != nil {
			c.failed(run, "a claim was not given back; its key will be unknown once the lease has run out", err)
		}
		c.send(rw, &responseInvalidUndone)
		return
	}
	out := stet.Outcome{State: settledAs(rw.status), Gone: true}
	if rw.invalid {
		out = c.m.invalid
	} else if s, err := rw.response(&c.m.filter, c.limit); err == nil {
		s.annotate(ctx, c.limit)
		out.Gone, out.Result = false, s.encode()
	}
	if err := run.Settle(ctx, out); err != nil {
		c.failed(run, "an outcome was not stored; its response was not sent", err)
		c.unknown(rw)
		return
	}
	c.send(rw, &responseInvalid)
}

// park ends a run whose handler says that nobody can know its outcome.
func (c *call) park(run *stet.Run) {
	if err := run.Park(c.r.Context()); err != nil {
		c.failed(run, "an operation whose outcome is unknown was not parked; it will be once its lease has run out", err)
	}
}

// unknown answers in place of the response that nobody knows what happened.
func (c *call) unknown(rw *capture) {
	if !rw.retract() {
		panic(http.ErrAbortHandler) // the end of the response would say that all is well
	}
	c.m.refuse(c.w, &outcomeUnknown, "", retryAfter)
}

// send sends the response, or what is said in its place if it is invalid.
func (c *call) send(rw *capture, ifInvalid *condition) {
	if rw.invalid {
		rw.retract()
		c.m.refuse(c.w, ifInvalid, "", 0)
		return
	}
	rw.send()
}

// maxHeld bounds a response that is held back until its transaction has been
// committed, in bytes, where the policy's MaxResult is smaller. What is larger
// than MaxResult is sent whole and leaves a tombstone, as in lease mode.
const maxHeld = 16 << 20

// Why a transaction is rolled back.
var (
	errPassedOn = errors.New("stethttp: the response says that nothing is to be kept")
	errInvalid  = errors.New("stethttp: the handler wrote a status that is none")
)

// serveTx runs or replays an operation in a transaction.
func (c *call) serveTx() {
	rw := newCapture(c.w, c.r, max(c.limit, maxHeld), true)
	defer rw.free()
	returned := false
	defer func() {
		if !returned {
			rw.finish()
			rw.retract()
		}
	}()
	run, err := c.m.transact(c.r.Context(), c.op, func(ctx context.Context) (stet.Outcome, error) {
		c.next.ServeHTTP(rw, c.request(ctx))
		return c.outcomeTx(rw)
	})
	returned = true
	switch {
	case err == nil && !run.Replayed():
		rw.send()
	case err == nil:
		rw.retract()
		c.replay(run)
	case errors.Is(err, errTooLarge):
		rw.retract()
		c.m.refuse(c.w, &responseTooLarge, "", 0)
	case errors.Is(err, stet.ErrRetryable):
		c.send(rw, &responseInvalidUndone)
	default:
		rw.retract()
		c.refuse(err)
	}
}

// outcomeTx returns the outcome to commit, or why it is rolled back.
func (c *call) outcomeTx(rw *capture) (stet.Outcome, error) {
	rw.finish()
	if rw.invalid {
		return stet.Outcome{}, errInvalid
	}
	if rw.status >= http.StatusInternalServerError || c.m.o.NotExecuted(rw.status, c.w.Header()) {
		return stet.Outcome{}, errPassedOn
	}
	s, err := rw.response(&c.m.filter, c.limit)
	switch {
	case errors.Is(err, errTooLarge) && !rw.over:
		return stet.Outcome{State: stet.Completed, Gone: true}, nil
	case err != nil:
		return stet.Outcome{}, err
	}
	s.annotate(c.r.Context(), c.limit)
	return stet.Outcome{State: stet.Completed, Result: s.encode()}, nil
}

// failed logs what went wrong with a run. The ID is a digest.
func (c *call) failed(run *stet.Run, what string, err error) {
	c.m.log().ErrorContext(c.r.Context(), "stethttp: "+what, slog.String("id", run.ID().String()),
		slog.String("class", c.op.Class), slog.Int64("fence", run.Fence()), slog.Any("error", err))
}

// refuse answers with what the engine's error means.
func (c *call) refuse(err error) {
	var hint time.Duration
	if e, ok := errors.AsType[*stet.Error](err); ok {
		hint = e.RetryAfter
	}
	problem := &outcomeUnknown
	notExecuted := stet.ExecutionOf(err) == stet.NotExecuted
	switch {
	case errors.Is(err, stet.ErrMismatch):
		problem = &mismatch
	case errors.Is(err, stet.ErrInFlight):
		problem, hint = &inFlight, max(hint, retryAfter)
		c.applied(false)
	case errors.Is(err, stet.ErrExpired):
		problem = &resultExpired
	case errors.Is(err, stet.ErrDamaged):
		problem = &resultUnreadable
		c.m.log().ErrorContext(c.r.Context(), "stethttp: a stored response cannot be read", slog.String("id", c.m.engine.ID(c.op.Scope, c.op.Key).String()),
			slog.Any("error", err))
	case notExecuted && (errors.Is(err, stet.ErrStore) || errors.Is(err, stet.ErrClosed)):
		problem, hint = &storeUnavailable, max(hint, retryAfter)
	case notExecuted && c.r.Context().Err() != nil:
		problem, hint = &requestEnded, retryAfter
	case notExecuted:
		problem = &misconfigured
		c.m.log().ErrorContext(c.r.Context(), "stethttp: an operation could not begin; nothing was executed", slog.Any("error", err))
	}
	c.m.refuse(c.w, problem, "", hint)
}

// applied says which preferences were honoured (RFC 7240, section 3): others, and
// the preferred wait, if the answer is there within it, or it is over.
func (c *call) applied(answered bool, others ...string) {
	list := others
	if c.waits && (answered || time.Since(c.begun) >= c.wait) {
		list = append(list, "wait="+strconv.FormatInt(int64(c.wait/time.Second), 10))
	}
	if len(list) > 0 {
		c.w.Header().Set("Preference-Applied", strings.Join(list, ", "))
	}
}

// replay answers with the outcome that stands.
func (c *call) replay(run *stet.Run) {
	c.applied(true)
	out := run.Outcome()
	if out.State == stet.Failed && len(out.Result) == 0 { // stet.StaleFail
		c.w.Header()[c.m.o.ReplayedHeader] = []string{"true"}
		c.m.refuse(c.w, &processingTimedOut, "", 0)
		return
	}
	s, err := decode(out.Result)
	if err != nil {
		c.refuse(&stet.Error{Kind: stet.ErrDamaged, Execution: stet.Executed, Cause: err})
		return
	}
	c.sendStored(s, true)
}

// sendStored answers with a response that stands.
func (c *call) sendStored(s stored, replayed bool) {
	h := c.w.Header()
	s.takeMemo(c.r.Context())
	for _, f := range s.header {
		if f.name == "Content-Encoding" && !accepts(c.r.Header["Accept-Encoding"], f.values) {
			c.m.refuse(c.w, &codingNotAcceptable, "", 0)
			return
		}
	}
	for _, f := range s.header {
		h[f.name] = f.values
	}
	if replayed {
		h[c.m.o.ReplayedHeader] = []string{"true"}
	}
	h["Cache-Control"] = []string{noStore}
	s.trailers(h, true)
	c.w.WriteHeader(s.status)
	if len(s.body) > 0 {
		_, _ = c.w.Write(s.body) // a client that has left hears nothing
	}
	s.trailers(h, false)
}
