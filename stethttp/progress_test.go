package stethttp_test

import (
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

func TestCallerThatLostItsAnswerFindsTheOperationByKey(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}, options: stethttp.Options{Scope: byAccount}})
	accepted := s.order("k", "{}", "Account", "a")
	byID := s.status(accepted, "Account", "a")
	if r := s.do(s.request("GET", "/operations/by-key", "k", "", "Account", "a")); r.status != 200 || r.body != byID.body {
		t.Errorf("by key: %d %s, want %s", r.status, r.body, byID.body)
	}
	wantProblem(t, s.do(s.request("GET", "/operations/by-key", "other", "", "Account", "a")), 404, "operation-not-found")
	wantProblem(t, s.do(s.request("GET", "/operations/by-key", "", "", "Account", "a")), 400, "key-missing")
	foreign := s.request("GET", "/operations/by-key", "k", "", "Account", "other")
	wantProblem(t, s.do(foreign), 404, "operation-not-found")
	if r := s.do(s.request("DELETE", "/operations/by-key", "k", "", "Account", "a")); r.status != 200 || r.told(t).State != "failed" {
		t.Errorf("cancelled by key: %d %s", r.status, r.body)
	}
}

// TestProgressIsOfTheRunThatHoldsTheClaim: the reporter is not in the process that
// holds the run.
func TestProgressIsOfTheRunThatHoldsTheClaim(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}})
	accepted := s.order("k", "{}")
	location := accepted.header.Get("Location")
	run := s.take()
	report := func(token, body string) reply {
		t.Helper()
		return s.do(s.request("PATCH", location, "", body, "X-Account", "other", stethttp.HeaderProgress, token))
	}
	token := stethttp.ProgressToken(run.Claim, false)
	wantReply(t, report(token, `{"fraction":0.5,"message":"half"}`), 200, "{\"cancelling\":false}\n", false)
	if d := s.status(accepted).told(t); d.Progress == nil || d.Progress.Fraction != 0.5 || d.Progress.Message != "half" {
		t.Errorf("the progress is %+v", d.Progress)
	}
	for name, c := range map[string]struct {
		token, body, problem string
		status               int
	}{
		"none":              {"", `{"fraction":1}`, "operation-not-found", 404},
		"no mode":           {run.Claim.String(), `{"fraction":1}`, "operation-not-found", 404},
		"forged":            {strings.Replace(token, token[10:14], "0000", 1), `{"fraction":1}`, "operation-not-found", 404},
		"of another owner":  {stethttp.ProgressToken(store.Claim{ID: run.ID(), Owner: store.NewOwner(), Fence: run.Fence()}, false), `{"fraction":1}`, "fenced", 409},
		"of another run":    {stethttp.ProgressToken(store.Claim{ID: run.ID(), Owner: run.Claim.Owner, Fence: run.Fence() + 1}, false), `{"fraction":1}`, "fenced", 409},
		"no fraction":       {token, `{}`, "progress-invalid", 400},
		"too large":         {token, `{"fraction":1.5}`, "progress-invalid", 400},
		"no JSON":           {token, `half`, "progress-invalid", 400},
		"more than JSON":    {token, `{"fraction":1} {}`, "progress-invalid", 400},
		"more than is read": {token, `{"fraction":1,"message":"` + strings.Repeat("x", 1<<20) + `"}`, "progress-invalid", 400},
	} {
		if r := report(c.token, c.body); r.status != c.status || r.name() != c.problem {
			t.Errorf("%s: %d %s, want %d %s", name, r.status, r.body, c.status, c.problem)
		}
	}
	if r := s.cancel(accepted); r.status != 202 {
		t.Errorf("cancelling: %d %s", r.status, r.body)
	}
	wantReply(t, report(token, `{"fraction":0.6}`), 200, "{\"cancelling\":true}\n", false)
	settle(t, run, store.Completed, "{}")
	wantProblem(t, report(token, `{"fraction":1}`), 409, "fenced")
}

// TestReportLeavesTheRunUnchanged: a run that may be repeated still may, a run that must
// not be still must not, and an attempt that does not count is still not counted.
func TestReportLeavesTheRunUnchanged(t *testing.T) {
	for _, repeatable := range []bool{true, false} {
		st := newFaulty()
		s := start(t, setup{store: st, async: &stethttp.AsyncOptions{}})
		accepted := s.order("k", "{}")
		take := func() *stet.Lease {
			t.Helper()
			items, err := s.engine.Due(t.Context(), 1, 1e9)
			if err != nil || len(items) != 1 {
				t.Fatalf("due: %v, %v", items, err)
			}
			items[0].Repeatable = repeatable
			run, err := s.engine.Take(t.Context(), items[0])
			if err != nil {
				t.Fatal(err)
			}
			return run
		}
		run := take()
		r := s.do(s.request("PATCH", accepted.header.Get("Location"), "", `{"fraction":0.5}`, stethttp.HeaderProgress, stethttp.ProgressToken(run.Claim, repeatable)))
		if r.status != 200 {
			t.Fatalf("%d %s", r.status, r.body)
		}
		if err := run.Release(t.Context(), stet.Again{Uncounted: true}); err != nil {
			t.Fatal(err)
		}
		run = take()
		if run.Attempt() != 2 || run.Counted != 1 {
			t.Errorf("attempt %d, of which %d count; want 2, 1", run.Attempt(), run.Counted)
		}
		st.skip.Add(3e9)
		r = s.do(s.request("PATCH", accepted.header.Get("Location"), "", `{"fraction":0.7}`, stethttp.HeaderProgress, stethttp.ProgressToken(run.Claim, repeatable)))
		if r.status != 200 {
			t.Fatalf("%d %s", r.status, r.body)
		}
		st.skip.Add(int64(3600e9)) // it dies
		s.order("k", "{}")         // which notices
		if d := s.status(accepted).told(t); repeatable == (d.State == "unknown") {
			t.Errorf("repeatable %v: an expired run is %s", repeatable, d.State)
		}
	}
}
