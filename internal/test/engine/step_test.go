package engine_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/storetest"
)

// counted is a step that says how often it ran.
func counted(runs *int, err error) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		*runs++
		return fmt.Sprint("run ", *runs), err
	}
}

// again releases the run and takes the operation again.
func again(t *testing.T, e *stet.Engine, run *stet.Lease, it stet.Item) *stet.Lease {
	t.Helper()
	if err := run.Release(t.Context(), stet.Again{}); err != nil {
		t.Fatalf("return: %v", err)
	}
	return take(t, e, it)
}

// steps are what both have to be tested with.
var steps = []func(context.Context, string, func(context.Context) (string, error)) (string, error){stet.Step[string], stet.StepOnce[string]}

func TestStepsThatAreDoneAreNotRunAgain(t *testing.T) {
	for _, step := range steps {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
		it := accept(t, e, op, parcel)
		run, runs := take(t, e, it), 0
		for attempt := range 4 {
			v, err := step(run.Context(), "reserve", counted(&runs, nil))
			if err != nil || v != "run 1" || runs != 1 || run.Declared() == stet.MayHaveExecuted {
				t.Fatalf("attempt %d: %q, %v, %d runs", attempt+1, v, err, runs)
			}
			other := 0
			if v, err := step(run.Context(), fmt.Sprint("step ", attempt), counted(&other, nil)); err != nil || v != "run 1" {
				t.Fatalf("another step: %q, %v", v, err)
			}
			run = again(t, e, run, it)
		}
	}
}

// A run of Begin has steps as well: what a released run has done counts.
func TestStepsOfAReleasedRunCount(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	runs := 0
	do := func() error {
		_, err := stet.Do(t.Context(), e, op, func(ctx context.Context) (string, error) {
			v, err := stet.Step(ctx, "reserve", counted(&runs, nil))
			return v, errors.Join(err, stet.Retryable(errors.New("busy")))
		})
		return err
	}
	for range 3 {
		if err := do(); stet.KindOf(err) != stet.KindRetryable || runs != 1 {
			t.Fatalf("%v, %d runs", err, runs)
		}
	}
}

func TestIdempotentStepRunsAgainAfterAnError(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	it := accept(t, e, op, parcel)
	run, runs, mine := take(t, e, it), 0, errors.New("no answer")
	if _, err := stet.Step(run.Context(), "reserve", counted(&runs, mine)); err != mine || run.Declared() == stet.MayHaveExecuted {
		t.Fatalf("%v, unknown: %v", err, run.Declared() == stet.MayHaveExecuted)
	}
	run = again(t, e, run, it)
	if v, err := stet.Step(run.Context(), "reserve", counted(&runs, nil)); err != nil || v != "run 2" {
		t.Fatalf("%q, %v", v, err)
	}
}

func TestOpenStep_IsNotRepeated(t *testing.T) {
	for name, fail := range map[string]func() error{
		"an error":                      func() error { return errors.New("no answer") },
		"an error of another operation": func() error { return &stet.Error{Kind: stet.KindRetryable, Execution: stet.NotExecuted} },
		"a panic":                       func() error { panic("no answer") },
	} {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
		it := accept(t, e, op, parcel)
		run, runs := take(t, e, it), 0
		charge := func(context.Context) (string, error) {
			runs++
			return "", fail()
		}
		func() {
			defer func() { _ = recover() }()
			_, err := stet.StepOnce(run.Context(), "charge", charge)
			if stet.KindOf(err) != stet.KindUnknown || stet.ExecutionOf(err) != stet.MayHaveExecuted || run.Declared() != stet.MayHaveExecuted {
				t.Errorf("%s: %v, unknown: %v", name, err, run.Declared() == stet.MayHaveExecuted)
			}
		}()
		if _, err := stet.StepOnce(run.Context(), "charge", charge); stet.KindOf(err) != stet.KindUnknown || runs != 1 {
			t.Errorf("after %s, the same step: %v, %d runs", name, err, runs)
		}
		// Also if the caller states, wrongly, that nothing happened.
		if err := run.Release(t.Context(), stet.Again{}); stet.KindOf(err) != stet.KindUnknown {
			t.Errorf("after %s, a return: %v", name, err)
		}
		if st := status(t, e, it.ID, store.Unknown); st.OpenStep != "charge" {
			t.Errorf("the status has the open step %q", st.OpenStep)
		}
	}
}

func TestStepThatDidNothingIsRemoved(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	it := accept(t, e, op, parcel)
	run, runs := take(t, e, it), 0
	for range 3 {
		_, err := stet.StepOnce(run.Context(), "charge", counted(&runs, stet.Retryable(errors.New("the processor is down"))))
		if err == nil || stet.KindOf(err) != 0 || run.Declared() == stet.MayHaveExecuted {
			t.Fatalf("%v, unknown: %v", err, run.Declared() == stet.MayHaveExecuted)
		}
		run = again(t, e, run, it)
	}
	if v, err := stet.StepOnce(run.Context(), "charge", counted(&runs, nil)); err != nil || v != "run 4" {
		t.Fatalf("%q, %v", v, err)
	}
}

// What a process that was killed in the middle of a step leaves behind.
func TestCrashInAStepLeavesItOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		o := stet.Options{SweepEvery: -1, Policy: stet.Policy{Stale: stet.MayRunAgain()}}
		e := newEngine(t, st, o)
		it := accept(t, e, op, parcel)
		dying, err := stet.New(st, o)
		if err != nil {
			t.Fatal(err)
		}
		run := take(t, dying, it)
		reserved, charged := 0, 0
		if _, err := stet.Step(run.Context(), "reserve", counted(&reserved, nil)); err != nil {
			t.Fatal(err)
		}
		_, err = stet.StepOnce(run.Context(), "charge", func(context.Context) (string, error) {
			charged++
			_ = dying.Close() // ends the renewals
			time.Sleep(time.Minute)
			if _, err := e.Take(t.Context(), it); stet.KindOf(err) != stet.KindUnknown {
				t.Errorf("a take, whose policy would run it again: %v", err)
			}
			return "late", nil
		})
		if stet.KindOf(err) != stet.KindFenced || charged != 1 || reserved != 1 {
			t.Errorf("the dead one, come back: %v; charged %d times, reserved %d times", err, charged, reserved)
		}
		if st := status(t, e, it.ID, store.Unknown); st.OpenStep != "charge" {
			t.Errorf("the status has the open step %q", st.OpenStep)
		}
	})
}

func TestStaleRunCannotBeginAStep(t *testing.T) {
	store := memory.New(memory.Options{})
	e, other := newEngine(t, store, stet.Options{}), newEngine(t, store, stet.Options{})
	it := accept(t, e, op, parcel)
	stale := take(t, e, it)
	if err := store.Return(t.Context(), claimOf(t, store, stale), 0); err != nil { // by an operator, who believed it dead
		t.Fatal(err)
	}
	take(t, other, it)
	runs := 0
	if _, err := stet.StepOnce(stale.Context(), "charge", counted(&runs, nil)); stet.KindOf(err) != stet.KindFenced || runs != 0 {
		t.Errorf("a step that must run once: %v, %d runs", err, runs)
	}
	if _, err := stet.Step(stale.Context(), "reserve", counted(&runs, nil)); stet.KindOf(err) != stet.KindFenced {
		t.Errorf("a step that may run again, and whose result cannot be kept: %v", err)
	}
	if err := stale.Progress(t.Context(), 0.5, "half way"); stet.KindOf(err) != stet.KindFenced {
		t.Errorf("progress: %v", err)
	}
}

// delaying is a store whose first Save returns an error, and is carried out when the gate
// opens.
type delaying struct {
	*memory.Store
	saves   *atomic.Int32
	delayed *func() error
}

func (s delaying) Save(ctx context.Context, c store.Claim, notes store.Notes, repeatable bool) error {
	if s.saves.Add(1) == 1 {
		*s.delayed = func() error { return s.Store.Save(context.Background(), c, notes, false) }
		return errors.New("no answer")
	}
	return s.Store.Save(ctx, c, notes, repeatable)
}

func TestDelayedSaveDoesNotUndoALaterOne(t *testing.T) {
	var late func() error
	store := delaying{memory.New(memory.Options{}), new(atomic.Int32), &late}
	e := newEngine(t, store, stet.Options{})
	it := accept(t, e, op, parcel)
	run, runs := take(t, e, it), 0
	if _, err := stet.StepOnce(run.Context(), "charge", counted(&runs, nil)); err != nil {
		t.Fatal(err)
	}
	if err := late(); stet.KindOf(err) != stet.KindFenced {
		t.Errorf("the delayed write: %v", err)
	}
	run = again(t, e, run, it)
	if v, err := stet.StepOnce(run.Context(), "charge", counted(&runs, nil)); err != nil || v != "run 1" || runs != 1 {
		t.Errorf("%q, %v, %d runs", v, err, runs)
	}
}

func TestStepThatCannotBeStoredIsNotBegun(t *testing.T) {
	o := stet.Options{StoreTimeout: 50 * time.Millisecond}
	for _, fault := range []storetest.Fault{storetest.FailBefore, storetest.FailAfter} {
		store := memory.New(memory.Options{})
		e := newEngine(t, storetest.Faulty(store, func(c storetest.Call) storetest.Fault {
			if c.Method == "Save" {
				return fault
			}
			return storetest.NoFault
		}), o)
		run, runs := take(t, e, accept(t, e, op, parcel)), 0
		if _, err := stet.StepOnce(run.Context(), "charge", counted(&runs, nil)); stet.KindOf(err) != stet.KindStore || runs != 0 || run.Declared() == stet.MayHaveExecuted {
			t.Errorf("%v, %d runs, unknown: %v", err, runs, run.Declared() == stet.MayHaveExecuted)
		}
		if _, err := stet.Step(run.Context(), "reserve", counted(&runs, nil)); stet.KindOf(err) != stet.KindStore || runs != 1 || run.Declared() == stet.MayHaveExecuted {
			t.Errorf("%v, %d runs, unknown: %v", err, runs, run.Declared() == stet.MayHaveExecuted)
		}
	}
}

func TestStepResultThatCannotBeStored_LeavesTheStepOpen(t *testing.T) {
	st := memory.New(memory.Options{})
	var saves atomic.Int32
	broken := newEngine(t, storetest.Faulty(st, func(c storetest.Call) storetest.Fault {
		if c.Method == "Save" && saves.Add(1) > 1 {
			return storetest.FailBefore
		}
		return storetest.NoFault
	}), stet.Options{})
	run, runs := take(t, broken, accept(t, broken, op, parcel)), 0
	if _, err := stet.StepOnce(run.Context(), "charge", counted(&runs, nil)); stet.KindOf(err) != stet.KindStore || run.Declared() != stet.MayHaveExecuted {
		t.Errorf("a store that fails: %v, unknown: %v", err, run.Declared() == stet.MayHaveExecuted)
	}

	e := newEngine(t, st, stet.Options{})
	for name, result := range map[string]any{"too large": strings.Repeat("x", store.MaxNotes), "not JSON": math.Inf(1)} {
		other := op
		other.Key = name
		run := take(t, e, accept(t, e, other, parcel))
		_, err := stet.StepOnce(run.Context(), "charge", func(context.Context) (any, error) { return result, nil })
		if err == nil || run.Declared() != stet.MayHaveExecuted {
			t.Errorf("a result that is %s: %v, unknown: %v", name, err, run.Declared() == stet.MayHaveExecuted)
		}
	}
}

func TestOneStepIsNotRunTwiceAtATime(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	run := take(t, e, accept(t, e, op, parcel))
	for i := range 300 {
		var runs atomic.Int32
		var wg sync.WaitGroup
		start := make(chan struct{})
		for range 4 {
			wg.Go(func() {
				<-start
				_, _ = stet.StepOnce(run.Context(), fmt.Sprint("charge ", i), func(context.Context) (int, error) { return int(runs.Add(1)), nil })
			})
		}
		close(start)
		wg.Wait()
		if runs.Load() != 1 {
			t.Fatalf("%d runs", runs.Load())
		}
	}
}

func TestStepsBesideEachOtherAreAllKept(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	it := accept(t, e, op, parcel)
	run := take(t, e, it)
	var runs atomic.Int32
	all := func() {
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				v, err := stet.StepOnce(run.Context(), fmt.Sprint("item ", i), func(context.Context) (int, error) {
					runs.Add(1)
					return i, nil
				})
				if err != nil || v != i {
					t.Errorf("item %d: %d, %v", i, v, err)
				}
			})
		}
		wg.Wait()
	}
	all()
	run = again(t, e, run, it)
	all()
	if runs.Load() != 20 {
		t.Errorf("%d runs", runs.Load())
	}
}

func TestBadStepsAreRefused(t *testing.T) {
	st, e := bank(t)
	run := take(t, e, accept(t, e, op, parcel))
	never := func(context.Context) (int, error) { t.Error("it ran"); return 0, nil }
	for name, ctx := range map[string]context.Context{"": run.Context(), "no run": t.Context(), strings.Repeat("n", store.MaxName+1): run.Context(), "\xff": run.Context()} {
		if _, err := stet.StepOnce(ctx, name, never); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%q: %v", name, err)
		}
	}
	other := op
	other.Key = "in a transaction"
	if _, err := stet.DoTx(t.Context(), txOf(e, st), other, func(ctx context.Context, _ *sql.Tx) (int, error) {
		return stet.StepOnce(ctx, "charge", never)
	}); stet.KindOf(errors.Unwrap(err)) != stet.KindInvalid {
		t.Errorf("a step of a transaction: %v", err)
	}
}

func TestProgressIsWrittenOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var saves atomic.Int32
		e := newEngine(t, storetest.Faulty(memory.New(memory.Options{}), func(c storetest.Call) storetest.Fault {
			if c.Method == "Save" {
				saves.Add(1)
			}
			return storetest.NoFault
		}), stet.Options{SweepEvery: -1})
		it := accept(t, e, op, parcel)
		run := take(t, e, it)
		for i := range 1000 {
			if err := run.Progress(t.Context(), float64(i)/1000, fmt.Sprint("item ", i)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := saves.Load(); n < 9 || n > 11 {
			t.Errorf("in 10 s it was written %d times", n)
		}
		if p := status(t, e, it.ID, store.Running).Progress; p.Fraction != 0.9 || p.Message != "item 900" || time.Since(p.At) != time.Second {
			t.Errorf("%+v", p)
		}
		runs := 0
		if _, err := stet.Step(run.Context(), "reserve", counted(&runs, nil)); err != nil {
			t.Fatal(err)
		}
		if p := status(t, e, it.ID, store.Running).Progress; p.Message != "item 999" {
			t.Errorf("the last progress was not written with the step: %+v", p)
		}
		for fraction, want := range map[float64]float64{-1: 0, 2: 1, math.Inf(1): 1, math.NaN(): 0} {
			time.Sleep(time.Second)
			if err := run.Progress(t.Context(), fraction, "odd"); err != nil {
				t.Errorf("a fraction of %v: %v", fraction, err)
			}
			if p := status(t, e, it.ID, store.Running).Progress; p.Fraction != want {
				t.Errorf("a fraction of %v was written as %v", fraction, p.Fraction)
			}
		}
		run = again(t, e, run, it)
		if p := status(t, e, it.ID, store.Running).Progress; p.Message != "odd" {
			t.Errorf("the next attempt begins with %+v", p)
		}
		complete(t, run, "x")
	})
}

func TestNotesAreBounded(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	it := accept(t, e, op, parcel)
	run := take(t, e, it)
	part := func(n int) (string, error) {
		return stet.Step(run.Context(), fmt.Sprint("part ", n), func(context.Context) (string, error) {
			return strings.Repeat("x", store.MaxNotes/4), nil
		})
	}
	for n := range 3 {
		if _, err := part(n); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := part(3); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("more than fits: %v", err)
	}
	if err := run.Progress(t.Context(), 0.75, "almost"); err != nil {
		t.Errorf("what fits still: %v", err)
	}
}

func TestNotesCannotBeReadOrSwapped(t *testing.T) {
	st := memory.New(memory.Options{})
	e := newEngine(t, st, encrypted(secret("k", 1)))
	other := op
	other.Key = "another"
	var claims []store.Claim
	var items []stet.Item
	for _, o := range []stet.Op{op, other} {
		it := accept(t, e, o, parcel)
		run := take(t, e, it)
		if _, err := stet.StepOnce(run.Context(), "charge", func(context.Context) (string, error) { return "card 4242 of " + o.Key, nil }); err != nil {
			t.Fatal(err)
		}
		if err := run.Release(t.Context(), stet.Again{}); err != nil {
			t.Fatal(err)
		}
		claims, items = append(claims, claimOf(t, st, run)), append(items, it)
	}
	rec, err := st.Look(t.Context(), claims[0].ID)
	if err != nil || bytes.Contains(rec.Notes.Data, []byte("4242")) || bytes.Contains(rec.Work, []byte("order 7")) || bytes.Contains(rec.Work, []byte("acct_1")) {
		t.Fatalf("the store has the notes %q and the work %q, %v", rec.Notes.Data, rec.Work, err)
	}
	// The notes of one operation are copied over those of the other.
	owner := store.NewOwner()
	theirs, err := st.Take(t.Context(), store.TakeRequest{ID: claims[1].ID, Owner: owner, Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	forged := store.Notes{Version: rec.Notes.Version << 1, Data: rec.Notes.Data}
	if err := errors.Join(st.Save(t.Context(), theirs.Claim(), forged, false), st.Return(t.Context(), theirs.Claim(), 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Take(t.Context(), items[1]); stet.KindOf(err) != stet.KindDamaged {
		t.Errorf("with the notes of another operation: %v", err)
	}
	if st, err := e.Status(t.Context(), op.Scope, items[1].ID); stet.KindOf(err) != stet.KindDamaged || st.Record.State != store.Accepted {
		t.Errorf("its status: %+v, %v", st.Record, err)
	}
}

// Progress that another process reports must not replace notes of the run, or an open step
// would be lost.
func TestReportedProgressTakesNothingFromTheRun(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
	it := accept(t, e, op, parcel)
	run := take(t, e, it)
	if _, err := e.Progress(t.Context(), run.Claim, false, 0.5, "reported"); err != nil {
		t.Fatal(err)
	}
	_, err := stet.StepOnce(run.Context(), "charge", func(context.Context) (int, error) {
		if st := status(t, e, it.ID, store.Running); st.OpenStep != "charge" {
			t.Errorf("during the step the record has the open step %q", st.OpenStep)
		}
		if _, err := e.Progress(t.Context(), run.Claim, true, 0.7, "reported"); err != nil {
			t.Error(err)
		}
		if st := status(t, e, it.ID, store.Running); st.OpenStep != "charge" {
			t.Errorf("after a report the record says %q of it", st.OpenStep)
		}
		return 1, nil
	})
	if st := status(t, e, it.ID, store.Running); err != nil || st.OpenStep != "" {
		t.Errorf("after the step: %q is open, %v", st.OpenStep, err)
	}
	complete(t, run, "x")
}
