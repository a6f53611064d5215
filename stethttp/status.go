package stethttp

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/problem"
	"github.com/stet-go/stet/store"
)

// Status returns the handler of the status resources, whose paths end with the
// operation's ID. It shows an operation to its scope only, as m's Options.Scope finds
// it for this request: to other callers there is no such operation. An ID is a digest,
// not a secret.
//
// GET and HEAD are answered with 200 and a JSON object: the state, the attempts, times,
// what the worker says of its progress, and once it has ended the outcome; a failed one
// also with 200, because the status was found. "Prefer: wait=N" waits for the end. With
// "Accept: text/event-stream" the same is sent as server-sent events: "status" after each
// change, which is looked for every second (progress that has rested, every four; with
// more than 1,000 streams, less often: every 5 seconds with 5,000), and "end" with the outcome. A stream lasts a minute at most; browsers reconnect by
// themselves, and get a 204 when there is nothing more. A server's WriteTimeout does not
// end it.
//
// With ByKey in place of the ID, and the key in its header as in the request that was
// accepted, a caller that has lost the answer finds its operation.
//
// PATCH is for what does the work, not for callers: with the header HeaderProgress, as
// ProgressToken makes it, and a JSON object with "fraction" (0 to 1) and "message" it says
// how far the run is. It is answered with 200 and {"cancelling": …}: when that is true, the
// operation must be ended. A run that has ended, or is not the newest, is a 409
// (problem fenced).
//
// DELETE cancels an operation that no worker has begun: 200, and its outcome is
// the problem operation-cancelled. One that runs is asked to end: 202. What has
// ended stays unchanged: 409. Where clients must not cancel, route only GET here.
//
// Browsers on other origins (CORS) need DELETE in Access-Control-Allow-Methods. An
// EventSource sends no headers of the page's; where the scope is found by one, the
// page must read the stream with fetch.
//
// A result that is no longer kept is a 410. The resource also shows operations of the
// scope that ran at once, without having been accepted. Keep operations that clients
// must not see in a scope of their own.
func (a *Async) Status() http.Handler { return &statusResource{a} }

type statusResource struct{ a *Async }

// lookup is a request for the status of an operation.
type lookup struct {
	*call
	a  *Async
	id store.ID
}

// ServeHTTP implements http.Handler.
func (s *statusResource) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m := s.a.m
	c := &lookup{call: &call{guard: &guard{m: m}, w: w, r: r}, a: s.a}
	w.Header().Add("Vary", "Accept, Prefer")
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodDelete:
	case http.MethodPatch:
		c.report()
		return
	default:
		m.refuseMethod(w, http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodPatch)
		return
	}
	if !c.identify() {
		return
	}
	c.prefer()
	_, events := weigh(r.Header["Accept"], eventStream)
	switch {
	case r.Method == http.MethodDelete:
		c.cancel()
	case r.Method == http.MethodGet && events:
		c.stream()
	default:
		c.get()
	}
}

// ByKey is the last segment of the status resource of the operation whose key the request
// has in its header.
const ByKey = "by-key"

// identify finds out which operation is asked for. It is false if the request has been
// answered.
func (c *lookup) identify() bool {
	last := c.r.URL.Path[strings.LastIndexByte(c.r.URL.Path, '/')+1:]
	if last == ByKey {
		c.w.Header().Add("Vary", c.m.header)
		if problem, detail := c.name(c.r.Header[c.m.header]); problem != nil {
			c.m.refuse(c.w, problem, detail, 0)
			return false
		}
		c.id = c.m.engine.ID(c.op.Scope, c.op.Key)
		return true
	}
	if problem := c.findScope(); problem != nil {
		c.m.refuse(c.w, problem, "", 0)
		return false
	}
	var err error
	if c.id, err = store.ParseID(last); err != nil {
		c.m.refuse(c.w, &operationNotFound, "", 0)
	}
	return err == nil
}

// find looks the operation up, and waits for its end if the request prefers that.
// It is false if the request has been answered.
func (c *lookup) find() (st stet.Status, ok bool) {
	var err error
	if c.waits && c.wait > 0 {
		st, err = c.a.await(c.call, c.id)
	} else {
		st, err = c.m.engine.Status(c.r.Context(), c.op.Scope, c.id)
	}
	return st, c.found(st, err)
}

// found answers in place of the status if there is none to tell.
func (c *lookup) found(st stet.Status, err error) bool {
	if err == nil && st.Record.State.Settled() {
		err = unsendable(st.Outcome)
	}
	switch own, _ := errors.AsType[*stet.Error](err); {
	case own != nil && own.Kind == stet.KindDamaged:
		c.unreadable(st, err)
	case err != nil:
		c.m.refuse(c.w, &statusUnavailable, "", c.m.o.RetryAfter)
	case st.Record.State == store.None:
		c.m.refuse(c.w, &operationNotFound, "", 0)
	case st.Record.State.Settled() && st.Outcome.Gone:
		c.m.refuse(c.w, resultExpired.as(executed(st.Record)), "", 0)
	default:
		return true
	}
	return false
}

func (c *lookup) get() {
	if st, ok := c.find(); ok {
		c.applied(st.Record.State.Settled())
		c.tell(http.StatusOK, st)
	}
}

// tell answers with the status.
func (c *lookup) tell(status int, st stet.Status) {
	h := c.w.Header()
	h.Set("Content-Type", jsonType)
	h.Set("Cache-Control", noStore)
	if after := c.a.nextLook(st); after > 0 {
		problem.RetryAfter(h, after)
	}
	c.w.WriteHeader(status)
	_, _ = c.w.Write(c.a.statusOf(st)) // a client that has left hears nothing
}

// nextLook is when something may have changed; 0 if nothing is going to.
func (a *Async) nextLook(st stet.Status) time.Duration {
	switch st.Record.State {
	case store.Accepted, store.Running, store.Retryable:
		return a.retryAfter
	case store.Unknown:
		return max(a.m.resolvedAfter(st.Op.Class), a.retryAfter)
	default:
		return 0
	}
}

func (c *lookup) cancel() {
	st, err := c.m.engine.Cancel(c.r.Context(), c.op.Scope, c.id)
	if stet.KindOf(err) == stet.KindInvalid { // it was not accepted, but runs
		c.m.refuse(c.w, &notCancellable, "The operation is not one that can be cancelled.", 0)
		return
	}
	const unknown = "Whether the operation was executed is not known, and it does not run any more."
	if stet.KindOf(err) == stet.KindUnknown { // it waits for a worker, which will find that out
		c.m.refuse(c.w, &notCancellable, unknown, 0)
		return
	}
	if !c.found(st, err) {
		return
	}
	if c.waits && c.wait > 0 && st.Record.State == store.Running {
		var ok bool
		if st, ok = c.find(); !ok {
			return
		}
	}
	switch {
	case cancelled(st):
		c.applied(true)
		c.tell(http.StatusOK, st)
	case st.Record.State == store.Running || st.Record.State == store.Accepted:
		c.applied(false)
		c.tell(http.StatusAccepted, st)
	case st.Record.State == store.Unknown:
		c.m.refuse(c.w, &notCancellable, unknown, 0)
	default:
		c.m.refuse(c.w, &notCancellable, "", 0)
	}
}
