package simulate

import (
	"reflect"
	"testing"
	"testing/synctest"
)

func TestSchedulesBreakNoPromise(t *testing.T) {
	var sum Count
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []Config{{}, {Transactions: true}, {Work: true}} {
			seeds := uint64(1000)
			if c.Work {
				seeds = 5000 // some of what can happen to work is rare
			}
			for seed := range seeds {
				r := Run(seed, c)
				sum.Add(r.Count)
				if r.Violation != "" {
					t.Fatal(Shrink(r, c))
				}
			}
		}
	})
	// A simulation in which something never happens proves nothing about it.
	t.Logf("%+v", sum)
	for i, v := 0, reflect.ValueOf(sum); i < v.NumField(); i++ {
		if v.Field(i).Int() == 0 {
			t.Errorf("%s never happened", v.Type().Field(i).Name)
		}
	}
}

// With the race detector the runtime picks goroutines at random, on purpose: then
// no seed can promise anything, and raceDetector is true.
func TestSeedReplaysExactly(t *testing.T) {
	for _, c := range []Config{{}, {Transactions: true}, {Work: true}} {
		synctest.Test(t, func(t *testing.T) { replayExactly(t, c) })
	}
}

func replayExactly(t *testing.T, c Config) {
	hashes := make(map[uint64]bool)
	crewed := c
	crewed.Crew = new(Crew)
	defer crewed.Crew.Dismiss()
	const n = 300
	for seed := range uint64(n) {
		first := Run(seed, c)
		again := Run(seed, crewed) // who plays makes no difference
		script := replay(seed, first.setup, first.script, crewed)
		hashes[first.Hash] = true
		if raceDetector {
			continue
		}
		if first.Hash != again.Hash || first.Hash != script.Hash || first.Count != again.Count {
			t.Errorf("seed %d came to %x, then to %x, and its script to %x", seed, first.Hash, again.Hash, script.Hash)
		}
	}
	if len(hashes) < n*9/10 {
		t.Errorf("%d seeds made %d different schedules", n, len(hashes))
	}
}
