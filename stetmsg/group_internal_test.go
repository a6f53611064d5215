package stetmsg

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
)

// TestMessagesThatWaitAreGroupedAndNothingWaitsForCompany: the first is handled
// at once and alone; those that come meanwhile go together.
func TestMessagesThatWaitAreGroupedAndNothingWaitsForCompany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var sizes []int
		g := &groups[int]{size: 4, lanes: 1, run: func(_ context.Context, ops []stet.Op, _ []int) []*stet.Run {
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			sizes = append(sizes, len(ops))
			return make([]*stet.Run, len(ops))
		}}
		began := time.Now()
		run, done := g.join(t.Context(), stet.Op{}, 0)
		if run != nil || time.Since(began) != 0 {
			t.Errorf("the first waited for %v", time.Since(began))
		}
		var wg sync.WaitGroup
		for i := range 9 {
			wg.Go(func() {
				_, done := g.join(t.Context(), stet.Op{}, i)
				done()
			})
		}
		synctest.Wait()
		done()
		wg.Wait()
		if len(sizes) != 2 || sizes[0] != 4 || sizes[1] != 4 { // and the ninth alone
			t.Errorf("groups of %v", sizes)
		}
		if g.busy != 0 || len(g.waiting) != 0 {
			t.Errorf("%d lanes are busy, %d wait", g.busy, len(g.waiting))
		}
	})
}

// TestNobodyWaitsForAGroupWhoseHandlerHasLeft: runtime.Goexit, or a panic.
func TestNobodyWaitsForAGroupWhoseHandlerHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &groups[int]{size: 3, lanes: 1, run: func(context.Context, []stet.Op, []int) []*stet.Run {
			runtime.Goexit()
			return nil
		}}
		_, done := g.join(t.Context(), stet.Op{}, 0)
		var alone atomic.Int64
		var wg sync.WaitGroup
		for i := range 7 {
			wg.Go(func() {
				run, done := g.join(t.Context(), stet.Op{}, i)
				if run == nil {
					alone.Add(1)
				}
				done()
			})
		}
		synctest.Wait()
		done()
		wg.Wait()
		if alone.Load() != 5 { // two led a group, and left with it
			t.Errorf("%d are to be handled alone; want 5", alone.Load())
		}
		if g.busy != 0 {
			t.Errorf("%d lanes are busy", g.busy)
		}
	})
}
