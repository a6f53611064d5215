package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/storetest"
)

// diesCharging has an accepted operation die in the step "charge", after it has done
// the step "reserve", and returns it.
func diesCharging(t *testing.T, store *memory.Store) stet.Item {
	t.Helper()
	e := newEngine(t, store, stet.Options{SweepEvery: -1})
	it := accept(t, e, op, parcel)
	openStep(t, take(t, e, it))
	return it
}

// openStep does what diesCharging says in a run, and marks it unknown.
func openStep(t *testing.T, run *stet.Lease) {
	t.Helper()
	if _, err := stet.Step(run.Context(), "reserve", func(context.Context) (string, error) { return "reserved", nil }); err != nil {
		t.Fatal(err)
	}
	_, err := stet.StepOnce(run.Context(), "charge", func(context.Context) (string, error) { return "", errors.New("no answer") })
	if stet.KindOf(err) != stet.KindUnknown {
		t.Fatal(err)
	}
	if err := run.MarkUnknown(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// finishes requires that a run need not reserve again, and can charge.
func finishes(t *testing.T, run *stet.Lease) {
	t.Helper()
	reserved, charged := 0, 0
	if v, err := stet.StepOnce(run.Context(), "reserve", counted(&reserved, nil)); err != nil || v != "reserved" || reserved != 0 {
		t.Errorf("the step that was done: %q, %v, %d runs", v, err, reserved)
	}
	if _, err := stet.StepOnce(run.Context(), "charge", counted(&charged, nil)); err != nil || charged != 1 {
		t.Errorf("the step that did not happen: %v, %d runs", err, charged)
	}
	if run.Declared() == stet.MayHaveExecuted {
		t.Error("the run has an open step")
	}
	if err := run.Settle(t.Context(), stet.Outcome{}); err != nil {
		t.Error(err)
	}
}

func TestOpenStep_RunsAgainAfterItDidNotHappen(t *testing.T) {
	st := memory.New(memory.Options{})
	it := diesCharging(t, st)
	e := newEngine(t, st, stet.Options{})
	shown := browse(t, st, store.Unknown)
	var wg sync.WaitGroup
	for range 8 { // the same resolution again, and by several at a time
		wg.Go(func() {
			if err := e.Resolve(t.Context(), shown, "", stet.ItDidNotHappen()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if st := status(t, e, it.ID, store.Accepted); st.OpenStep != "" {
		t.Errorf("a step is still open: %q", st.OpenStep)
	}
	finishes(t, take(t, e, it))
}

func TestOpenStep_RunsAgainAfterTheVerifierResolvesIt(t *testing.T) {
	never := func(context.Context, stet.Status) (stet.Resolution, error) { return stet.ItDidNotHappen(), nil }
	for _, stale := range []stet.Resolution{stet.CannotKnow(), stet.MayRunAgain()} {
		store := memory.New(memory.Options{})
		it := diesCharging(t, store)
		e := newEngine(t, store, stet.Options{Policy: stet.Policy{Verify: never, Stale: stale}})
		finishes(t, take(t, e, it))

		openStep(t, begin(t, e, other))
		finishes(t, begin(t, e, other))
	}
}

// Neither by a worker nor by a retry.
func TestTakeOverDoesNotRepeatAnOpenStep(t *testing.T) {
	may := func(context.Context, stet.Status) (stet.Resolution, error) { return stet.MayRunAgain(), nil }
	for name, p := range map[string]stet.Policy{
		"Policy.Stale": {Stale: stet.MayRunAgain()},
		"Verify":       {Stale: stet.ItHappened(stet.Outcome{Failed: true}), Verify: may},
	} {
		st := memory.New(memory.Options{})
		it := diesCharging(t, st)
		e := newEngine(t, st, stet.Options{Policy: p})
		openStep(t, begin(t, e, other))
		for range 3 {
			if _, err := e.Take(t.Context(), it); stet.KindOf(err) != stet.KindUnknown {
				t.Errorf("%s: a take: %v", name, err)
			}
			if _, err := e.Begin(t.Context(), other); stet.KindOf(err) != stet.KindUnknown {
				t.Errorf("%s: a retry: %v", name, err)
			}
		}
		if st := status(t, e, it.ID, store.Unknown); st.OpenStep != "charge" || st.Record.Attempt != 1 {
			t.Errorf("%s: attempt %d, open step %q", name, st.Record.Attempt, st.OpenStep)
		}
		if err := e.Resolve(t.Context(), status(t, e, it.ID, store.Unknown).Record, "", stet.MayRunAgain()); stet.KindOf(err) != stet.KindUnknown {
			t.Errorf("%s: Resolve with MayRunAgain: %v", name, err)
		}
		status(t, e, it.ID, store.Unknown)
	}
}

func TestAbandonedRun_WithoutOpenStepRunsAgain(t *testing.T) {
	st := memory.New(memory.Options{})
	e := newEngine(t, st, stet.Options{})
	it := accept(t, e, op, parcel)
	if err := take(t, e, it).MarkUnknown(t.Context()); err != nil {
		t.Fatal(err)
	}
	shown := browse(t, st, store.Unknown)
	for range 2 {
		if err := e.Resolve(t.Context(), shown, "", stet.MayRunAgain()); err != nil {
			t.Fatal(err)
		}
	}
	take(t, e, it)
}

// Writes of a paused run are refused after a resolution, and do not end the next attempt.
func TestPausedRunCannotRestoreARemovedStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		e := newEngine(t, st, stet.Options{SweepEvery: -1})
		it := accept(t, e, op, parcel)
		dying, err := stet.New(st, stet.Options{SweepEvery: -1})
		if err != nil {
			t.Fatal(err)
		}
		_, err = stet.StepOnce(take(t, dying, it).Context(), "charge", func(context.Context) (string, error) {
			_ = dying.Close() // ends the renewals
			time.Sleep(time.Minute)
			if err := e.Resolve(t.Context(), browse(t, st, store.Running), "", stet.ItDidNotHappen()); err != nil {
				t.Error(err)
			}
			charged := 0
			if _, err := stet.StepOnce(take(t, e, it).Context(), "charge", counted(&charged, nil)); err != nil || charged != 1 {
				t.Errorf("%v, %d runs", err, charged)
			}
			return "late", nil
		})
		if stet.KindOf(err) != stet.KindFenced {
			t.Errorf("the dead one, come back: %v", err)
		}
	})
}

// If the removal of the open step fails, the record is not released.
func TestReleaseFollowsTheRemovalOfTheOpenStep(t *testing.T) {
	st := memory.New(memory.Options{})
	it := diesCharging(t, st)
	e := newEngine(t, storetest.Faulty(st, func(c storetest.Call) storetest.Fault {
		if c.Method == "Amend" {
			return storetest.FailBefore
		}
		return storetest.NoFault
	}), stet.Options{StoreTimeout: 50 * time.Millisecond})
	if err := e.Resolve(t.Context(), browse(t, st, store.Unknown), "", stet.ItDidNotHappen()); stet.KindOf(err) != stet.KindStore {
		t.Errorf("Resolve: %v", err)
	}
	if st := status(t, e, it.ID, store.Unknown); st.OpenStep != "charge" {
		t.Errorf("the open step is %q", st.OpenStep)
	}
}

func TestNotesThatCannotBeReadAreNotReleased(t *testing.T) {
	st := memory.New(memory.Options{})
	e := newEngine(t, st, stet.Options{SweepEvery: -1})
	it := accept(t, e, op, parcel)
	run := take(t, e, it)
	if err := st.Save(t.Context(), claimOf(t, st, run), store.Notes{Version: 1, Data: []byte("{")}, false); err != nil {
		t.Fatal(err)
	}
	if err := run.MarkUnknown(t.Context()); err != nil {
		t.Fatal(err)
	}
	shown := browse(t, st, store.Unknown)
	for _, v := range []stet.Resolution{stet.ItDidNotHappen(), stet.MayRunAgain()} {
		if err := e.Resolve(t.Context(), shown, "", v); stet.KindOf(err) != stet.KindDamaged {
			t.Errorf("Resolve: %v", err)
		}
	}
	if now := browse(t, st, store.Unknown); now.Fence != shown.Fence {
		t.Error("it has changed")
	}
	if err := e.Resolve(t.Context(), shown, "", stet.ItHappened(stet.Outcome{})); err != nil {
		t.Errorf("Resolve with an outcome: %v", err)
	}
}

func TestRemovedStepLeavesProgress(t *testing.T) {
	st := memory.New(memory.Options{})
	e := newEngine(t, st, stet.Options{SweepEvery: -1})
	it := accept(t, e, op, parcel)
	run := take(t, e, it)
	if err := run.Progress(t.Context(), 0.5, "half way"); err != nil {
		t.Fatal(err)
	}
	openStep(t, run)
	if err := e.Resolve(t.Context(), browse(t, st, store.Unknown), "", stet.ItDidNotHappen()); err != nil {
		t.Fatal(err)
	}
	if st := status(t, e, it.ID, store.Accepted); st.Progress.Message != "half way" {
		got, _ := json.Marshal(st)
		t.Errorf("%s", got)
	}
}

// other is an operation beside op.
var other = stet.Op{Scope: op.Scope, Key: op.Key + " of another"}
