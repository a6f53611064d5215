package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/stet-go/stet"
)

const (
	defaultUnit     = time.Minute            // when the clock can be moved
	defaultRealUnit = 150 * time.Millisecond // when it must be waited for

	defaultHistories     = 100
	defaultRealHistories = 10
)

// Harness says how to make the store under test and how to move its clock.
// Only New is required.
type Harness struct {
	// New returns a fresh, empty store, or an empty part of one that nothing
	// else touches. It is called once for each case; what it opens it closes
	// with t.Cleanup.
	New func(t testing.TB) stet.Store
	// Advance moves the clock of the stores that New has made by d, which
	// need not happen in real time. Default nil: the suite really waits, as
	// it must for a server's own clock.
	Advance func(t testing.TB, d time.Duration)
	// Unit is the lease of the cases about time. Without Advance it must
	// dwarf what a call takes, because nothing else tells early from late.
	// Default 1 min with Advance, 150 ms without.
	Unit time.Duration
	// Histories is how many random histories are tried, each of up to 45
	// calls on three keys. Default 100 with Advance, 10 without.
	Histories int
}

// Run holds the store that h makes to every sentence of stet.Store, and to those
// of stet.Watcher, stet.Sweeper, stet.Browser and stet.WorkStore if it is one. Each
// case is a subtest.
func Run(t *testing.T, h Harness) {
	t.Helper()
	h.fill(t)
	for _, c := range checks(h.New(t)) {
		t.Run(c.name, func(t *testing.T) { c.do(t, h) })
	}
}

// check is one claim about a store.
type check struct {
	name string
	why  string
	run  func(f *fixture)
}

// do tries the claim on a fresh store, and gives its reason if it fails.
func (c check) do(t testing.TB, h Harness) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("why this is required: %s", c.why)
		}
	})
	c.run(newFixture(t, h))
}

// checks returns the claims that apply to a store like s.
func checks(s stet.Store) []check {
	all := slices.Concat(claimChecks, refusalChecks, settleChecks, releaseChecks, extendChecks,
		readChecks, timeChecks, resultChecks, raceChecks)
	if _, ok := s.(stet.Watcher); ok {
		all = append(all, watchChecks...)
	}
	if _, ok := s.(stet.Sweeper); ok {
		all = append(all, sweepChecks...)
	}
	if _, ok := s.(stet.Browser); ok {
		all = append(all, browseChecks...)
	}
	if _, ok := s.(stet.WorkStore); ok {
		all = slices.Concat(all, workChecks, engineWorkChecks, workHistoryChecks)
	}
	return slices.Concat(all, historyChecks, engineChecks)
}

// fill checks the harness and fills in its defaults.
func (h *Harness) fill(t testing.TB) {
	t.Helper()
	if h.New == nil {
		t.Fatal("storetest: Harness.New is nil; it must return the store to test")
	}
	if h.Unit < 0 || h.Histories < 0 {
		t.Fatalf("storetest: Harness.Unit (%v) and Histories (%d) must not be negative", h.Unit, h.Histories)
	}
	unit, histories := defaultUnit, defaultHistories
	if h.Advance == nil {
		unit, histories = defaultRealUnit, defaultRealHistories
	}
	if h.Unit == 0 {
		h.Unit = unit
	}
	if h.Histories == 0 {
		h.Histories = histories
	}
}

// pass lets d go by on the store's clock.
func (h *Harness) pass(t testing.TB, d time.Duration) {
	t.Helper()
	if h.Advance != nil {
		h.Advance(t, d)
		return
	}
	time.Sleep(d) // not synchronisation: the server's clock is what is tested
}
