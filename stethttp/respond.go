package stethttp

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/stet-go/stet"
)

// Respond calls h with r for a run of a worker or a consumer. ctx is the run's context (see
// stet.FromContext), the context of r is not used. Options.NotExecuted, Options.Failed and the
// declarations of h classify the response. Options.Responses does not apply: no client can
// correct its request. No client receives the response.
//
// It returns the outcome to store. If the run has declared something else than stet.Executed,
// that applies, and the outcome is stored if the operation does not run again. after is the
// response's Retry-After, 0 for none.
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

// maxRetryAfter is the longest Retry-After that is used.
const maxRetryAfter = 24 * time.Hour

// retryAfterOf parses a Retry-After (RFC 9110, section 10.2.3); 0 if it is not valid.
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
