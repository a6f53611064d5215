package stet_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/memory"
)

func doubtful(still time.Duration, then func() error) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		stet.FromContext(ctx).OutcomeUnknown(still)
		return "", then()
	}
}

func TestHandlerMaySayThatNobodyKnows(t *testing.T) {
	for name, then := range map[string]func() error{
		"and return":              func() error { return nil },
		"and fail":                func() error { return errors.New("no answer") },
		"and fail as if retrying": func() error { return stet.ErrRetryable },
		"and panic":               func() error { panic("no answer") },
	} {
		synctest.Test(t, func(t *testing.T) {
			store := memory.New(memory.Options{})
			e := newEngine(t, store, stet.Options{SweepEvery: -1})
			func() {
				defer func() { _ = recover() }()
				_, err := stet.Do(t.Context(), e, op, doubtful(0, then))
				if !errors.Is(err, stet.ErrUnknown) || stet.ExecutionOf(err) != stet.MayHaveExecuted {
					t.Errorf("%s: %v", name, err)
				}
			}()
			shown := browse(t, store, stet.Unknown) // at once, not when the lease has run out
			runs := 0
			if _, err := stet.Do(t.Context(), e, op, charge(&runs)); !errors.Is(err, stet.ErrUnknown) || runs != 0 {
				t.Errorf("%s: a retry: %v, %d runs", name, err, runs)
			}
			if err := e.Resolve(t.Context(), shown, "", stet.ItDidNotHappen()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := stet.Do(t.Context(), e, op, charge(&runs)); err != nil || runs != 1 {
				t.Errorf("%s: after it was resolved: %v, %d runs", name, err, runs)
			}
		})
	}
}

func TestVerifierIsNotAskedWhileTheEffectMayStillHappen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Options{})
		asked := 0
		e := newEngine(t, store, stet.Options{SweepEvery: -1, Policy: stet.Policy{
			Verify: func(context.Context, stet.Unresolved) (stet.Verdict, error) {
				asked++
				return stet.ItDidNotHappen(), nil
			}}})
		_, err := stet.Do(t.Context(), e, op, doubtful(time.Hour, func() error { return nil }))
		if !errors.Is(err, stet.ErrUnknown) {
			t.Fatal(err)
		}
		runs := 0
		time.Sleep(59 * time.Minute)
		if _, err := stet.Do(t.Context(), e, op, charge(&runs)); !errors.Is(err, stet.ErrInFlight) || runs+asked != 0 {
			t.Fatalf("while it may still happen: %v, %d runs, asked %d times", err, runs, asked)
		}
		time.Sleep(2 * time.Minute)
		if _, err := stet.Do(t.Context(), e, op, charge(&runs)); err != nil || runs != 1 || asked != 1 {
			t.Fatalf("afterwards: %v, %d runs, asked %d times", err, runs, asked)
		}
	})
}

func TestParkEndsARunOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Options{})
		e := newEngine(t, store, stet.Options{SweepEvery: -1})
		run, err := e.Begin(t.Context(), op)
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Park(t.Context()); err != nil {
			t.Fatal(err)
		}
		if run.Context().Err() == nil {
			t.Error("the run's context goes on")
		}
		for _, err := range []error{run.Park(t.Context()), run.Release(t.Context()), run.Settle(t.Context(), stet.Outcome{State: stet.Completed})} {
			if !errors.Is(err, stet.ErrInvalid) {
				t.Errorf("after Park: %v", err)
			}
		}
		browse(t, store, stet.Unknown)
	})
}

// vanishing is a store that somebody else writes to just before leases are
// extended.
type vanishing struct{ *memory.Store }

func (s vanishing) Extend(ctx context.Context, claims []stet.Claim, lease time.Duration) ([]stet.Claim, error) {
	for _, c := range claims {
		_ = s.Settle(ctx, c, stet.Outcome{State: stet.Completed}, stet.Retention{Result: time.Hour, Tombstone: time.Hour})
	}
	return s.Store.Extend(ctx, claims, lease)
}

func TestParkLeavesAloneWhatSomebodyHasSettled(t *testing.T) {
	store := memory.New(memory.Options{})
	e := newEngine(t, vanishing{store}, stet.Options{SweepEvery: -1})
	run, err := e.Begin(t.Context(), op)
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Park(t.Context()); !errors.Is(err, stet.ErrFenced) {
		t.Errorf("%v", err)
	}
	browse(t, store, stet.Completed)
}
