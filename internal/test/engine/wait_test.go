package engine_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// blind hides what a store can do beyond store.Store, as a plain one has no
// Watch and must be polled.
type blind struct{ store.Store }

func TestDuplicateConflictsByDefault(t *testing.T) {
	store := memory.New(memory.Options{})
	e := newEngine(t, store, stet.Options{})
	begin(t, e, op)
	for name, e := range map[string]*stet.Engine{"here": e, "elsewhere": newEngine(t, store, stet.Options{})} {
		var se *stet.Error
		_, err := e.Begin(t.Context(), op)
		if !errors.As(err, &se) || se.Kind != stet.KindInFlight || se.RetryAfter != time.Second {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestClassThatDoesNotWaitIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{Wait: time.Minute},
			Classes: map[string]stet.Policy{"quick": {Wait: stet.NoWait}}})
		op := op
		op.Class = "quick"
		begin(t, e, op)
		began := time.Now()
		if _, err := e.Begin(t.Context(), op); stet.KindOf(err) != stet.KindInFlight || time.Since(began) > time.Millisecond {
			t.Errorf("after %v: %v, want KindInFlight at once", time.Since(began), err)
		}
	})
}

func TestWaiterGetsTheOutcome(t *testing.T) {
	for name, setup := range map[string]func(t *testing.T) (runner, waiter *stet.Engine){
		"same process": func(t *testing.T) (runner, waiter *stet.Engine) {
			e := newEngine(t, memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{Wait: time.Minute}})
			return e, e
		},
		"other process, watched": func(t *testing.T) (runner, waiter *stet.Engine) {
			store := memory.New(memory.Options{})
			return newEngine(t, store, stet.Options{}), newEngine(t, store, stet.Options{Policy: stet.Policy{Wait: time.Minute}})
		},
		"other process, polled": func(t *testing.T) (runner, waiter *stet.Engine) {
			store := memory.New(memory.Options{})
			return newEngine(t, store, stet.Options{}), newEngine(t, blind{store}, stet.Options{Policy: stet.Policy{Wait: time.Minute}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runner, waiter := setup(t)
				run := begin(t, runner, op)
				var wg sync.WaitGroup
				for range 100 {
					wg.Go(func() {
						dup, err := waiter.Begin(t.Context(), op)
						if err != nil || !dup.Replayed() || string(dup.Outcome().Body) != "done" {
							t.Errorf("waiter: %v", err)
						}
					})
				}
				time.Sleep(40 * time.Second)
				settled := time.Now()
				if err := run.Settle(t.Context(), stet.Outcome{Body: []byte("done")}); err != nil {
					t.Fatal(err)
				}
				wg.Wait()
				if late := time.Since(settled); late > time.Second {
					t.Errorf("the waiters returned %v late", late)
				}
			})
		})
	}
}

func TestWaitersInOneProcessAskTheStoreOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSpy()
		e := newEngine(t, store, stet.Options{Policy: stet.Policy{Wait: time.Minute}})
		run := begin(t, e, op)
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() { _, _ = e.Begin(t.Context(), op) })
		}
		synctest.Wait()
		if err := run.Settle(t.Context(), stet.Outcome{}); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if n := store.claims.Load(); n != 1 {
			t.Fatalf("%d claims", n)
		}
	})
}

func TestWaitIsBoundedAndChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		runner := newEngine(t, st, stet.Options{})
		run := begin(t, runner, op)
		before, _ := st.Read(t.Context(), run.ID())
		for name, e := range map[string]*stet.Engine{
			"here":    runner,
			"watched": newEngine(t, st, stet.Options{}),
			"polled":  newEngine(t, blind{st}, stet.Options{}),
		} {
			patient := op
			patient.Wait = 5 * time.Second
			started := time.Now()
			_, err := e.Begin(t.Context(), patient)
			if stet.KindOf(err) != stet.KindInFlight || time.Since(started) != 5*time.Second {
				t.Errorf("%s: %v after %v", name, err, time.Since(started))
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := e.Begin(ctx, patient); stet.KindOf(err) != stet.KindInFlight || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s, caller gone: %v", name, err)
			}
			cancel()
		}
		after, _ := st.Read(t.Context(), run.ID())
		if before.Owner != after.Owner || before.Fence != after.Fence || after.State != store.Running {
			t.Errorf("waiting changed %+v to %+v", before, after)
		}
	})
}

func TestWaiterOfAReleasedRunRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{Wait: time.Minute}})
		run := begin(t, e, op)
		var runs atomic.Int64
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				res, err := stet.Do(t.Context(), e, op, func(context.Context) (int, error) {
					runs.Add(1)
					time.Sleep(time.Second)
					return 7, nil
				})
				if err != nil || res.Value != 7 {
					t.Errorf("%+v, %v", res, err)
				}
			})
		}
		synctest.Wait()
		if err := run.Release(t.Context(), stet.Again{}); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if runs.Load() != 1 {
			t.Fatalf("ran %d times", runs.Load())
		}
	})
}

func TestWaitersAreBoundedInNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{MaxWaiters: 3, Policy: stet.Policy{Wait: time.Minute}})
		run := begin(t, e, op)
		var refused atomic.Int64
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if _, err := e.Begin(t.Context(), op); stet.KindOf(err) == stet.KindInFlight {
					refused.Add(1)
				}
			})
		}
		synctest.Wait()
		if n := refused.Load(); n != 7 {
			t.Errorf("%d of 10 refused at once", n)
		}
		if err := run.Settle(t.Context(), stet.Outcome{}); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	})
}

func TestWaiterOfAnExpiredRunGetsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		_, err := st.Claim(t.Context(), store.ClaimRequest{ID: store.Digest("", op.Scope, op.Key), Owner: store.NewOwner(), Lease: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		for name, s := range map[string]store.Store{"watched": st, "polled": blind{st}} {
			e := newEngine(t, s, stet.Options{Policy: stet.Policy{Wait: time.Minute}})
			if _, err := e.Begin(t.Context(), op); stet.KindOf(err) != stet.KindUnknown {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestHotReplaysAreSharedInOneProcess(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	run := begin(t, e, op)
	if err := run.Settle(t.Context(), stet.Outcome{Body: []byte("r")}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			// A replay never meets another replay as a conflict.
			if run, err := e.Begin(t.Context(), op); err != nil || string(run.Outcome().Body) != "r" {
				t.Errorf("%v", err)
			}
		})
	}
	wg.Wait()
}
