package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

func always(f Fault) Plan { return func(Call) Fault { return f } }

// The wrapper must not make a store out to be more, or less, than it is.
func TestFaultyKeepsAbilities(t *testing.T) {
	full := smallHarness("").New(t).(*small)
	type watcher struct {
		store.Store
		store.Watcher
	}
	type workingSweeper struct {
		store.WorkStore
		store.Sweeper
	}
	type txSweeper struct {
		store.TxStore[*smallTx]
		store.Sweeper
	}
	for _, s := range []store.Store{full, struct{ store.Store }{full}, watcher{full, full}, workingSweeper{full, full}, struct{ store.WorkStore }{full},
		struct{ store.OutboxStore }{full}, wrapped{full}, struct{ store.TxStore[*smallTx] }{full}, txSweeper{full, full}, struct{ store.WorkTxStore[*smallTx] }{full}} {
		want := has(s)
		want.tx, want.workTx = false, false
		if got := has(Faulty(s, always(NoFault))); got != want {
			t.Errorf("%T can do %+v; want, of %+v, all but transactions", s, got, has(s))
		}
		if tx, ok := store.As[store.TxStore[*smallTx]](s); ok {
			if got := has(FaultyTx(tx, always(NoFault))); got != has(tx) {
				t.Errorf("%T, with transactions, can do %+v; want %+v", s, got, has(tx))
			}
		}
	}
}

// wrapped is in front of a store, and says so.
type wrapped struct{ store.Store }

func (w wrapped) Unwrap() store.Store { return w.Store }

// ability is what a store can do, but for being browsed.
type ability struct{ watch, sweep, work, send, tx, workTx bool }

func has(s store.Store) (a ability) {
	can := abilitiesOf(s)
	a = ability{watch: can.watcher != nil, sweep: can.sweeper != nil, work: can.works != nil, send: can.outbox != nil}
	_, a.tx = store.As[store.TxStore[*smallTx]](s)
	_, a.workTx = store.As[store.WorkTxStore[*smallTx]](s)
	return a
}

func TestFaultyTxWithoutFaultsConforms(t *testing.T) {
	h := smallHarness("")
	inner := h.New
	h.New = func(t testing.TB) store.Store { return FaultyTx(inner(t).(store.TxStore[*smallTx]), always(NoFault)) }
	rows, begin, damage := h.Rows, h.Begin, h.Damage
	unwrap := func(s store.TxStore[*smallTx]) store.TxStore[*smallTx] { return s.(faultyWorkTx[*smallTx]).tx }
	h.Damage = func(t testing.TB, s store.Store, id store.ID) { damage(t, unwrap(s.(store.TxStore[*smallTx])), id) }
	h.Rows = func(t testing.TB, s store.TxStore[*smallTx], name string) int { return rows(t, unwrap(s), name) }
	h.Begin = func(t testing.TB, s store.TxStore[*smallTx]) (*smallTx, func(bool) error) { return begin(t, unwrap(s)) }
	RunTx(t, h)
}

func TestFaultyWithoutFaultsConforms(t *testing.T) {
	h := smallHarness("")
	inner := h.New
	h.New = func(t testing.TB) store.Store { return Faulty(inner(t), always(NoFault)) }
	h.Damage = nil
	Run(t, h.Harness)
}

func TestFaultsComeBeforeOrAfterTheEffect(t *testing.T) {
	for fault, state := range map[Fault]store.State{FailBefore: store.None, FailAfter: store.Running} {
		f := newFixture(t, smallHarness("").Harness)
		s := Faulty(f.store, always(fault))
		req := f.request(time.Minute)
		if rec, err := s.Claim(t.Context(), req); !errors.Is(err, ErrFault) || rec.State != store.None {
			t.Errorf("Claim returned %s, %v; want a fault and no record", show(rec), err)
		}
		if rec := f.read(req.ID); rec.State != state {
			t.Errorf("the claim that failed left %s; want %v", show(rec), state)
		}
	}
}

func TestLostReplyOfACommitIsUnknown(t *testing.T) {
	s := FaultyTx(smallHarness("").New(t).(store.TxStore[*smallTx]), always(FailAfter))
	f := newFixture(t, smallHarness("").Harness)
	mine := errors.New("mine")
	for _, want := range []error{mine, store.ErrUnknown} {
		_, err := s.RunTx(t.Context(), f.request(time.Minute), f.keep, func(context.Context, *smallTx, store.Record) (store.Settlement, error) {
			if want == mine {
				return store.Settlement{}, mine
			}
			return completed("x"), nil
		})
		if !errors.Is(err, want) || errors.Is(err, ErrFault) != (want != mine) {
			t.Errorf("RunTx returned %v; want %v", err, want)
		}
	}
}

func TestPlanCountsCallsByMethod(t *testing.T) {
	var got []Call
	f := newFixture(t, smallHarness("").Harness)
	s := Faulty(f.store, func(c Call) Fault {
		got = append(got, c)
		return NoFault
	})
	for range 2 {
		_, _ = s.Read(t.Context(), store.ID{})
		_, _ = s.Extend(t.Context(), nil, time.Minute)
	}
	want := [4]Call{{"Read", 1}, {"Extend", 1}, {"Read", 2}, {"Extend", 2}}
	if len(got) != 4 || [4]Call(got) != want {
		t.Errorf("the plan saw %v; want %v", got, want)
	}
}

func TestSeededPlanRepeatsItself(t *testing.T) {
	a, b, other := Seeded(1, 0.5), Seeded(1, 0.5), Seeded(2, 0.5)
	count := make(map[Fault]int)
	differs := false
	for range 1000 {
		x := a(Call{})
		count[x]++
		if x != b(Call{}) {
			t.Fatal("the same seed gave other faults")
		}
		differs = differs || x != other(Call{})
	}
	if !differs {
		t.Error("another seed gave the same faults")
	}
	for fault, want := range map[Fault]int{NoFault: 500, FailBefore: 250, FailAfter: 250} {
		if n := count[fault]; n < want-100 || n > want+100 {
			t.Errorf("of 1000 calls %d had the fault %d; want about %d", n, fault, want)
		}
	}
}

func TestWrongHarnessFailsAtOnce(t *testing.T) {
	ok := smallHarness("").Harness
	for name, h := range map[string]Harness{
		"no New":             {},
		"a negative unit":    {New: ok.New, Unit: -1},
		"negative histories": {New: ok.New, Histories: -1},
	} {
		if rec := stettest.Record(t, nil, func(t testing.TB) { h.fill(t) }); !rec.Failed() {
			t.Errorf("a harness with %s was accepted", name)
		}
	}
}
