package engine_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/memory"
)

// Three charges under one name were one charge, and two that were skipped.
func TestNameOfAStepIsUsedOnceInAnAttempt(t *testing.T) {
	for _, step := range steps {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
		it := accept(t, e, op, parcel)
		run, runs := take(t, e, it), 0
		for attempt := range 3 { // in later ones the first is that of the first attempt
			for i := range 3 {
				v, err := step(run.Context(), "charge", counted(&runs, nil))
				if i == 0 && (err != nil || v != "run 1") || i > 0 && stet.KindOf(err) != stet.KindInvalid {
					t.Errorf("attempt %d, charge %d: %q, %v", attempt+1, i+1, v, err)
				}
			}
			if runs != 1 || run.Declared() == stet.MayHaveExecuted {
				t.Errorf("%d runs, may have executed: %v", runs, run.Declared() == stet.MayHaveExecuted)
			}
			run = again(t, e, run, it)
		}
	}
}

func TestRunningStepIsNotBegunByAnotherGoroutine(t *testing.T) {
	for _, step := range steps {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
		run := take(t, e, accept(t, e, op, parcel))
		runs, other := 0, 0
		_, err := step(run.Context(), "charge", func(ctx context.Context) (string, error) {
			failed := make(chan error)
			go func() {
				_, err := step(ctx, "charge", counted(&other, nil))
				failed <- err
			}()
			if err := <-failed; stet.KindOf(err) != stet.KindInvalid {
				t.Errorf("beside it: %v", err)
			}
			return counted(&runs, nil)(ctx)
		})
		if err != nil || runs != 1 || other != 0 {
			t.Errorf("%v, %d runs, and %d beside", err, runs, other)
		}
		complete(t, run, "x")
	}
}

// What did not happen may be tried again.
func TestStepThatFailedMayBeTriedAgainInItsAttempt(t *testing.T) {
	failures := []error{errors.New("no answer"), stet.Retryable(errors.New("busy"))}
	for i, step := range steps {
		failure := failures[i]
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
		run := take(t, e, accept(t, e, op, parcel))
		runs := 0
		for range 3 {
			if _, err := step(run.Context(), "charge", counted(&runs, failure)); !errors.Is(err, failure) {
				t.Fatal(err)
			}
		}
		func() {
			defer func() { _ = recover() }()
			_, _ = stet.Step(run.Context(), "reserve", func(context.Context) (int, error) { panic("out of paper") })
		}()
		for _, name := range []string{"charge", "reserve"} {
			if _, err := step(run.Context(), name, counted(&runs, nil)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if runs != 5 {
			t.Errorf("%d runs", runs)
		}
		complete(t, run, "x")
	}
}
