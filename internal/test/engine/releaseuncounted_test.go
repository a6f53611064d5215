package engine_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/storetest"
)

func yield(t *testing.T, run *stet.Lease) {
	t.Helper()
	if err := run.Release(t.Context(), stet.Again{Uncounted: true}); err != nil {
		t.Fatalf("yield: %v", err)
	}
}

// attempts fails the test unless the run is that attempt, of which so many count.
func attempts(t *testing.T, run *stet.Lease, attempt, counted int) {
	t.Helper()
	if run.Attempt() != attempt || run.Counted != counted {
		t.Fatalf("attempt %d, of which %d count; want %d and %d", run.Attempt(), run.Counted, attempt, counted)
	}
}

func TestAttemptThatWasInterruptedDoesNotCount(t *testing.T) {
	for name, o := range map[string]stet.Options{"plain": {}, "encrypted": encrypted(secret("k", 1))} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, memory.New(memory.Options{}), o)
			it := accept(t, e, op, parcel)
			run, fence, runs := take(t, e, it), int64(0), 0
			for n := range 30 {
				attempts(t, run, n+1, 1)
				if run.Fence() <= fence {
					t.Fatalf("fence %d after %d", run.Fence(), fence)
				}
				fence = run.Fence()
				if n%2 == 1 { // also with notes, and after others than its own
					v, err := stet.StepOnce(run.Context(), "reserve", counted(&runs, nil))
					if err != nil || v != "run 1" {
						t.Fatal(v, err)
					}
				}
				yield(t, run)
				run = take(t, e, it)
			}
			run = again(t, e, run, it)
			attempts(t, run, 32, 2)
			complete(t, run, "x")
		})
	}
}

// Its attempts would be used up by the time that the key is back.
func TestOperationThatCannotBeReadUsesUpNoAttempts(t *testing.T) {
	for name, noted := range map[string]bool{"with notes": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memory.New(memory.Options{})
				o, other := encrypted(secret("k", 1)), encrypted(secret("another", 2))
				o.SweepEvery, other.SweepEvery = -1, -1
				e := newEngine(t, store, o)
				it := accept(t, e, op, parcel)
				if runs := 0; noted {
					run := take(t, e, it)
					if _, err := stet.StepOnce(run.Context(), "reserve", counted(&runs, nil)); err != nil {
						t.Fatal(err)
					}
					yield(t, run)
				}
				strange := newEngine(t, store, other)
				for range 30 {
					if _, err := strange.Take(t.Context(), it); stet.KindOf(err) != stet.KindDamaged {
						t.Fatal(err)
					}
					time.Sleep(2 * time.Hour)
				}
				run, runs := take(t, e, it), 1
				if run.Counted != 1 {
					t.Fatalf("%d attempts count", run.Counted)
				}
				if v, err := stet.StepOnce(run.Context(), "reserve", counted(&runs, nil)); err != nil || noted != (v == "run 1") {
					t.Fatal(v, err)
				}
				complete(t, run, "x")
			})
		})
	}
}

func TestTakeWithoutAReplyUsesUpNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mute atomic.Bool
		store := storetest.Faulty(memory.New(memory.Options{}), func(c storetest.Call) storetest.Fault {
			if mute.Load() && c.Method == "Take" {
				return storetest.FailAfter
			}
			return storetest.NoFault
		})
		e := newEngine(t, store, stet.Options{SweepEvery: -1})
		it := accept(t, e, op, parcel)
		for range 30 {
			mute.Store(true)
			if _, err := e.Take(t.Context(), it); stet.KindOf(err) != stet.KindStore {
				t.Fatal(err)
			}
			mute.Store(false)
			time.Sleep(time.Hour)
		}
		attempts(t, take(t, e, it), 31, 1)
	})
}

// closing is a store which closes an engine while that takes.
type closing struct {
	*memory.Store
	e *stet.Engine
}

func (s *closing) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	rec, err := s.Store.Take(ctx, req)
	_ = s.e.Close()
	return rec, err
}

func TestTakeOfAnEngineThatIsClosedUsesUpNoAttempt(t *testing.T) {
	store := &closing{Store: memory.New(memory.Options{})}
	store.e = newEngine(t, store, stet.Options{})
	it := accept(t, store.e, op, parcel)
	if _, err := store.e.Take(t.Context(), it); stet.KindOf(err) != stet.KindClosed {
		t.Fatal(err)
	}
	attempts(t, take(t, newEngine(t, store.Store, stet.Options{}), it), 2, 1)
}

func TestRepeatedRelease_ExcludesTheAttemptOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var muted, refused atomic.Int64
		muted.Store(1)
		store := storetest.Faulty(memory.New(memory.Options{}), func(c storetest.Call) storetest.Fault {
			switch {
			case muted.Load() > 0 && c.Method == "Take":
				return storetest.FailAfter
			case c.Method == "Return" && refused.Add(1) <= 5:
				return storetest.FailBefore
			}
			return storetest.NoFault
		})
		e := newEngine(t, store, stet.Options{SweepEvery: -1})
		it := accept(t, e, op, parcel)
		if _, err := e.Take(t.Context(), it); stet.KindOf(err) != stet.KindStore {
			t.Fatal(err)
		}
		muted.Store(0)
		time.Sleep(time.Hour)
		run := take(t, e, it)
		attempts(t, run, 2, 1)
		complete(t, run, "x")
	})
}
