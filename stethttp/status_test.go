package stethttp_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

func TestStatusShowsTheStateOfTheOperation(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}})
	accepted := s.order("k", "{}")
	r := s.status(accepted)
	d := r.told(t)
	if r.status != 200 || d.State != "accepted" || d.Attempts != 0 || d.AcceptedAt.IsZero() || !d.StartedAt.IsZero() || d.Outcome != nil ||
		!strings.HasSuffix(accepted.header.Get("Location"), d.ID) || r.header.Get("Retry-After") != "1" || r.header.Get("Vary") != "Accept, Prefer" {
		t.Errorf("accepted: %d %v %s", r.status, r.header, r.body)
	}
	run := s.take()
	if err := run.Progress(context.Background(), 0.25, "packing <1> of 4"); err != nil {
		t.Fatal(err)
	}
	r = s.status(accepted)
	d = r.told(t)
	if d.State != "running" || d.Attempts != 1 || d.StartedAt.IsZero() || d.Progress == nil || d.Progress.Fraction != 0.25 ||
		d.Progress.Message != "packing <1> of 4" || d.Progress.At.IsZero() || r.header.Get("Retry-After") != "1" {
		t.Errorf("running: %v %s", r.header, r.body)
	}
	settle(t, run, store.Completed, `{"order":7}`)
	r = s.status(accepted)
	d = r.told(t)
	if d.State != "completed" || d.Attempts != 1 || d.EndedAt.Before(d.StartedAt) || d.ExpiresAt.Sub(d.EndedAt) != 24*time.Hour ||
		d.Outcome == nil || d.Outcome.Status != 200 || string(d.Outcome.Result) != `{"order":7}` || r.header.Get("Retry-After") != "" {
		t.Errorf("completed: %v %s", r.header, r.body)
	}
	again := s.status(accepted)
	wantSame(t, again, r)

	head := s.do(s.request("HEAD", accepted.header.Get("Location"), "", ""))
	if head.status != 200 || head.body != "" || head.header.Get("Content-Type") != "application/json" {
		t.Errorf("HEAD: %d %v %q", head.status, head.header, head.body)
	}
	put := s.do(s.request("PUT", accepted.header.Get("Location"), "", ""))
	wantProblem(t, put, 405, "method-not-allowed")
	if put.header.Get("Allow") != "DELETE, GET, HEAD, PATCH" {
		t.Errorf("Allow %q", put.header.Get("Allow"))
	}
}

// TestForeignOperationsDoNotExist: a missing operation and a foreign one cannot
// be distinguished.
func TestForeignOperationsDoNotExist(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}, options: stethttp.Options{Scope: byAccount}})
	accepted := s.order("k", "{}", "Account", "a")
	wantAccepted(t, accepted, false)
	id := strings.TrimPrefix(accepted.header.Get("Location"), statusURL)
	none := s.do(s.request("GET", statusURL+strings.Repeat("0", 64), "", "", "Account", "b"))
	wantProblem(t, none, 404, "operation-not-found")
	for _, method := range []string{"GET", "DELETE"} {
		foreign := s.do(s.request(method, statusURL+id, "", "", "Account", "b"))
		wantSame(t, foreign, none)
	}
	events := s.do(s.request("GET", statusURL+id, "", "", "Account", "b", "Accept", "text/event-stream"))
	wantSame(t, events, none)
	for _, path := range []string{"", "x", id[1:], id + "0", strings.ToUpper(id), id + "/", "a/" + id[:10], strings.Repeat("g", 64)} {
		wantProblem(t, s.do(s.request("GET", statusURL+path, "", "", "Account", "a")), 404, "operation-not-found")
	}
	wantProblem(t, s.do(s.request("GET", statusURL+id, "", "")), 403, "scope-missing")
	if d := s.status(accepted, "Account", "a").told(t); d.State != "accepted" {
		t.Errorf("another scope could change it: %+v", d)
	}
}

func TestStatusWaitsForTheEnd(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}, options: stethttp.Options{MaxWait: time.Minute}})
	accepted := s.order("k", "{}")
	run := s.take()
	waits := make(chan reply)
	go func() { waits <- s.status(accepted, "Prefer", "wait=50") }()
	settle(t, run, store.Completed, "{}")
	r := <-waits
	if d := r.told(t); d.State != "completed" || r.header.Get("Preference-Applied") != "wait=50" {
		t.Errorf("got %v %s; want d.State == \"completed\", r.header.Get(\"Preference-Applied\") == \"wait=50\"", r.header, r.body)
	}
	accepted = s.order("l", "{}")
	r = s.status(accepted, "Prefer", "wait=0")
	if d := r.told(t); d.State != "accepted" || r.header.Get("Preference-Applied") != "wait=0" {
		t.Errorf("got %v %s; want d.State == \"accepted\", r.header.Get(\"Preference-Applied\") == \"wait=0\"", r.header, r.body)
	}
}

func TestCancellingBeforeTheRunIsTheOutcome(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}})
	accepted := s.order("k", "{}")
	r := s.cancel(accepted)
	d := r.told(t)
	if r.status != 200 || d.State != "failed" || d.Outcome == nil || d.Outcome.Status != 409 || d.Outcome.Problem == nil || d.Outcome.Problem.Execution != "not executed" {
		t.Errorf("got %d %s; want r.status == 200, d.State == \"failed\", d.Outcome != nil, d.Outcome.Status == 409, d.Outcome.Problem != nil, d.Outcome.Problem.Execution == \"not executed\"", r.status, r.body)
	}
	again := s.cancel(accepted)
	wantSame(t, again, r)
	s.wantNothingDue()
	outcome := s.order("k", "{}", "Prefer", "wait=1")
	wantProblem(t, outcome, 409, "operation-cancelled")
	wantProblem(t, s.order("k", "{}"), 409, "operation-cancelled")
	wantSaidAlike(t, s.order("k", "{}"), s.order("k", "{}"))
}

func TestCancellingARunAsksItToEnd(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}})
	accepted := s.order("k", "{}")
	run := s.take()
	r := s.cancel(accepted)
	if d := r.told(t); r.status != 202 || d.State != "running" || !d.Cancelling || r.header.Get("Retry-After") == "" {
		t.Errorf("got %d %s; want r.status == 202, d.State == \"running\", d.Cancelling, r.header.Get(\"Retry-After\") != \"\"", r.status, r.body)
	}
	if st, err := s.engine.Lookup(context.Background(), run.ID()); !st.Record.Cancelling || err != nil {
		t.Errorf("the run is asked to end: %+v, %v", st, err)
	}
	waits := make(chan reply)
	go func() { waits <- s.cancel(accepted, "Prefer", "wait=9") }()
	settle(t, run, store.Failed, `"stet: operation cancelled"`)
	r = <-waits
	if d := r.told(t); r.status != 200 || d.Outcome == nil || d.Outcome.Problem == nil || d.Outcome.Problem.Execution != "may have executed" {
		t.Errorf("got %d %s; want r.status == 200, d.Outcome != nil, d.Outcome.Problem != nil, d.Outcome.Problem.Execution == \"may have executed\"", r.status, r.body)
	}
}

func TestEndedOperationCannotBeCancelled(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}})
	accepted := s.order("k", "{}")
	run := s.take()
	s.cancel(accepted)
	settle(t, run, store.Completed, "{}") // it did not obey
	wantProblem(t, s.cancel(accepted), 409, "not-cancellable")
	wantReply(t, s.order("k", "{}", "Prefer", "wait=1"), 200, "{}", true)
}

// TestCancellingAReleasedOperationIsTheOutcome: it was asked to end, gave up
// without effect, and waits for another run.
func TestCancellingAReleasedOperationIsTheOutcome(t *testing.T) {
	s := start(t, setup{async: &stethttp.AsyncOptions{}})
	accepted := s.order("k", "{}")
	run := s.take()
	s.cancel(accepted)
	if err := run.Release(context.Background(), stet.Again{After: time.Hour}); err != nil {
		t.Fatal(err)
	}
	r := s.cancel(accepted)
	if d := r.told(t); r.status != 200 || d.State != "failed" {
		t.Errorf("got %d %s; want r.status == 200, d.State == \"failed\"", r.status, r.body)
	}
}

func TestOperationThatRunsAtOnceIsShownButNotCancelled(t *testing.T) {
	b := newBlocking()
	store := newFaulty()
	direct := start(t, setup{store: store, handler: b.ServeHTTP})
	s := start(t, setup{store: store, async: &stethttp.AsyncOptions{}})
	location := statusURL + s.engine.ID("single-tenant", "k").String()
	first := make(chan reply)
	go func() { first <- direct.post("k", "{}") }()
	<-b.entered
	wantProblem(t, s.do(s.request("DELETE", location, "", "")), 409, "not-cancellable")
	close(b.leave)
	<-first
	r := s.do(s.request("GET", location, "", ""))
	if d := r.told(t); d.State != "completed" || d.Outcome.Status != 200 || string(d.Outcome.ResultBase64) != "done" {
		t.Errorf("got %d %s; want d.State == \"completed\", d.Outcome.Status == 200, string(d.Outcome.ResultBase64) == \"done\"", r.status, r.body)
	}
}

// TestStatusOfACompressedResponseHasItsCoding: the status cannot negotiate for the response
// inside it.
func TestStatusOfACompressedResponseHasItsCoding(t *testing.T) {
	made, err := stethttp.Outcome(200, http.Header{"Content-Type": {"application/json; charset=utf-8"}, "Content-Encoding": {"gzip"}}, []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, setup{async: &stethttp.AsyncOptions{}})
	accepted := s.order("k", "{}")
	s.end(made)
	r := s.status(accepted)
	o := r.told(t).Outcome
	if o == nil || o.Result != nil || o.MediaType != "application/json" || o.ContentCoding != "gzip" || string(o.ResultBase64) != "{}" {
		t.Errorf("got %s; want o != nil, o.Result == nil, o.MediaType == \"application/json\", o.ContentCoding == \"gzip\", string(o.ResultBase64) == \"{}\"", r.body)
	}
	wantProblem(t, s.order("k", "{}", "Prefer", "wait=0", "Accept-Encoding", "identity"), 406, "coding-not-acceptable")
}

func TestStatusThatCannotBeReadIsUnavailable(t *testing.T) {
	store := newFaulty()
	s := start(t, setup{store: store, async: &stethttp.AsyncOptions{}})
	accepted := s.order("k", "{}")
	store.look.Store(true)
	for _, r := range []reply{s.status(accepted), s.cancel(accepted), s.status(accepted, "Accept", "text/event-stream")} {
		wantProblem(t, r, 504, "status-unavailable")
		if r.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	r := s.order("k", "{}", "Prefer", "wait=1")
	wantAccepted(t, r, true) // that much is known
}

func TestDamagedOperationIsReported(t *testing.T) {
	secret := func(b byte) stet.Options {
		return stet.Options{Encryption: stet.Encryption{Keys: []stet.EncryptionKey{{Name: "k", Secret: []byte(strings.Repeat(string(b), 32))}}}}
	}
	s := start(t, setup{async: &stethttp.AsyncOptions{}, engine: secret('a')})
	accepted := s.order("k", "{}")
	other := start(t, setup{store: s.store, async: &stethttp.AsyncOptions{}, engine: secret('b')})
	wantProblem(t, other.status(accepted), 500, "operation-unreadable")
	wantAccepted(t, other.order("k", "{}"), true) // that much is known
	wantProblem(t, other.order("k", "{}", "Prefer", "wait=1"), 500, "operation-unreadable")
	s.run(store.Completed, "{}")
	wantProblem(t, other.status(accepted), 500, "result-unreadable")
	wantProblem(t, other.order("k", "{}"), 500, "result-unreadable")

	accepted = s.order("l", "{}")
	if r := other.cancel(accepted); r.status != 200 { // no worker could run it
		t.Errorf("%d %s", r.status, r.body)
	}
	s.wantNothingDue()
}
