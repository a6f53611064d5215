package stetclient_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetclient"
	"github.com/stet-go/stet/stetclient/journal"
)

// between is a journal that calls a function after Resume has read a page.
type between struct {
	stetclient.Journal
	then func()
}

func (b *between) Pending(ctx context.Context, after string, n int) ([]stetclient.Intent, error) {
	all, err := b.Journal.Pending(ctx, after, n)
	if then := b.then; then != nil {
		b.then = nil
		then()
	}
	return all, err
}

func TestResumeUsesTheResultOfAConcurrentCall(t *testing.T) {
	j := &between{Journal: open(t, journal.Options{})}
	tr, s := newClient(t, stetclient.Options{Journal: j, Policy: quick},
		fails(errDial), fails(errDial), // a call: not executed
		fails(errReset), fails(errReset), // one after Resume has read the journal: may have
		status(401), // Resume, without credentials
		status(201))
	ctx := stetclient.WithIntent(t.Context(), "order 1")
	_, _, err := post(ctx, t, tr, "x")
	wantError(t, err, stetclient.ReasonAttempts, stet.NotExecuted)
	j.then = func() {
		_, _, err := post(ctx, t, tr, "x")
		wantError(t, err, stetclient.ReasonAttempts, stet.MayHaveExecuted)
	}
	var last error
	got, err := tr.Resume(t.Context(), stetclient.ResumeOptions{Progress: func(p stetclient.Progress) { last = p.Err }})
	if err != nil || got.Pending != 1 || len(pending(t, j)) != 1 {
		t.Errorf("an intent that may have executed was removed: %+v, %v", got, err)
	}
	wantError(t, last, stetclient.ReasonRefused, stet.MayHaveExecuted)
	if _, _, err := post(ctx, t, tr, "x"); err != nil {
		t.Fatal(err)
	}
	for _, sent := range s.sent {
		if sent.header.Get("Idempotency-Key") != s.sent[0].header.Get("Idempotency-Key") {
			t.Error("the intent has two keys")
		}
	}
}

// failing is a journal that cannot add, whether it added or not.
type failing struct {
	stetclient.Journal
	adds, fails, stays bool
}

var errDisk = errors.New("disk I/O error")

func (f *failing) Add(ctx context.Context, in stetclient.Intent) (stetclient.Intent, bool, error) {
	if f.fails && !f.adds {
		return in, false, errDisk
	}
	in, added, err := f.Journal.Add(ctx, in)
	if f.fails {
		return in, false, errDisk
	}
	return in, added, err
}

func (f *failing) Forget(ctx context.Context, name string) error {
	if f.stays {
		return errDisk
	}
	return f.Journal.Forget(ctx, name)
}

func TestFailedJournalMayHaveExecuted(t *testing.T) {
	j := &failing{Journal: open(t, journal.Options{})}
	tr, s := newClient(t, stetclient.Options{Journal: j, Policy: quick}, fails(errReset))
	named, keyed := stetclient.WithIntent(t.Context(), "order 1"), stetclient.WithKey(t.Context(), "mine")
	for _, ctx := range []context.Context{named, keyed} {
		_, _, err := post(ctx, t, tr, "x")
		wantError(t, err, stetclient.ReasonAttempts, stet.MayHaveExecuted)
	}
	s.wantAttempts(4)
	for _, ctx := range []context.Context{named, keyed} {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, _, err := post(ended, t, tr, "x")
		wantError(t, err, stetclient.ReasonContext, stet.MayHaveExecuted)
		j.fails = true
		_, _, err = post(ctx, t, tr, "x")
		wantError(t, err, stetclient.ReasonJournal, stet.MayHaveExecuted)
		j.fails = false
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err := post(ended, t, tr, "x") // a new key was never sent
	wantError(t, err, stetclient.ReasonContext, stet.NotExecuted)
	for _, j.adds = range []bool{false, true} { // Resume may send it
		j.fails = true
		_, _, err = post(t.Context(), t, tr, "x")
		wantError(t, err, stetclient.ReasonJournal, stet.MayHaveExecuted)
	}
	s.wantAttempts(4)
}

func TestFailedJournalInResumeMayHaveExecuted(t *testing.T) {
	j := open(t, journal.Options{})
	in := stetclient.Intent{Name: "order 1", Key: "k", Method: "POST", URL: "http://service.test/payments", Created: time.Now(), Execution: stet.NotExecuted}
	tr, _ := newClient(t, stetclient.Options{Journal: &late{j, []stetclient.Intent{in}}}, status(201))
	_ = j.Close()
	var last error
	got, err := tr.Resume(t.Context(), stetclient.ResumeOptions{Progress: func(p stetclient.Progress) { last = p.Err }})
	if err != nil || got.Pending != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	wantError(t, last, stetclient.ReasonJournal, stet.MayHaveExecuted)
}

func TestIntentThatCannotBeRemovedMayHaveExecuted(t *testing.T) {
	j := &failing{Journal: open(t, journal.Options{}), stays: true}
	tr, _ := newClient(t, stetclient.Options{Journal: j, Policy: quick}, fails(errDial))
	_, _, err := post(t.Context(), t, tr, "x")
	if e := wantError(t, err, stetclient.ReasonAttempts, stet.MayHaveExecuted); !e.Pending {
		t.Error("it is not reported as pending")
	}
}

func TestIntentIsNeverIgnored(t *testing.T) {
	ctx := stetclient.WithIntent(t.Context(), "order 1")
	tr, s := newClient(t, stetclient.Options{Journal: open(t, journal.Options{})}, status(201))
	for range 2 {
		req, _ := http.NewRequestWithContext(ctx, "DELETE", "http://service.test/x", nil)
		if _, _, err := do(t, tr, req); err != nil {
			t.Error(err)
		}
	}
	s.wantAttempts(1)
	tr, s = newClient(t, stetclient.Options{}, status(201))
	_, _, err := post(ctx, t, tr, "x")
	if wantError(t, err, stetclient.ReasonRequest, stet.NotExecuted); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("without a journal: %v, want KindInvalid", err)
	}
	s.wantAttempts(0)
}

func TestObserversDoNotReceiveTheKey(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	see := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, name)
	}
	o := stetclient.Options{Journal: open(t, journal.Options{}), Policy: quick, Observe: func(_ context.Context, e stetclient.Event) { see(e.Intent) }}
	tr, _ := newClient(t, o, fails(errReset), fails(errReset), fails(errReset), fails(errReset), status(201))
	for _, ctx := range []context.Context{t.Context(), stetclient.WithIntent(t.Context(), "order 1")} {
		_, _, err := post(ctx, t, tr, "x")
		wantError(t, err, stetclient.ReasonAttempts, stet.MayHaveExecuted)
	}
	got, err := tr.Resume(t.Context(), stetclient.ResumeOptions{Progress: func(p stetclient.Progress) { see(p.Name) }})
	if err != nil || got.Settled != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	slices.Sort(seen)
	if want := []string{"", "", "", "", "order 1", "order 1", "order 1", "order 1"}; !slices.Equal(seen, want) {
		t.Errorf("they receive %q, want %q", seen, want)
	}
}

func TestNoAttemptIsMadePastMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &single{}
		o := stetclient.Options{Journal: j, MaxAge: 10 * time.Second, Policy: stetclient.Policy{Base: time.Nanosecond, Cap: time.Nanosecond}}
		tr, s := newClient(t, o, fails(errReset), answer(503, "", "Retry-After", "9"), answer(503, "", "Retry-After", "2"), status(201))
		_, _, err := post(t.Context(), t, tr, "x")
		if e := wantError(t, err, stetclient.ReasonStale, stet.MayHaveExecuted); !e.Pending || e.Response == nil {
			t.Errorf("got %+v", e)
		}
		s.wantAttempts(3)
		j.in.Created = time.Now().Add(-9 * time.Second) // the same for a resumed call
		tr, s = newClient(t, o, answer(503, "", "Retry-After", "2"), status(201))
		if got, err := tr.Resume(t.Context(), stetclient.ResumeOptions{}); err != nil || got.Stale != 1 {
			t.Errorf("Resume: %+v, %v", got, err)
		}
		s.wantAttempts(1)
	})
}

// single is a journal of one intent that stays pending.
type single struct {
	stetclient.Journal
	in stetclient.Intent
}

func (s *single) Add(_ context.Context, in stetclient.Intent) (stetclient.Intent, bool, error) {
	s.in = in
	return in, true, nil
}

func (s *single) Mark(context.Context, string, string, stet.Execution) (stet.Execution, error) {
	return stet.MayHaveExecuted, nil
}

func (s *single) Pending(context.Context, string, int) ([]stetclient.Intent, error) {
	return []stetclient.Intent{s.in}, nil
}

func (s *single) Settle(context.Context, string, string, stetclient.Answer) error { return nil }
