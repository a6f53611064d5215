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

// die leaves a claim of op behind, as a process that was killed does, and waits
// until its lease has run out.
func die(t *testing.T, st store.Store, op stet.Op) store.Record {
	t.Helper()
	rec, err := st.Claim(t.Context(), store.ClaimRequest{
		ID: store.Digest("", op.Scope, op.Key), Fingerprint: op.Fingerprint, Owner: store.NewOwner(), Lease: time.Second,
	})
	if err != nil || rec.State != store.Running {
		t.Fatalf("%+v, %v", rec, err)
	}
	time.Sleep(2 * time.Second) // in a bubble
	return rec
}

func charge(runs *int) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		*runs++
		return "charged", nil
	}
}

func TestExpiredRunIsUnknownAndNeverRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Options{})
		e := newEngine(t, store, stet.Options{})
		die(t, store, op)
		runs := 0
		for range 3 {
			_, err := stet.Do(t.Context(), e, op, charge(&runs))
			if stet.KindOf(err) != stet.KindUnknown || stet.ExecutionOf(err) != stet.MayHaveExecuted {
				t.Fatalf("error %v", err)
			}
			time.Sleep(48 * time.Hour)
		}
		if runs != 0 {
			t.Fatalf("ran %d times", runs)
		}
	})
}

func TestExpiredRunIsTakenOver_PolicyRerun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		e := newEngine(t, st, stet.Options{Policy: stet.Policy{Stale: stet.MayRunAgain()}})
		dead := die(t, st, op)
		runs := 0
		res, err := stet.Do(t.Context(), e, op, charge(&runs))
		if err != nil || runs != 1 || res.Attempt != 2 || res.Fence <= dead.Fence {
			t.Fatalf("%+v, %v, %d runs", res, err, runs)
		}
		if err := st.Settle(t.Context(), dead.Claim(), store.Settlement{State: store.Completed}, store.Retention{}); stet.KindOf(err) != stet.KindFenced {
			t.Fatalf("the expired run's settle: %v", err)
		}
	})
}

func TestExpiredRunFails_PolicyFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Options{})
		e := newEngine(t, store, stet.Options{Policy: stet.Policy{Stale: stet.ItHappened(stet.Outcome{Failed: true})}})
		die(t, store, op)
		runs := 0
		for range 2 {
			_, err := stet.Do(t.Context(), e, op, charge(&runs))
			if stet.KindOf(err) != stet.KindFailed || stet.ExecutionOf(err) != stet.MayHaveExecuted || runs != 0 {
				t.Fatalf("%v, %d runs", err, runs)
			}
		}
	})
}

// Policy.Stale applies to every expired run, so it cannot say that they succeeded or had no
// effect.
func TestStaleAcceptsOnlyFailuresAndRepetition(t *testing.T) {
	text := stet.Outcome{Failed: true, Status: 503, Body: []byte("ask us")}
	for name, c := range map[string]struct {
		stale stet.Resolution
		ok    bool
	}{
		"none": {ok: true}, "cannot know": {stet.CannotKnow(), true}, "may run again": {stet.MayRunAgain(), true},
		"failed": {stet.ItHappened(stet.Outcome{Failed: true}), true}, "with a body": {stet.ItHappened(text), true},
		"did not happen": {stet.ItDidNotHappen(), false}, "completed": {stet.ItHappened(stet.Outcome{}), false},
		"gone": {stet.ItHappened(stet.Outcome{Failed: true, Gone: true}), true}, "a status that is none": {stet.ItHappened(stet.Outcome{Failed: true, Status: 1000}), false},
		"too large": {stet.ItHappened(stet.Outcome{Failed: true, Body: make([]byte, 1<<20)}), false},
	} {
		for _, o := range []stet.Options{{Policy: stet.Policy{Stale: c.stale}}, {Classes: map[string]stet.Policy{"pay": {Stale: c.stale}}}} {
			e, err := stet.New(memory.New(memory.Options{}), o)
			if err == nil {
				e.Close()
			}
			if (err == nil) != c.ok || stet.KindOf(err) == stet.KindInvalid == c.ok {
				t.Errorf("%s: %v; want it accepted: %v", name, err, c.ok)
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct{ stale, want stet.Outcome }{
			{stet.Outcome{Failed: true}, stet.Outcome{Reason: store.ReasonTimedOut}},
			{text, stet.Outcome{Reason: store.ReasonTimedOut, Status: 503, Body: text.Body}},
			{stet.Outcome{Failed: true, Reason: store.ReasonResolved}, stet.Outcome{Reason: store.ReasonResolved}},
		} {
			st := memory.New(memory.Options{})
			e := newEngine(t, st, stet.Options{Policy: stet.Policy{Stale: stet.ItHappened(c.stale)}})
			die(t, st, op)
			run, err := e.Begin(t.Context(), op)
			if err != nil {
				t.Fatal(err)
			}
			if out := run.Outcome(); !out.Failed || out.Reason != c.want.Reason || out.Status != c.want.Status || string(out.Body) != string(c.want.Body) {
				t.Errorf("settled as %+v; want %+v", out, c.want)
			}
			if _, err := stet.Do(t.Context(), e, op, func(context.Context) (int, error) { return 0, nil }); stet.KindOf(err) != stet.KindFailed || stet.ExecutionOf(err) != stet.MayHaveExecuted {
				t.Errorf("settled as %+v, a caller gets %v, %v; want failed, may have executed", c.stale, err, stet.ExecutionOf(err))
			}
		}
	})
}

func TestVerifierDecidesAboutExpiredRuns(t *testing.T) {
	for _, c := range []struct {
		name       string
		resolution stet.Resolution
		err        error
		runs       int
		value      string
		kind       stet.Kind
	}{
		{name: "it happened", resolution: stet.ItHappened(stet.Outcome{Body: []byte(`"found"`)}), value: "found"},
		{name: "it failed", resolution: stet.ItHappened(stet.Outcome{Failed: true, Body: []byte(`"declined"`)}), kind: stet.KindFailed},
		{name: "it did not happen", resolution: stet.ItDidNotHappen(), runs: 1, value: "charged"},
		{name: "cannot know", resolution: stet.CannotKnow(), kind: stet.KindUnknown},
		{name: "error", resolution: stet.ItDidNotHappen(), err: errors.New("processor unreachable"), kind: stet.KindUnknown},
		{name: "it happened, without a result", resolution: stet.ItHappened(stet.Outcome{})},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memory.New(memory.Options{})
				var asked stet.Status
				e := newEngine(t, store, stet.Options{Policy: stet.Policy{
					Verify: func(_ context.Context, st stet.Status) (stet.Resolution, error) {
						asked = st
						return c.resolution, c.err
					},
				}})
				dead := die(t, store, op)
				runs := 0
				res, err := stet.Do(t.Context(), e, op, charge(&runs))
				if runs != c.runs || res.Value != c.value || stet.KindOf(err) != c.kind || (c.kind == 0) != (err == nil) {
					t.Fatalf("%+v, %v, %d runs", res, err, runs)
				}
				if asked.Op != op || asked.Record.Fence != dead.Fence || asked.Record.Attempt != 1 {
					t.Fatalf("asked about %+v", asked)
				}
			})
		})
	}
}

func TestVerifierThatPanicsLeavesTheKeyUsable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Options{})
		sick := true
		e := newEngine(t, store, stet.Options{Policy: stet.Policy{
			Verify: func(context.Context, stet.Status) (stet.Resolution, error) {
				if sick {
					panic("sick")
				}
				return stet.ItDidNotHappen(), nil
			},
		}})
		die(t, store, op)
		runs := 0
		func() {
			defer func() { _ = recover() }()
			_, _ = stet.Do(t.Context(), e, op, charge(&runs))
		}()
		sick = false
		if res, err := stet.Do(t.Context(), e, op, charge(&runs)); err != nil || res.Value != "charged" {
			t.Fatalf("%+v, %v", res, err)
		}
	})
}

func TestMismatchIsReportedFirst(t *testing.T) {
	other := op
	other.Fingerprint = stet.NewFingerprint([]byte("another request"))
	check := func(t *testing.T, e *stet.Engine) {
		t.Helper()
		runs := 0
		_, err := stet.Do(t.Context(), e, other, charge(&runs))
		if stet.KindOf(err) != stet.KindMismatch || stet.ExecutionOf(err) != stet.NotExecuted || runs != 0 {
			t.Errorf("%v, %d runs", err, runs)
		}
	}
	t.Run("running here", func(t *testing.T) {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
		run, err := e.Begin(t.Context(), op)
		if err != nil {
			t.Fatal(err)
		}
		check(t, e)
		if err := run.Release(t.Context(), stet.Again{}); err != nil {
			t.Fatal(err)
		}
		check(t, e) // retryable
	})
	t.Run("running elsewhere", func(t *testing.T) {
		store := memory.New(memory.Options{})
		if _, err := newEngine(t, store, stet.Options{}).Begin(t.Context(), op); err != nil {
			t.Fatal(err)
		}
		check(t, newEngine(t, store, stet.Options{Policy: stet.Policy{Wait: time.Hour / 60}}))
	})
	t.Run("dead", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(memory.Options{})
			e := newEngine(t, st, stet.Options{Policy: stet.Policy{Stale: stet.MayRunAgain()}})
			dead := die(t, st, op)
			check(t, e)
			if rec, _ := st.Read(t.Context(), dead.ID); rec.State != store.Running {
				t.Errorf("a mismatch changed the record to %v", rec.State)
			}
		})
	})
	t.Run("settled, and gone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
			runs := 0
			if _, err := stet.Do(t.Context(), e, op, charge(&runs)); err != nil {
				t.Fatal(err)
			}
			check(t, e)
			time.Sleep(25 * time.Hour)
			check(t, e)
		})
	})
}

func TestResultExpiresThenTheTombstoneThenTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
		runs := 0
		do := func() (stet.Result[string], error) { return stet.Do(t.Context(), e, op, charge(&runs)) }
		first, _ := do()
		time.Sleep(23 * time.Hour)
		if res, err := do(); err != nil || !res.Replayed {
			t.Fatalf("after 23 h: %+v, %v", res, err)
		}
		time.Sleep(2 * time.Hour)
		if _, err := do(); stet.KindOf(err) != stet.KindExpired || stet.ExecutionOf(err) != stet.Executed {
			t.Fatalf("after 25 h: %v", err)
		}
		time.Sleep(29 * 24 * time.Hour)
		res, err := do()
		if err != nil || runs != 2 || res.Fence <= first.Fence {
			t.Fatalf("after 30 d: %+v, %v, %d runs", res, err, runs)
		}
	})
}

func TestClassesHaveTheirOwnRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{Classes: map[string]stet.Policy{
			"otp": {Retention: store.Retention{Result: 5 * time.Minute, Tombstone: time.Hour}},
		}})
		code := op
		code.Class = "otp"
		runs := 0
		_, _ = stet.Do(t.Context(), e, code, charge(&runs))
		time.Sleep(6 * time.Minute)
		if _, err := stet.Do(t.Context(), e, code, charge(&runs)); stet.KindOf(err) != stet.KindExpired {
			t.Fatal(err)
		}
	})
}
