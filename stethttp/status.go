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

// Status returns the handler of the status resources, whose paths end with the operation's ID.
// Only callers with the same scope see an operation (Options.Scope of m). An ID is a digest,
// not a secret.
//
// GET and HEAD return 200 and a JSON object: state, attempts, times, the worker's progress,
// and after the end the outcome, also of a failed operation. "Prefer: wait=N" waits for the
// end. With "Accept: text/event-stream" the response is a stream of server-sent events:
// "status" after each change, and "end" with the outcome. Changes are read every second,
// and progress every 4 seconds; less often with more than 1,000 streams (with 5,000, every
// 5 and 20 seconds). A stream lasts at most a minute. Browsers
// reconnect, and get a 204 after the end. A server's WriteTimeout does not end a stream.
//
// A client that has lost the first response sends ByKey in place of the ID, and the key in its
// usual header.
//
// PATCH is for workers: with the header HeaderProgress (see ProgressToken) and a JSON object
// with "fraction" (0 to 1) and "message" it reports progress. The response is 200 and
// {"cancelling": …}; if that is true, the worker should end the operation. For a run that has
// ended, or is not the newest, it is 409 (problem fenced).
//
// DELETE cancels an operation that no worker has begun: 200 with the problem
// operation-cancelled as its outcome. For a running operation it requests the end: 202. For an
// ended operation it returns 409. If clients must not cancel, route only GET here.
//
// For browsers on other origins (CORS), allow DELETE in Access-Control-Allow-Methods. An
// EventSource cannot send headers; if Options.Scope reads one, use fetch to read the stream.
//
// A discarded result is a 410. The resource also shows operations of the scope that were not
// accepted. Use another scope for operations that clients must not see.
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

// identify finds the operation of the request. It is false if a problem was written.
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

// find reads the operation, and waits for its end if the request prefers that. It is false if a
// problem was written.
func (c *lookup) find() (st stet.Status, ok bool) {
	var err error
	if c.waits && c.wait > 0 {
		st, err = c.a.await(c.call, c.id)
	} else {
		st, err = c.m.engine.Status(c.r.Context(), c.op.Scope, c.id)
	}
	return st, c.found(st, err)
}

// found writes a problem, and returns false, if there is no status.
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
		c.writeStatus(http.StatusOK, st)
	}
}

// writeStatus responds with the status.
func (c *lookup) writeStatus(status int, st stet.Status) {
	if after := c.a.nextChange(st); after > 0 {
		problem.RetryAfter(c.w.Header(), after)
	}
	writeJSON(c.w, status, c.a.statusOf(st))
}

// writeJSON responds with a JSON text that must not be cached.
func writeJSON(w http.ResponseWriter, status int, text []byte) {
	w.Header().Set("Content-Type", jsonType)
	w.Header().Set("Cache-Control", noStore)
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client may have left
}

// nextChange is when the status may have changed; 0 after the end.
func (a *Async) nextChange(st stet.Status) time.Duration {
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
	if stet.KindOf(err) == stet.KindInvalid { // it runs and was not accepted
		c.m.refuse(c.w, &notCancellable, "Only accepted operations can be cancelled.", 0)
		return
	}
	const unknown = "Whether the operation was executed is not known, and it does not run any more."
	if stet.KindOf(err) == stet.KindUnknown { // a worker will resolve it
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
		c.writeStatus(http.StatusOK, st)
	case st.Record.State == store.Running || st.Record.State == store.Accepted:
		c.applied(false)
		c.writeStatus(http.StatusAccepted, st)
	case st.Record.State == store.Unknown:
		c.m.refuse(c.w, &notCancellable, unknown, 0)
	default:
		c.m.refuse(c.w, &notCancellable, "", 0)
	}
}
