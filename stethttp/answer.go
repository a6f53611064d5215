package stethttp

import (
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/again"
	"github.com/stet-go/stet/store"
)

// unknown responds that the outcome is unknown, in place of the handler's response.
func (c *call) unknown(rw *capture) {
	if !rw.retract() {
		abort(c.w) // otherwise the response would end like a success
	}
	var hint time.Duration // none without a verifier
	if p, _ := c.m.engine.Policy(c.op.Class); p.Verify != nil {
		hint = c.m.o.RetryAfter
	}
	c.refuseUnknown(&outcomeUnknown, hint)
}

// abort ends the connection in the middle of a response.
func abort(w http.ResponseWriter) {
	cutOff(w)
	panic(http.ErrAbortHandler)
}

// cutOff keeps a started response from ending normally if middleware around this one recovers
// the panic that follows: buffered bytes are no longer sent.
func cutOff(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0))
}

// send sends the response, or the problem in its place. undone means that there was no effect.
func (c *call) send(rw *capture, undone bool) {
	problem := c.inPlaceOf(rw, undone)
	switch {
	case problem == nil:
		if !undone {
			rw.addStoredFields(c.expires, c.reason)
		}
		rw.send()
	case problem == &responseInvalid && rw.retract(): // which is stored
		c.sendStored(c.m.invalid, false)
	case rw.retract() && problem == &outcomeUnknown:
		c.refuseUnknown(problem, 0)
	case rw.retract():
		c.m.refuse(c.w, problem, "", 0)
	default:
		abort(c.w)
	}
}

// sendReleased sends the response of a handler whose operation a retry runs again. If the
// handler returned an error after writing a success, the success is not sent.
func (c *call) sendReleased(rw *capture, undone bool) {
	if c.failure().error == nil || rw.status >= http.StatusBadRequest || rw.missing {
		c.send(rw, undone)
		return
	}
	c.m.log().ErrorContext(c.r.Context(), "stethttp: a handler wrote a success and then returned an error; its response was not sent, and a retry runs again",
		slog.String("id", c.m.engine.ID(c.op.Scope, c.op.Key).String()))
	if !rw.retract() {
		abort(c.w)
	}
	if undone {
		c.m.refuse(c.w, &notExecuted, "", c.m.o.RetryAfter)
		return
	}
	c.refuseUnknown(&outcomeUnknown, c.m.o.RetryAfter)
}

// inPlaceOf returns the problem in place of a response that cannot be sent, or nil.
func (c *call) inPlaceOf(rw *capture, undone bool) *condition {
	switch {
	case rw.past, rw.missing && !c.m.o.AllowEmpty:
		return either(undone, &responseMissingUndone, &responseMissing)
	case rw.invalid:
		return either(undone, &responseInvalidUndone, &responseInvalid)
	case rw.over && rw.held:
		return either(undone, &responseTooLarge, &outcomeUnknown)
	default:
		return nil
	}
}

func either(undone bool, ifUndone, otherwise *condition) *condition {
	if undone {
		return ifUndone
	}
	return otherwise
}

// refuse responds with the problem of an engine's error.
func (c *call) refuse(err error) {
	var hint time.Duration
	if e, ok := errors.AsType[*stet.Error](err); ok {
		hint = e.RetryAfter
	}
	problem, detail := &outcomeUnknown, ""
	notExecuted := stet.ExecutionOf(err) == stet.NotExecuted
	switch {
	case stet.KindOf(err) == stet.KindMismatch:
		problem, detail = &mismatch, mismatched(err)
	case stet.KindOf(err) == stet.KindInFlight:
		problem, hint = &inFlight, max(hint, c.m.o.RetryAfter)
		c.applied(false)
	case stet.KindOf(err) == stet.KindExpired:
		problem = resultExpired.as(stet.ExecutionOf(err))
	case stet.KindOf(err) == stet.KindDamaged:
		problem = resultUnreadable.as(stet.ExecutionOf(err))
		c.m.log().ErrorContext(c.r.Context(), "stethttp: a stored response cannot be read", slog.String("id", c.m.engine.ID(c.op.Scope, c.op.Key).String()),
			slog.Any("error", err))
	case notExecuted && (stet.KindOf(err) == stet.KindStore || stet.KindOf(err) == stet.KindClosed):
		problem, hint = &storeUnavailable, max(hint, c.m.o.RetryAfter)
	case again.Aborted(err) && c.executing():
		problem = &transactionAbortedLate
	case again.Aborted(err):
		problem = &transactionAborted
	case notExecuted && c.r.Context().Err() != nil:
		problem, hint = &requestEnded, c.m.o.RetryAfter
	case notExecuted:
		problem = &misconfigured
		if outer := stet.FromContext(c.r.Context()); outer != nil && c.passedOn && outer.ID() == c.m.engine.ID(c.op.Scope, c.op.Key) {
			outer.Declare(stet.NotExecuted, 0) // the handler is protected twice, and was not called
		}
		c.m.log().ErrorContext(c.r.Context(), "stethttp: an operation could not begin; nothing was executed", slog.Any("error", err))
	default:
		c.applied(false)
		c.refuseUnknown(problem, hint)
		return
	}
	c.m.refuse(c.w, problem, detail, hint)
}

// mismatched returns the part of the request that differs; "" if it is not known.
func mismatched(err error) string {
	own, ok := errors.AsType[*stet.Error](err)
	if !ok || own.Cause == nil {
		return ""
	}
	return mismatch.detail + " " + strings.ToUpper(own.Cause.Error()[:1]) + own.Cause.Error()[1:] + "."
}

// applied lists the preferences that were applied (RFC 7240, section 3): others, and the wait if
// the outcome was there in time, or the wait is over.
func (c *call) applied(answered bool, others ...string) {
	list := others
	if c.waits && (answered || time.Since(c.begun) >= c.wait) {
		list = append(list, "wait="+strconv.FormatInt(int64(c.wait/time.Second), 10))
	}
	if len(list) > 0 {
		c.w.Header().Set("Preference-Applied", strings.Join(list, ", "))
	}
}

// replay responds with the stored outcome.
func (c *call) replay(run *stet.Lease) {
	if err := unsendable(run.Outcome()); err != nil {
		c.refuse(err)
		return
	}
	c.applied(true)
	if c.foreign(run.Outcome()) {
		return
	}
	c.expires = expiry(run.ForgottenAt)
	c.sendStored(c.m.asHTTP(run.Outcome(), run.Attempt() == 0), true)
}

// foreign refuses a result of another adapter that is neither JSON nor text, unless the request
// accepts its media type.
func (c *call) foreign(out stet.Outcome) bool {
	if out.Failed || out.Adapter != store.AdapterGo && out.Adapter != store.AdapterGRPC || out.Type == "" || len(out.Body) == 0 {
		return false
	}
	mediaType := mediaTypeOf(out.Type)
	kind, _, _ := strings.Cut(mediaType, "/")
	if isJSON(mediaType) || kind == "text" {
		return false
	}
	for _, accepted := range [...]string{mediaType, kind + "/*"} {
		if listed, wanted := weigh(c.r.Header["Accept"], accepted); mediaType != "" && listed {
			if wanted {
				return false
			}
			break
		}
	}
	detail := resultForeign.detail
	if sendable(out.Type) {
		detail += " Its media type is " + strings.ToValidUTF8(out.Type, "") + "."
	}
	c.m.refuse(c.w, &resultForeign, detail, 0)
	return true
}

// sendStored responds with a stored response.
func (c *call) sendStored(out stet.Outcome, replayed bool) {
	h := c.w.Header()
	codings, _ := field(out, "Content-Encoding")
	if _, imposed := field(out, imposedName); !imposed && len(codings) > 0 && !accepts(c.r.Header["Accept-Encoding"], codings) {
		c.m.refuse(c.w, &codingNotAcceptable, "", 0)
		return
	}
	allowed, _ := field(out, "Access-Control-Allow-Origin")
	foreign := len(allowed) > 0 && !allows(allowed, c.r.Header["Origin"])
	for _, f := range out.Header {
		if f.Name[0] != ':' && (!foreign || !strings.HasPrefix(f.Name, "Access-Control-")) {
			h[f.Name] = f.Values
		}
	}
	if out.Type != "" {
		h.Set("Content-Type", out.Type)
	}
	if _, said := field(out, executionHeader); !said {
		if mark := markOf(out.Reason, out.Status, out.Type); mark != "" {
			h.Set(executionHeader, mark)
		}
	}
	if c.expires != "" {
		h.Set(expiresHeader, c.expires)
	}
	if replayed {
		h.Set(c.m.o.ReplayedHeader, "true")
	}
	if _, ok := h["Cache-Control"]; !ok {
		h.Set("Cache-Control", noStore)
	}
	trailer := make(http.Header, len(out.Trailer))
	for _, f := range out.Trailer {
		trailer[f.Name] = f.Values
		if strings.HasPrefix(f.Name, http.TrailerPrefix) {
			h[f.Name] = f.Values // see capture.begin
		}
	}
	c.w.WriteHeader(out.Status)
	if len(out.Body) > 0 {
		_, _ = c.w.Write(out.Body) // the client may have left
	}
	trail(h, trailer)
}

// allows reports whether stored CORS fields apply to a request from this origin.
func allows(allowed, origin []string) bool {
	return len(origin) == 0 || slices.Equal(allowed, origin) || slices.Equal(allowed, []string{"*"})
}
