package storetest

import (
	"testing"
	"time"
)

// A case that runs beside others begins once all of them are there; by itself, at once.
func TestParallelCasesRunBesideEachOther(t *testing.T) {
	for _, parallel := range []bool{true, false} {
		ran := make(chan struct{}, 2)
		c := check{name: "a case", run: func(*fixture) { ran <- struct{}{} }}
		h := smallHarness("").Harness
		h.Advance, h.Unit, h.Parallel = nil, time.Second, parallel
		t.Run("all", func(t *testing.T) {
			for range 2 {
				t.Run(c.name, func(t *testing.T) { c.test(t, h) })
			}
			if early := len(ran); (early == 0) != parallel {
				t.Errorf("parallel: %v; %d cases had run before the last was there", parallel, early)
			}
		})
		if len(ran) != 2 {
			t.Errorf("parallel: %v; %d cases have run; want 2", parallel, len(ran))
		}
	}
}

func TestParallelCasesDoNotMoveEachOthersClock(t *testing.T) {
	h := smallHarness("").Harness
	h.Parallel = true
	rec := observe(t, check{run: func(f *fixture) { h.fill(f) }}, smallHarness("").Harness)
	if !rec.Failed() {
		t.Error("Parallel beside Advance is not refused")
	}
}
