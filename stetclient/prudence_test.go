package stetclient_test

import (
	"context"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetclient"
	"github.com/stet-go/stet/stetclient/journal"
)

// between is a journal with which something happens after Resume has read a page
// of it.
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

// unbounded is no retry budget.
var unbounded = stetclient.Budget{Burst: -1}

func TestResumeKnowsWhatACallLearntMeanwhile(t *testing.T) {
	j := &between{Journal: open(t, journal.Options{})}
	tr, s := newClient(t, stetclient.Options{Journal: j, Policy: quick, Budget: unbounded},
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
	got, err := tr.Resume(t.Context(), stetclient.ResumeOptions{Once: true, Progress: func(p stetclient.Progress) { last = p.Err }})
	if err != nil || got.Pending != 1 || len(pending(t, j)) != 1 {
		t.Errorf("an intent that may have executed was given up: %+v, %v", got, err)
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
