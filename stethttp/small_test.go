package stethttp_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
)

func TestStoredResponseReturnsTheArgumentsOfOutcome(t *testing.T) {
	out, err := stethttp.Outcome(201, http.Header{"Content-Type": {"text/plain"}, "X-List": {"a", "b"}, "Set-Cookie": {"no"}}, []byte("done"))
	if err != nil {
		t.Fatal(err)
	}
	status, header, body, err := stethttp.StoredResponse(out)
	if err != nil || status != 201 || string(body) != "done" || header.Get("Content-Type") != "text/plain" || len(header["X-List"]) != 2 || len(header) != 2 {
		t.Errorf("%d %v %q, %v", status, header, body, err)
	}
	if _, _, _, err := stethttp.StoredResponse(stet.Outcome{Gone: true}); stet.KindOf(err) != stet.KindExpired {
		t.Errorf("without a result: %v", err)
	}
}

// A retry helps only with a verifier.
func TestUnknownOutcomeHasRetryAfterOnlyWithAVerifier(t *testing.T) {
	verify := func(context.Context, stet.Status) (stet.Resolution, error) { return stet.CannotKnow(), nil }
	for name, p := range map[string]stet.Policy{"no verifier": {}, "a verifier": {Verify: verify}} {
		s := start(t, setup{engine: stet.Options{Policy: p}, handler: func(_ http.ResponseWriter, r *http.Request) {
			stet.FromContext(r.Context()).Declare(stet.MayHaveExecuted, 0)
		}})
		for range 2 { // the first time and a retry
			r := s.post("k", "{}")
			wantProblem(t, r, 504, "outcome-unknown")
			if got := r.header.Get("Retry-After"); (got != "") != (p.Verify != nil) {
				t.Errorf("%s: Retry-After %q", name, got)
			}
		}
	}
}

// What the service says of all its expired runs is what their retries get.
func TestResponseOfPolicyStaleIsSentUnchanged(t *testing.T) {
	out, err := stethttp.Outcome(503, http.Header{"Content-Type": {"text/plain"}}, []byte("ask us"))
	if err != nil {
		t.Fatal(err)
	}
	b := newBlocking()
	s := start(t, setup{store: newFaulty(), handler: b.ServeHTTP})
	s.abandon("k", "{}", b)
	says := start(t, setup{store: s.store, engine: stet.Options{Policy: stet.Policy{Stale: stet.ItHappened(out)}}})
	for range 2 {
		wantReply(t, says.post("k", "{}"), 503, "ask us", true)
	}
	wantReply(t, s.post("k", "{}"), 503, "ask us", true)
	s.wantRuns(1)
}

// It would be too long the next time, too.
func TestScopeThatIsTooLongIsNotToBeTriedAgain(t *testing.T) {
	s := start(t, setup{options: stethttp.Options{Scope: func(*http.Request) (string, error) { return strings.Repeat("s", 5000), nil }},
		handler: func(http.ResponseWriter, *http.Request) {}})
	r := s.post("k", "{}")
	wantProblem(t, r, 403, "scope-too-long")
	if !strings.Contains(r.body, `"retryable":false`) || strings.Contains(r.body, "sss") || strings.Contains(s.log.String(), "sss") {
		t.Errorf("%s, %s", r.body, s.log)
	}
	s.wantRuns(0)
}

// What ran is over, and no caller waits for it: that its outcome was not stored is no
// run in flight.
func TestRetryGetsOutcomeUnknown_OutcomeNotStored(t *testing.T) {
	store := newFaulty()
	s := start(t, setup{store: store, handler: func(http.ResponseWriter, *http.Request) {}, options: stethttp.Options{Advanced: stethttp.Advanced{AllowEmpty: true}}})
	store.settle.Store(true)
	wantProblem(t, s.post("k", "{}"), 504, "outcome-unknown")
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(25 * time.Second); s.post("k", "{}").name() != "outcome-unknown"; { // the lease has 30 s
		select {
		case <-tick.C:
		case <-end:
			t.Fatal("retries get another response")
		}
	}
	s.wantRuns(1)
}
