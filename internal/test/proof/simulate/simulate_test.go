package simulate

import (
	"flag"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	from     = flag.Uint64("from", 0, "the first seed of TestSeeds")
	seeds    = flag.Uint64("seeds", 200, "how many schedules TestSeeds simulates; of one it logs the events")
	tx       = flag.Bool("tx", false, "most clients of TestSeeds use transactions")
	accepted = flag.Bool("accepted", false, "TestSeeds accepts operations, runs them with steps, cancels them, and sends messages")
)

// TestSeeds simulates the schedules of a range of seeds, every hundredth of them twice.
func TestSeeds(t *testing.T) {
	const bubble = 2000 // seeds in one
	var sum Count
	began := time.Now()
	for done := uint64(0); done < *seeds; done += bubble {
		synctest.Test(t, func(t *testing.T) {
			c := Config{Transactions: *tx, Work: *accepted, Crew: new(Crew), Log: *seeds == 1}
			defer c.Crew.Dismiss()
			for seed := *from + done; seed < *from+min(done+bubble, *seeds); seed++ {
				r := Run(seed, c)
				sum.Add(r.Count)
				if r.Violation != "" {
					t.Fatal(Shrink(r, c))
				}
				if seed%100 == 0 && !raceDetector && Run(seed, c).Hash != r.Hash {
					t.Errorf("seed %d did not replay", seed)
				}
				if c.Log {
					t.Logf("%v\n\n%s", r, strings.Join(r.Log, "\n"))
				}
			}
		})
	}
	t.Logf("seeds %d to %d: %+v", *from, *from+*seeds-1, sum)
	if !t.Failed() {
		fmt.Printf("figure: simulate_violations = 0\nfigure: simulate_schedules = %d\n", *seeds)
	}
	fmt.Printf("figure: simulate_rate = %.0f schedules/min of one processor\n", float64(*seeds)/time.Since(began).Minutes())
}

func TestSchedulesBreakNoPromise(t *testing.T) {
	const few, many, most = 1000, 5000, 20_000
	var sum Count
	synctest.Test(t, func(t *testing.T) {
		for seed := uint64(0); seed < most; seed++ {
			for _, c := range []Config{{}, {Transactions: true}, {Work: true}} {
				if seed >= few && !c.Work {
					continue
				}
				r := Run(seed, c)
				sum.Add(r.Count)
				if r.Violation != "" {
					t.Fatal(Shrink(r, c))
				}
			}
			// A simulation in which something never happens proves nothing about it: some of what
			// can happen to work is rare, and with the race detector no seed is sure to meet it.
			if seed+1 >= many && len(missing(sum)) == 0 {
				break
			}
		}
	})
	t.Logf("%+v", sum)
	for _, name := range missing(sum) {
		t.Errorf("%s never happened", name)
	}
}

// missing are counters that stayed zero.
func missing(sum Count) (names []string) {
	for i, v := 0, reflect.ValueOf(sum); i < v.NumField(); i++ {
		if v.Field(i).Int() == 0 {
			names = append(names, v.Type().Field(i).Name)
		}
	}
	return names
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
