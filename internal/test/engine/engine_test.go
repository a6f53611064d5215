package engine_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func newEngine(t *testing.T, store store.Store, o stet.Options) *stet.Engine {
	t.Helper()
	e := stettest.Engine(t, store, o)
	return e
}

var op = stet.Op{Scope: "acct_1", Key: "k1"}

func TestDoRunsOnceAndReplays(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	runs := 0
	for i := range 3 {
		res, err := stet.Do(t.Context(), e, op, func(context.Context) (string, error) {
			runs++
			return "charged", nil
		})
		if err != nil || res.Value != "charged" || res.Replayed != (i > 0) {
			t.Fatalf("call %d: %+v, %v", i, res, err)
		}
	}
	if runs != 1 {
		t.Fatalf("ran %d times", runs)
	}
}

func TestHerdOnOneKeyRunsOnce(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	var runs, replays, conflicts atomic.Int64
	var wg sync.WaitGroup
	for range 10_000 {
		wg.Go(func() {
			res, err := stet.Do(t.Context(), e, op, func(context.Context) (int, error) {
				runs.Add(1)
				return 42, nil
			})
			switch {
			case stet.KindOf(err) == stet.KindInFlight:
				conflicts.Add(1)
			case err == nil && res.Value == 42 && res.Replayed:
				replays.Add(1)
			case err != nil || res.Value != 42:
				t.Errorf("%+v, %v", res, err)
			}
		})
	}
	wg.Wait()
	if runs.Load() != 1 || replays.Load()+conflicts.Load() != 9_999 {
		t.Fatalf("runs %d, replays %d, conflicts %d", runs.Load(), replays.Load(), conflicts.Load())
	}
}
