package stethttp

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/stet-go/stet"
)

// Respond calls h for a run that no request has begun, as a worker's or a consumer's:
// ctx is the run's (see stet.FromContext), r what h is called with, whose context is not
// used. The response is judged as if a client had asked for it: by Options.NotExecuted
// and Options.Failed, and by what h declares. Options.Responses does not count: no client
// can correct its request. It goes to no client.
//
// It returns what must be stored. If the run has declared something else than
// stet.Executed by then, that counts, and the outcome is what h has said, to be stored
// if the operation is not run again. after is the response's Retry-After, 0 for none.
//
// It panics outside of a run, and if h does.
func (m *Middleware) Respond(ctx context.Context, h http.Handler, r *http.Request) (out stet.Outcome, after time.Duration) {
	run := stet.FromContext(ctx)
	policy, _ := m.engine.Policy(run.Op().Class)
	w := nowhere{}
	c := &call{guard: &guard{m: m, next: h}, w: w, r: r, op: run.Op(), later: true}
	rw := c.capture(policy.MaxResult, true)
	defer rw.free()
	rw.attend(ctx, r)
	func() {
		defer rw.finish()
		c.ctx = &callContext{Context: ctx}
		h.ServeHTTP(rw, r.WithContext(c.ctx))
	}()
	if c.says = c.classify(run, rw); c.says == absent || rw.invalid {
		return c.outcome(run, rw), 0
	}
	out, err := rw.response(&m.filter)
	if err != nil {
		out.Gone = true
	}
	out.Failed = c.says != kept
	if c.says == undone {
		run.Declare(stet.NotExecuted, 0)
	}
	return out, retryAfterOf(rw.final.Get("Retry-After"))
}

// maxRetryAfter bounds what a Retry-After is obeyed for.
const maxRetryAfter = 24 * time.Hour

// retryAfterOf is how long a response's Retry-After asks to wait (RFC 9110, section 10.2.3), 0 if it
// does not.
func retryAfterOf(text string) time.Duration {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(time.Until(at), 0), maxRetryAfter)
	}
	return 0
}

// nowhere is the http.ResponseWriter of no client.
type nowhere struct{}

// Header implements http.ResponseWriter.
func (nowhere) Header() http.Header { return http.Header{} }

// Write implements http.ResponseWriter.
func (nowhere) Write(p []byte) (int, error) { return len(p), nil }

// WriteHeader implements http.ResponseWriter.
func (nowhere) WriteHeader(int) {}
