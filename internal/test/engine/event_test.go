package engine_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// recorder remembers the kinds of events.
type recorder struct {
	mu     sync.Mutex
	events []observe.Event
}

func (r *recorder) Observe(_ context.Context, ev observe.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, ev)
}

// take returns the kinds of events since it was called last.
func (r *recorder) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var kinds []string
	for _, ev := range r.events {
		kinds = append(kinds, ev.Kind.String())
	}
	r.events = nil
	return strings.Join(kinds, " ")
}

func TestObserverReceivesEachEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newSpy()
		var rec recorder
		e := newEngine(t, st, stet.Options{Observer: &rec, SweepEvery: -1, Policy: stet.Policy{Stale: stet.MayRunAgain()}})
		expect := func(what, kinds string) {
			t.Helper()
			if got := rec.take(); got != kinds {
				t.Errorf("%s: %q, want %q", what, got, kinds)
			}
		}
		runs := 0
		do := func(o stet.Op) { _, _ = stet.Do(t.Context(), e, o, charge(&runs)) }

		do(op)
		expect("first", "claimed settled")
		do(op)
		expect("replay", "replayed")
		other := op
		other.Fingerprint = stet.NewFingerprint([]byte("x"))
		do(other)
		expect("another request", "mismatched")
		time.Sleep(25 * time.Hour)
		do(op)
		expect("expired", "expired")

		second := stet.Op{Scope: "s", Key: "second"}
		run := begin(t, e, second)
		do(second)
		if err := run.Release(t.Context(), stet.Again{}); err != nil {
			t.Fatal(err)
		}
		expect("in flight, released", "claimed in_flight released")

		third := stet.Op{Scope: "s", Key: "third"}
		die(t, st, third)
		do(third)
		expect("taken over", "taken_over claimed settled")

		fourth := stet.Op{Scope: "s", Key: "fourth"}
		run = begin(t, e, fourth)
		if err := st.Release(t.Context(), claimOf(t, st, run), store.Retention{Result: time.Hour}); err != nil {
			t.Fatal(err)
		}
		<-run.Context().Done()
		synctest.Wait() // the event comes after the end of the context
		_ = run.Settle(t.Context(), stet.Outcome{})
		expect("lost", "claimed lease_lost fenced")

		slow := begin(t, e, stet.Op{Scope: "s", Key: "slow"})
		<-slow.Context().Done()
		synctest.Wait()
		_ = slow.Settle(t.Context(), stet.Outcome{})
		expect("out of time", "claimed timed_out settled")

		st.failClaim.Store(&errDown)
		do(stet.Op{Scope: "s", Key: "fifth"})
		expect("store down", "store_failed")
		st.failClaim.Store(nil)
		st.failSettle.Store(&errDown)
		do(stet.Op{Scope: "s", Key: "sixth"})
		expect("settle fails", "claimed store_failed")
	})
}

func TestRunThatCloseCutsOffHasNotLostItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec recorder
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{Observer: &rec, SweepEvery: -1})
		run := begin(t, e, op)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if got := rec.take(); got != "claimed cut_off" || run.Context().Err() == nil {
			t.Errorf("got %q; want \"claimed cut_off\", and the run's context ended", got)
		}
	})
}

func TestTransactionThatTimesOutIsReported(t *testing.T) {
	st, _ := bank(t)
	var rec recorder
	e := newEngine(t, st, stet.Options{Observer: &rec, SweepEvery: -1, Policy: stet.Policy{RunTimeout: 20 * time.Millisecond}})
	_, err := stet.DoTx(t.Context(), txOf(e, st), op, func(ctx context.Context, _ *sql.Tx) (string, error) {
		<-ctx.Done()
		return "", context.Cause(ctx)
	})
	if got := rec.take(); got != "claimed timed_out released" || err == nil {
		t.Errorf("got %q, %v; want \"claimed timed_out released\" and an error", got, err)
	}
}

func TestSweepIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Options{})
		var rec recorder
		newEngine(t, store, stet.Options{Observer: &rec})
		die(t, store, op)
		time.Sleep(2 * time.Minute)
		rec.mu.Lock()
		defer rec.mu.Unlock()
		if !slices.ContainsFunc(rec.events, func(ev observe.Event) bool { return ev.Kind == observe.Swept && ev.Swept.MarkedUnknown == 1 }) {
			t.Fatalf("got %+v; want slices.ContainsFunc(rec.events, func(ev observe.Event) bool { return ev.Kind == observe.Swept && ev.Swept.MarkedUnknown == 1 })", rec.events)
		}
	})
}

// Events and errors contain no key and no body, because they are logged.
func TestEventsAndErrorsContainNoKeyOrBody(t *testing.T) {
	const key, scope, body = "canary-key", "canary-scope", "canary-body"
	store := newSpy()
	var told []string
	e := newEngine(t, store, stet.Options{
		StoreTimeout: time.Millisecond,
		Observer:     observe.Func(func(_ context.Context, ev observe.Event) { told = append(told, fmt.Sprintf("%+v", ev)) }),
	})
	secret := stet.Op{Scope: scope, Key: key, Fingerprint: stet.NewFingerprint([]byte(body))}
	try := func(o stet.Op) {
		_, err := stet.Do(t.Context(), e, o, func(context.Context) (string, error) { return body, nil })
		told = append(told, fmt.Sprintf("%v %+v %#v", err, err, errors.Unwrap(err)))
	}
	try(secret)
	try(secret)
	try(stet.Op{Scope: scope, Key: key})
	try(stet.Op{Scope: scope, Key: key, Class: "none"})
	try(stet.Op{Scope: scope, Key: strings.Repeat(key, 1000)})
	store.failSettle.Store(&errDown)
	try(stet.Op{Scope: scope, Key: key + "2"})
	store.failClaim.Store(&errDown)
	try(stet.Op{Scope: scope, Key: key + "3"})
	for _, s := range told {
		if strings.Contains(s, "canary") {
			t.Errorf("told: %s", s)
		}
	}
	if len(told) < 12 {
		t.Fatalf("%d lines only", len(told))
	}
}

// crowded is a store whose sweeps wait long for their turn, and never finish
// with the table.
type crowded struct {
	*memory.Store
	sweeps int
}

func (s *crowded) Sweep(context.Context, int) (store.Swept, error) {
	s.sweeps++
	time.Sleep(time.Second)
	return store.Swept{More: true}, nil
}

func TestSweepThatQueuedIsNotPutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &crowded{Store: memory.New(memory.Options{})}
		e := newEngine(t, store, stet.Options{SweepEvery: time.Second})
		time.Sleep(time.Minute)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if store.sweeps < 50 {
			t.Fatalf("%d sweeps of a second each in a minute", store.sweeps)
		}
	})
}
