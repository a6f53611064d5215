package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

var outside = stet.Options{SweepEvery: -1, Policy: stet.Policy{Outside: true}}

// settleFor settles a run as its service would, in a transaction of its own.
func settleFor(t *testing.T, st store.Store, run *stet.Lease, body string) error {
	t.Helper()
	out := store.Settlement{State: store.Completed, Result: store.Result{Status: 201, Body: []byte(body)}}
	return st.Settle(t.Context(), run.Claim, out, store.Retention{Result: time.Hour, Tombstone: time.Hour})
}

func TestOutcomeOfTheServiceIsTheOutcomeOfTheRun(t *testing.T) {
	st := memory.New(memory.Options{})
	e := newEngine(t, st, outside)
	run := begin(t, e, op)
	out, err := run.Do(t.Context(), nil, func(context.Context) (stet.Outcome, error) {
		if err := settleFor(t, st, run, "settled"); err != nil {
			t.Fatal(err)
		}
		run.Declare(stet.MayHaveExecuted, time.Hour) // its answer did not come
		return stet.Outcome{Body: []byte("said")}, errors.New("broken off")
	})
	if err != nil || string(out.Body) != "settled" || out.Status != 201 {
		t.Errorf("the run ended with %+v, %v; want the settled outcome", out, err)
	}
	if again, err := e.Begin(t.Context(), op); err != nil || !again.Replayed() || string(again.Outcome().Body) != "settled" {
		t.Errorf("a retry gets %+v, %v; want the settled outcome", again, err)
	}
}

// Whatever the handler says: without an outcome nothing happened, and nothing can.
func TestRunThatTheServiceHasNotSettledIsOverAndNothingWasExecuted(t *testing.T) {
	for name, handler := range map[string]func(*stet.Lease) (stet.Outcome, error){
		"an answer": func(*stet.Lease) (stet.Outcome, error) { return stet.Outcome{Body: []byte("done")}, nil },
		"an error":  func(*stet.Lease) (stet.Outcome, error) { return stet.Outcome{}, errors.New("no") },
		"a permanent error": func(*stet.Lease) (stet.Outcome, error) {
			return stet.Outcome{}, stet.Permanent(errors.New("no"))
		},
		"not known": func(run *stet.Lease) (stet.Outcome, error) {
			run.Declare(stet.MayHaveExecuted, time.Hour)
			return stet.Outcome{}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			st := memory.New(memory.Options{})
			e := newEngine(t, st, outside)
			run := begin(t, e, op)
			_, err := run.Do(t.Context(), nil, func(context.Context) (stet.Outcome, error) { return handler(run) })
			if stet.KindOf(err) != stet.KindRetryable || stet.ExecutionOf(err) != stet.NotExecuted {
				t.Errorf("%v; want it retryable, and not executed", err)
			}
			if err := settleFor(t, st, run, "late"); !errors.Is(err, store.ErrFenced) {
				t.Errorf("the service settles late: %v; want it fenced", err)
			}
			if next := begin(t, e, op); next.Replayed() || next.Attempt() != 2 {
				t.Errorf("a retry is attempt %d, replayed %v; want the second attempt", next.Attempt(), next.Replayed())
			}
		})
	}
}

func TestPanicOfARunThatAServiceSettlesEndsItsClaim(t *testing.T) {
	st := memory.New(memory.Options{})
	e := newEngine(t, st, outside)
	run := begin(t, e, op)
	func() {
		defer func() { _ = recover() }()
		_, _ = run.Do(t.Context(), nil, func(context.Context) (stet.Outcome, error) { panic("broken") })
	}()
	if err := settleFor(t, st, run, "late"); !errors.Is(err, store.ErrFenced) {
		t.Errorf("the service settles after the panic: %v; want it fenced", err)
	}
	if again := begin(t, e, op); again.Replayed() {
		t.Errorf("a retry gets %+v; nothing was executed, so it is to run", again.Outcome())
	}
}

func TestExpiredRunThatAServiceSettlesRunsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		dies := newEngine(t, st, outside)
		run := begin(t, dies, op)
		if err := dies.Close(); err != nil { // no more heartbeats
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		e := newEngine(t, st, outside)
		next := begin(t, e, op)
		if next.Replayed() || next.Attempt() != 2 || next.Fence() <= run.Fence() {
			t.Errorf("a retry after the death is attempt %d under fence %d; want the second, above %d", next.Attempt(), next.Fence(), run.Fence())
		}
		if err := settleFor(t, st, run, "late"); !errors.Is(err, store.ErrFenced) {
			t.Errorf("the service of the expired run settles: %v; want it fenced", err)
		}
		if err := settleFor(t, st, next, "second"); err != nil {
			t.Error(err)
		}
	})
}

// A run that came later has settled: that outcome stands, for the earlier caller too.
func TestOvertakenRunReturnsTheStoredOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		slow := newEngine(t, &still{Store: st}, outside)
		run := begin(t, slow, op)
		var body string
		out, err := run.Do(t.Context(), nil, func(context.Context) (stet.Outcome, error) {
			time.Sleep(time.Minute)
			next := begin(t, newEngine(t, st, outside), op)
			if err := settleFor(t, st, next, "second"); err != nil {
				t.Error(err)
			}
			if err := settleFor(t, st, run, "first"); !errors.Is(err, store.ErrFenced) {
				t.Errorf("the overtaken run settles: %v; want it fenced", err)
			}
			return stet.Outcome{}, nil
		})
		if body = string(out.Body); err != nil || body != "second" {
			t.Errorf("the overtaken run ends with %q, %v; want the outcome that stands", body, err)
		}
	})
}

// late settles a run just before it is released.
type late struct {
	*memory.Store
	settle func()
}

func (s *late) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	s.settle()
	return s.Store.Release(ctx, c, keep)
}

func TestOutcomeStoredBetweenTheLastReadAndTheEndIsReturned(t *testing.T) {
	st := &late{Store: memory.New(memory.Options{})}
	run := begin(t, newEngine(t, st, outside), op)
	st.settle = func() {
		if err := settleFor(t, st, run, "late"); err != nil {
			t.Error(err)
		}
	}
	out, err := run.Do(t.Context(), nil, func(context.Context) (stet.Outcome, error) { return stet.Outcome{}, errors.New("broken off") })
	if err != nil || string(out.Body) != "late" {
		t.Errorf("the run ended with %+v, %v; want the settled outcome", out, err)
	}
}

// While another run continues nothing is said of it but that.
func TestOvertakenRunIsInFlight_NextRunContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		run := begin(t, newEngine(t, &still{Store: st}, outside), op)
		_, err := run.Do(t.Context(), nil, func(context.Context) (stet.Outcome, error) {
			time.Sleep(time.Minute)
			begin(t, newEngine(t, st, outside), op)
			return stet.Outcome{}, nil
		})
		if stet.KindOf(err) != stet.KindInFlight {
			t.Errorf("%v; want it in flight", err)
		}
	})
}

// still is a store to which no heartbeat comes through.
type still struct{ *memory.Store }

func (*still) Extend(context.Context, []store.Claim, time.Duration) ([]store.Claim, error) {
	return nil, errors.New("cut off")
}

func TestServicesCannotSettleWhereTheyCannot(t *testing.T) {
	key := stet.Encryption{Keys: []stet.EncryptionKey{{Name: "k", Secret: make([]byte, 32)}}}
	for name, o := range map[string]stet.Options{
		"in clear, of an engine that encrypts": {Encryption: key, Policy: stet.Policy{Outside: true}},
		"a class of an encrypting engine":      {Encryption: key, Classes: map[string]stet.Policy{"c": {Outside: true}}},
	} {
		if _, err := stet.New(memory.New(memory.Options{}), o); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%s: %v; want it refused", name, err)
		}
	}
	var inside struct{ store.Store }
	if _, err := stet.New(inside, outside); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("a store in which services cannot settle: %v; want it refused", err)
	}
	key.AcceptPlain = true
	e, err := stet.New(memory.New(memory.Options{}), stet.Options{Encryption: key, Policy: stet.Policy{Outside: true}})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
