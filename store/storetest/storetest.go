package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
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
	// New returns a fresh, empty store, or an empty part of a store that no other caller
	// uses. It is called once for each case, and closes its resources
	// with t.Cleanup.
	New func(t testing.TB) store.Store
	// Advance moves the clock of the stores that New has made by d, which
	// need not happen in real time. Default nil: the suite really waits, as
	// it must for a server's own clock.
	Advance func(t testing.TB, d time.Duration)
	// Unit is the lease of the cases about time. Without Advance it must
	// dwarf what a call takes, because nothing else tells early from late: a case
	// that fails when the machine was too slow for it is tried again with three
	// times as long, up to twice. Default 1 min with Advance, 150 ms without.
	Unit time.Duration
	// Damage makes what s keeps under id unreadable, in place, as a broken disk or
	// another program would. The cases about damaged records run then.
	// Default nil, for a store that keeps nothing which could be read wrongly.
	Damage func(t testing.TB, s store.Store, id store.ID)
	// Histories is how many random histories are tried, each of up to 45
	// calls on three keys. Default 100 with Advance, 10 without.
	Histories int
	// Parallel has the cases run beside each other, as many as go test -parallel says:
	// without Advance they mostly wait. New is called at the same time by many of them then,
	// and Run has returned before the first of them begins, as after t.Parallel: close
	// their resources with t.Cleanup. Not with Advance, as one case would move the
	// clock of all.
	Parallel bool
}

// Run holds the store that h makes to every sentence of store.Store, and to those
// of all else that it can do: store.Watcher, store.Sweeper, store.Browser, store.WorkStore,
// store.OutboxStore, store.OutsideStore and store.Limiter are found by store.As, as the engine does it. Each case
// is a subtest.
func Run(t *testing.T, h Harness) {
	t.Helper()
	h.fill(t)
	for _, c := range checks(h, h.New(t)) {
		t.Run(c.name, func(t *testing.T) { c.test(t, h) })
	}
}

// abilities are the interfaces of a store beyond store.Store; nil if it lacks one.
type abilities struct {
	watcher store.Watcher
	sweeper store.Sweeper
	browser store.Browser
	works   store.WorkStore
	outbox  store.OutboxStore
	history store.HistoryStore
	outside bool // a store.OutsideStore
}

func abilitiesOf(s store.Store) (can abilities) {
	can.watcher, _ = store.As[store.Watcher](s)
	can.sweeper, _ = store.As[store.Sweeper](s)
	can.browser, _ = store.As[store.Browser](s)
	can.works, _ = store.As[store.WorkStore](s)
	can.outbox, _ = store.As[store.OutboxStore](s)
	can.history, _ = store.As[store.HistoryStore](s)
	_, can.outside = store.As[store.OutsideStore](s)
	return can
}

// check is one claim about a store.
type check struct {
	name string
	why  string
	run  func(f *fixture)
}

// test is do as a subtest.
func (c check) test(t *testing.T, h Harness) {
	t.Helper()
	if h.Parallel {
		t.Parallel()
	}
	c.do(t, h)
}

// do tries the claim on a fresh store, and gives its reason if it fails.
func (c check) do(t testing.TB, h Harness) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("why this is required: %s", c.why)
		}
	})
	c.on(t, h)
}

// checks returns the claims that apply to a store like s, as far as h can try them.
func checks(h Harness, s store.Store) []check {
	all := slices.Concat(claimChecks, refusalChecks, settleChecks, releaseChecks, extendChecks,
		readChecks, timeChecks, edgeChecks, resultChecks, raceChecks)
	can := abilitiesOf(s)
	if can.watcher != nil {
		all = append(all, watchChecks...)
	}
	if can.sweeper != nil {
		all = append(all, sweepChecks...)
	}
	if can.browser != nil {
		all = append(all, browseChecks...)
	}
	if can.works != nil {
		all = slices.Concat(all, workChecks, edgeWorkChecks, engineWorkChecks, nameWorkChecks)
	}
	if can.outbox != nil {
		all = append(all, outboxChecks...)
	}
	if can.works != nil || can.outbox != nil {
		all = append(all, workHistoryChecks...)
	}
	if can.history != nil {
		all = append(all, troubleChecks...)
	}
	if can.outside {
		all = append(all, outsideChecks...)
	}
	if mostResult(s) > 0 {
		all = append(all, limitChecks...)
	}
	if h.Damage != nil {
		all = append(all, damageChecks(can)...)
	}
	return slices.Concat(all, historyChecks, engineChecks, nameChecks)
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
	if h.Parallel && h.Advance != nil {
		t.Fatal("storetest: Harness.Parallel is for a clock that is waited for; with Advance, each case would move that of the others")
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
	time.Sleep(d) // not synchronisation: this tests the server's clock
}
