package stetclient_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetclient"
	"github.com/stet-go/stet/stetclient/journal"
)

// open opens a journal for a test.
func open(t *testing.T, o journal.Options) *journal.Journal {
	t.Helper()
	j, err := journal.Open(t.Context(), filepath.Join(t.TempDir(), "journal"), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

// quick is a policy that does not wait, and makes two attempts.
var quick = stetclient.Policy{MaxAttempts: 2, Base: time.Nanosecond, Cap: time.Nanosecond}

func pending(t *testing.T, j stetclient.Journal) []stetclient.Intent {
	t.Helper()
	all, err := j.Pending(t.Context(), "", 100)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestIntentIsDurableBeforeTheFirstByte(t *testing.T) {
	j := open(t, journal.Options{})
	check := func(req *http.Request) (*http.Response, error) {
		all := pending(t, j)
		if len(all) != 1 || all[0].Name != "order 1" || `"`+all[0].Key+`"` != req.Header.Get("Idempotency-Key") || string(all[0].Body) != "x" ||
			all[0].Execution != stet.MayHaveExecuted {
			t.Errorf("when the request is sent the journal has %+v", all)
		}
		return answer(201, "charged")(req)
	}
	tr, _ := newClient(t, stetclient.Options{Journal: j}, check)
	res, _, err := post(stetclient.WithIntent(t.Context(), "order 1"), t, tr, "x")
	if err != nil {
		t.Fatal(err)
	}
	if info, _ := stetclient.InfoOf(res); info.Pending || len(pending(t, j)) != 0 {
		t.Errorf("after its outcome the intent is pending: %+v", info)
	}
}

func TestIntentWithAnOutcome(t *testing.T) {
	j := open(t, journal.Options{})
	tr, s := newClient(t, stetclient.Options{Journal: j}, answer(402, "declined", "X-Trace", "1", "Set-Cookie", "secret"))
	ctx := stetclient.WithIntent(t.Context(), "order 1")
	for range 2 { // the second response is the journal's
		res, body, err := post(ctx, t, tr, "x")
		if err != nil || res.StatusCode != 402 || body != "declined" || res.Header.Get("X-Trace") != "1" {
			t.Fatalf("got %v %q, %v", res, body, err)
		}
	}
	s.wantAttempts(1)
	if all, err := j.List(ctx, "", 10); err != nil || len(all) != 1 || all[0].Answer == nil || all[0].Answer.Header.Get("Set-Cookie") != "" {
		t.Errorf("the journal has %+v, %v", all, err)
	}
	for name, mismatch := range map[string]func() error{
		"another body": func() error { _, _, err := post(ctx, t, tr, "y"); return err },
		"another key":  func() error { _, _, err := post(stetclient.WithKey(ctx, "mine"), t, tr, "x"); return err },
	} {
		err := mismatch()
		if wantError(t, err, stetclient.ReasonRequest, stet.MayHaveExecuted); stet.KindOf(err) != stet.KindMismatch {
			t.Errorf("%s: %v, want KindMismatch", name, err)
		}
	}
	s.wantAttempts(1)
}

func TestResumeSettlesPendingIntents(t *testing.T) {
	j := open(t, journal.Options{})
	down, s := newClient(t, stetclient.Options{Journal: j, Policy: quick, SecretHeaders: []string{"x-api-key"}}, fails(errReset))
	for i := range 75 { // more than a page
		req, _ := http.NewRequestWithContext(stetclient.WithIntent(t.Context(), fmt.Sprint("order ", i)), "POST", "http://service.test/pay?x=1", strings.NewReader(fmt.Sprint("body ", i)))
		req.Header.Set("Authorization", "Bearer secret-token")
		req.Header.Set("Cookie", "session=secret-cookie")
		req.Header.Set("X-Api-Key", "secret-api-key")
		req.URL.User = url.UserPassword("user", "secret-password")
		req.Header.Set("X-Kept", "yes")
		_, _, err := do(t, down, req)
		wantError(t, err, stetclient.ReasonAttempts, stet.MayHaveExecuted)
	}
	keys := make(map[string]string)
	for _, sent := range s.sent {
		keys[sent.body] = sent.header.Get("Idempotency-Key")
	}
	all, err := j.List(t.Context(), "", 1000)
	if text := fmt.Sprintf("%+v", all); err != nil || len(all) != 75 || strings.Contains(text, "secret") {
		t.Errorf("%v, %d intents in the journal: %.500s", err, len(all), text)
	}
	var turn atomic.Int64
	up, s := newClient(t, stetclient.Options{Journal: j, Policy: quick}, func(req *http.Request) (*http.Response, error) {
		if turn.Add(1) > 50 && turn.Load() <= 100 { // two attempts each of 25 intents
			return fails(errReset)(req)
		}
		return status(201)(req)
	})
	var done []string
	o := stetclient.ResumeOptions{
		Prepare: func(r *http.Request) error {
			r.Header.Set("Authorization", "fresh")
			r.Header.Set("Idempotency-Key", "another")
			return nil
		},
		Progress: func(p stetclient.Progress) {
			if p.Settled {
				done = append(done, p.Name)
			}
		},
	}
	for _, want := range []stetclient.Resumed{{Settled: 50, Pending: 25}, {Settled: 25}, {}} {
		if got, err := up.Resume(t.Context(), o); err != nil || got != want || len(pending(t, j)) != want.Pending {
			t.Errorf("Resume: %+v, %v, want %+v", got, err, want)
		}
	}
	slices.Sort(done)
	if len(slices.Compact(done)) != 75 {
		t.Errorf("Progress was called for %d", len(done))
	}
	for _, sent := range s.sent {
		if sent.header.Get("Idempotency-Key") != keys[sent.body] || sent.header.Get("Authorization") != "fresh" || sent.header.Get("X-Kept") != "yes" {
			t.Errorf("%s was resumed with %v", sent.body, sent.header)
		}
	}
}

// late is a journal whose list of pending intents is old.
type late struct {
	stetclient.Journal
	was []stetclient.Intent
}

func (l *late) Pending(context.Context, string, int) ([]stetclient.Intent, error) { return l.was, nil }

func TestResumeDoesNotSendASettledIntent(t *testing.T) {
	j := open(t, journal.Options{})
	in := stetclient.Intent{Name: "order 1", Key: "old", Method: "POST", URL: "http://service.test/payments", Created: time.Now()}
	if _, _, err := j.Add(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Mark(t.Context(), in.Name, in.Key, stet.NotExecuted); err != nil {
		t.Fatal(err)
	}
	if err := j.Forget(t.Context(), in.Name); err != nil {
		t.Fatal(err)
	}
	renewed := in
	renewed.Key = "new"
	if _, added, err := j.Add(t.Context(), renewed); err != nil || !added {
		t.Fatal(added, err)
	}
	tr, s := newClient(t, stetclient.Options{Journal: &late{j, []stetclient.Intent{in}}}, status(201))
	if got, err := tr.Resume(t.Context(), stetclient.ResumeOptions{}); err != nil || got.Pending != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	s.wantAttempts(0)
}

func TestResumeEndsWithItsContext(t *testing.T) {
	j := open(t, journal.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	tr, s := newClient(t, stetclient.Options{Journal: j, Policy: quick}, fails(errReset), fails(errReset), fails(errReset), func(*http.Request) (*http.Response, error) {
		cancel()
		return nil, errReset
	})
	_, _, err := post(t.Context(), t, tr, "x")
	wantError(t, err, stetclient.ReasonAttempts, stet.MayHaveExecuted)
	got, err := tr.Resume(ctx, stetclient.ResumeOptions{})
	if !errors.Is(err, context.Canceled) || got.Pending != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
	s.wantAttempts(4)
	if got, err := tr.Resume(t.Context(), stetclient.ResumeOptions{}); err != nil || got.Pending != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestOldIntentIsNotSentAgain(t *testing.T) {
	j := open(t, journal.Options{})
	in := stetclient.Intent{Name: "order 1", Key: "k", Method: "POST", URL: "http://service.test/payments", Body: []byte("x"), Header: http.Header{}, Created: time.Now().Add(-24 * time.Hour)}
	if _, added, err := j.Add(t.Context(), in); err != nil || !added {
		t.Fatal(added, err)
	}
	tr, s := newClient(t, stetclient.Options{Journal: j}, status(201))
	got, err := tr.Resume(t.Context(), stetclient.ResumeOptions{})
	if err != nil || got.Pending != 1 || got.Stale != 1 {
		t.Errorf("Resume: %+v, %v", got, err)
	}
	_, _, err = post(stetclient.WithIntent(t.Context(), "order 1"), t, tr, "x")
	if e := wantError(t, err, stetclient.ReasonStale, stet.MayHaveExecuted); !e.Pending {
		t.Error("it is not pending")
	}
	s.wantAttempts(0)
}

func TestCallsOfOneIntentTakeTurns(t *testing.T) {
	j := open(t, journal.Options{})
	tr, s := newClient(t, stetclient.Options{Journal: j}, answer(201, "charged"))
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, body, err := post(stetclient.WithIntent(t.Context(), "order 1"), t, tr, "x"); err != nil || body != "charged" {
				t.Errorf("got %q, %v", body, err)
			}
		})
	}
	wg.Wait()
	s.wantAttempts(1)
}

func TestNothingIsSentIfTheJournalFails(t *testing.T) {
	j := open(t, journal.Options{MaxPending: 1})
	tr, s := newClient(t, stetclient.Options{Journal: j, Policy: quick}, fails(errReset))
	_, _, err := post(t.Context(), t, tr, "x")
	wantError(t, err, stetclient.ReasonAttempts, stet.MayHaveExecuted)
	_, _, err = post(t.Context(), t, tr, "y")
	if wantError(t, err, stetclient.ReasonJournal, stet.NotExecuted); !errors.Is(err, stetclient.ErrJournalFull) {
		t.Errorf("got %v, want ErrJournalFull", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	_, _, err = post(t.Context(), t, tr, "z")
	wantError(t, err, stetclient.ReasonJournal, stet.MayHaveExecuted) // it might have been kept
	s.wantAttempts(2)
	_, _, err = post(stetclient.WithIntent(t.Context(), strings.Repeat("n", stetclient.MaxName+1)), t, tr, "z")
	wantError(t, err, stetclient.ReasonRequest, stet.NotExecuted)
}

func TestOutcomeIsReturnedIfTheJournalFails(t *testing.T) {
	j := open(t, journal.Options{})
	var events []stetclient.Event
	tr, _ := newClient(t, stetclient.Options{Journal: j, Observe: func(_ context.Context, e stetclient.Event) { events = append(events, e) }}, func(req *http.Request) (*http.Response, error) {
		_ = j.Close()
		return answer(201, "charged")(req)
	})
	res, body, err := post(t.Context(), t, tr, "x")
	if err != nil || body != "charged" {
		t.Fatalf("got %q, %v", body, err)
	}
	if info, _ := stetclient.InfoOf(res); !info.Pending || len(events) != 2 || events[1].Err == nil {
		t.Errorf("the failed write is not reported: %+v, %+v", info, events)
	}
}

func TestIntentWithALargeResponseIsNotSentAgain(t *testing.T) {
	j := open(t, journal.Options{})
	tr, s := newClient(t, stetclient.Options{Journal: j, MaxResponse: 4}, answer(201, "0123456789"))
	ctx := stetclient.WithIntent(t.Context(), "order 1")
	if _, body, err := post(ctx, t, tr, "x"); err != nil || body != "0123456789" {
		t.Fatalf("got %q, %v", body, err)
	}
	_, _, err := post(ctx, t, tr, "x")
	wantError(t, err, stetclient.ReasonRecorded, stet.Executed)
	s.wantAttempts(1)
}
