package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// later is a store on a clock that the test moves.
func later(t *testing.T, o stet.Options) (*stet.Engine, *memory.Store, func(time.Duration)) {
	t.Helper()
	now := time.Now()
	store := memory.New(memory.Options{Clock: func() time.Time { return now }})
	return newEngine(t, store, o), store, func(d time.Duration) { now = now.Add(d) }
}

func undone(ctx context.Context) (int, error) {
	stet.FromContext(ctx).Declare(stet.NotExecuted, 0)
	return 0, nil
}

func TestFirstRunWithoutAnEffectLeavesNoRecord(t *testing.T) {
	e, st, _ := later(t, stet.Options{Policy: stet.Policy{ForgetReleased: true}})
	var fence int64
	for range 3 {
		if _, err := stet.Do(t.Context(), e, op, undone); stet.KindOf(err) != stet.KindRetryable {
			t.Fatal(err)
		}
		if rec, err := st.Read(t.Context(), e.ID(op.Scope, op.Key)); err != nil || rec.State != store.None {
			t.Fatalf("left behind: %+v, %v", rec, err)
		}
		// What asks for something else is another operation: nothing was done under this key.
		other := op
		other.Fingerprint = stet.NewFingerprint([]byte("something else"))
		res, err := stet.Do(t.Context(), e, other, func(ctx context.Context) (int, error) {
			if n := stet.FromContext(ctx).Attempt(); n != 1 {
				t.Errorf("attempt %d", n)
			}
			now := stet.FromContext(ctx).Fence()
			if now <= fence {
				t.Errorf("the fence is %d after %d", now, fence)
			}
			fence = now
			return undone(ctx)
		})
		if stet.KindOf(err) != stet.KindRetryable {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	if _, err := st.Sweep(t.Context(), 10); err != nil || st.Len() != 0 {
		t.Errorf("%d records are held, %v", st.Len(), err)
	}
}

// A run before this one died, and was taken over: its effect may have happened.
func TestLaterRunWithoutAnEffectIsRemembered(t *testing.T) {
	e, st, wait := later(t, stet.Options{Policy: stet.Policy{ForgetReleased: true, Stale: stet.MayRunAgain(), Lease: time.Second}})
	req := store.ClaimRequest{ID: e.ID(op.Scope, op.Key), Scope: store.DigestScope("", op.Scope), Fingerprint: op.Fingerprint, Owner: store.NewOwner(), Lease: time.Second}
	if _, err := st.Claim(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	wait(2 * time.Second)
	if _, err := stet.Do(t.Context(), e, op, undone); stet.KindOf(err) != stet.KindRetryable {
		t.Fatal(err)
	}
	wait(time.Hour)
	if rec, err := st.Read(t.Context(), req.ID); err != nil || rec.State != store.Retryable || rec.Attempt != 2 {
		t.Errorf("%+v, %v", rec, err)
	}
	other := op
	other.Fingerprint = stet.NewFingerprint([]byte("something else"))
	if _, err := stet.Do(t.Context(), e, other, undone); stet.KindOf(err) != stet.KindMismatch {
		t.Error(err)
	}
}

// halting is a store whose next claim takes effect, and its reply is lost; and so
// with the next release.
type halting struct {
	store.Store
	claims, releases int
}

func (h *halting) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	rec, err := h.Store.Claim(ctx, req)
	if h.claims--; h.claims >= 0 && err == nil {
		return store.Record{}, errors.New("reply lost")
	}
	return rec, err
}

func (h *halting) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	err := h.Store.Release(ctx, c, keep)
	if h.releases--; h.releases >= 0 && err == nil {
		return errors.New("reply lost")
	}
	return err
}

// joined reports whether an error also contains the failed release.
func joined(err error) bool {
	_, ok := err.(interface{ Unwrap() []error })
	return ok
}

// A claim that was sent twice may arrive again later. It must find the record of its
// owner; otherwise it would be granted without a run, and its key become unknown.
func TestRunIsRemembered_ClaimSentTwice(t *testing.T) {
	_, st, wait := later(t, stet.Options{})
	e := newEngine(t, &halting{Store: st, claims: 1}, stet.Options{Policy: stet.Policy{ForgetReleased: true}})
	if _, err := stet.Do(t.Context(), e, op, undone); stet.KindOf(err) != stet.KindRetryable || joined(err) {
		t.Fatal(err)
	}
	wait(time.Hour)
	if rec, err := st.Read(t.Context(), e.ID(op.Scope, op.Key)); err != nil || rec.State != store.Retryable {
		t.Errorf("%+v, %v", rec, err)
	}
}

func TestReleaseThatIsRepeatedAfterTheRecordIsForgottenIsASuccess(t *testing.T) {
	_, store, _ := later(t, stet.Options{})
	e := newEngine(t, &halting{Store: store, releases: 1}, stet.Options{Policy: stet.Policy{ForgetReleased: true}})
	if _, err := stet.Do(t.Context(), e, op, undone); stet.KindOf(err) != stet.KindRetryable || joined(err) {
		t.Fatal(err)
	}
}

func TestRunThatHasDoneAStepIsRemembered(t *testing.T) {
	e, _, _ := later(t, stet.Options{Policy: stet.Policy{ForgetReleased: true}})
	done := 0
	for range 2 {
		_, err := stet.Do(t.Context(), e, op, func(ctx context.Context) (int, error) {
			if _, err := stet.StepOnce(ctx, "reserve", func(context.Context) (int, error) { done++; return 1, nil }); err != nil {
				t.Fatal(err)
			}
			return undone(ctx)
		})
		if stet.KindOf(err) != stet.KindRetryable {
			t.Fatal(err)
		}
	}
	if done != 1 {
		t.Errorf("the step was done %d times", done)
	}
}

// unheard is a store whose first Release gets no answer. in the meantime happens before the
// second, which comes through.
type unheard struct {
	*memory.Store
	during func()
}

func (s *unheard) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	if do := s.during; do != nil {
		s.during = nil
		do()
		return errors.New("no answer")
	}
	return s.Store.Release(ctx, c, keep)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A repeated release that finds no record succeeded the first time. A release that finds
// an outcome did not.
func TestLateReleaseIsNotReportedAsSuccessful(t *testing.T) {
	for name, tc := range map[string]struct {
		during func(*testing.T, *unheard, store.Claim)
		fenced bool
	}{
		"released": {func(t *testing.T, s *unheard, c store.Claim) {
			must(t, s.Store.Release(t.Context(), c, store.Retention{}))
		}, false},
		"released, and claimed again": {func(t *testing.T, s *unheard, c store.Claim) {
			must(t, s.Store.Release(t.Context(), c, store.Retention{}))
			req := store.ClaimRequest{ID: c.ID, Owner: store.NewOwner(), Lease: time.Hour}
			if rec, err := s.Claim(t.Context(), req); err != nil || rec.Owner != req.Owner {
				t.Fatal(rec, err)
			}
		}, false},
		"settled by a resolution": {func(t *testing.T, s *unheard, c store.Claim) {
			must(t, s.Settle(t.Context(), c, store.Settlement{State: store.Completed, Result: store.Result{Body: []byte("1")}}, store.Retention{Result: time.Hour, Tombstone: time.Hour}))
		}, true},
		"taken over": {func(t *testing.T, s *unheard, c store.Claim) {
			must(t, s.Store.Release(t.Context(), c, store.Retention{Result: time.Hour, Tombstone: time.Hour}))
			rec, err := s.Read(t.Context(), c.ID)
			must(t, err)
			req := store.ClaimRequest{ID: c.ID, Scope: rec.Scope, Fingerprint: rec.Fingerprint, Owner: store.NewOwner(), Lease: time.Hour}
			if rec, err := s.Claim(t.Context(), req); err != nil || rec.Owner != req.Owner {
				t.Fatal(rec, err)
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &unheard{Store: memory.New(memory.Options{})}
			var seen []observe.Kind
			e := newEngine(t, s, stet.Options{Policy: stet.Policy{ForgetReleased: true},
				Observer: observe.Func(func(_ context.Context, ev observe.Event) { seen = append(seen, ev.Kind) })})
			r := begin(t, e, op)
			rec, err := s.Read(t.Context(), r.ID())
			must(t, err)
			s.during = func() { tc.during(t, s, rec.Claim()) }
			err = r.Release(t.Context(), stet.Again{})
			if (stet.KindOf(err) == stet.KindFenced) != tc.fenced || (err == nil) == tc.fenced {
				t.Errorf("the run returned %v; want fenced: %v", err, tc.fenced)
			}
			want := observe.Released
			if tc.fenced {
				want = observe.Fenced
			}
			if last := seen[len(seen)-1]; last != want {
				t.Errorf("observed %v; want %v", last, want)
			}
		})
	}
}

// Another run of the same key may have executed, so the error must not say "not executed".
func TestRunThatWasTakenOverDoesNotAnswerForItsSuccessor(t *testing.T) {
	e, store, wait := later(t, stet.Options{SweepEvery: -1, Policy: stet.Policy{Stale: stet.MayRunAgain(), Lease: time.Second}})
	_, err := stet.Do(t.Context(), e, op, func(ctx context.Context) (int, error) {
		wait(2 * time.Second) // it was paused
		other := newEngine(t, store, stet.Options{SweepEvery: -1, Policy: stet.Policy{Stale: stet.MayRunAgain(), Lease: time.Second}})
		if res, err := stet.Do(context.Background(), other, op, func(context.Context) (int, error) { return 1, nil }); err != nil || res.Attempt != 2 {
			t.Fatalf("%+v, %v", res, err)
		}
		return undone(ctx)
	})
	if stet.KindOf(err) != stet.KindRetryable || !joined(err) || stet.ExecutionOf(err) != stet.MayHaveExecuted {
		t.Errorf("%v (%v)", err, stet.ExecutionOf(err))
	}
}

// An adapter may have the key freed of a run that had no effect, whatever the policy says.
func TestReleaseThatForgetsFreesTheKey(t *testing.T) {
	e, st, _ := later(t, stet.Options{Policy: stet.Policy{Stale: stet.MayRunAgain(), Lease: time.Second}})
	release := func(attempt int, want store.State) {
		t.Helper()
		run, err := e.Begin(t.Context(), op)
		if err != nil || run.Attempt() != attempt {
			t.Fatalf("%+v, %v", run, err)
		}
		if err := run.Release(t.Context(), stet.Again{Forget: true}); err != nil {
			t.Fatal(err)
		}
		if rec, err := st.Read(t.Context(), run.ID()); err != nil || rec.State != want {
			t.Errorf("attempt %d left %v, %v; want %v", attempt, rec.State, err, want)
		}
	}
	release(1, store.None)
	release(1, store.None)
	run, err := e.Begin(t.Context(), op)
	if err != nil || run.Release(t.Context(), stet.Again{}) != nil {
		t.Fatal(err)
	}
	release(2, store.Retryable) // one before it may have been taken over
}

// Repeatable says that the run may be repeated, and not that it had no effect.
func TestRepeatableRunIsRemembered(t *testing.T) {
	for name, again := range map[string]func(error) stet.Again{
		"by its policy": nil, "by Again": func(error) stet.Again { return stet.Again{Forget: true} },
	} {
		e, st, _ := later(t, stet.Options{Policy: stet.Policy{ForgetReleased: again == nil}})
		run, err := e.Begin(t.Context(), op)
		if err != nil {
			t.Fatal(err)
		}
		_, err = run.Do(t.Context(), again, func(context.Context) (stet.Outcome, error) {
			return stet.Outcome{}, stet.Repeatable(errors.New("no answer"))
		})
		if stet.KindOf(err) != stet.KindRetryable || stet.ExecutionOf(err) != stet.MayHaveExecuted {
			t.Errorf("%s: %v", name, err)
		}
		if rec, err := st.Read(t.Context(), e.ID(op.Scope, op.Key)); err != nil || rec.State != store.Retryable || rec.Fingerprint != op.Fingerprint {
			t.Errorf("%s: the record is %v, %v", name, rec.State, err)
		}
	}
}
