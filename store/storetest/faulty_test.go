package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
)

func always(f Fault) Plan { return func(Call) Fault { return f } }

// The wrapper must not make a store out to be more, or less, than it is.
func TestFaultyKeepsCapabilities(t *testing.T) {
	full := smallHarness("").New(t).(*small)
	type bare struct{ store.Store }
	type watcher struct {
		store.Store
		store.Watcher
	}
	type sweeper struct {
		store.Store
		store.Sweeper
	}
	type worker struct{ store.WorkStore }
	type workingWatcher struct {
		store.WorkStore
		store.Watcher
	}
	type workingSweeper struct {
		store.WorkStore
		store.Sweeper
	}
	for _, s := range []store.Store{full, bare{full}, watcher{full, full}, sweeper{full, full}, worker{full}, workingWatcher{full, full}, workingSweeper{full, full}} {
		if had, has := capabilities(s), capabilities(Faulty(s, always(NoFault))); had != has {
			t.Errorf("%T: watches, sweeps, works %v; wrapped: %v", s, had, has)
		}
	}
	type txOnly struct{ store.TxStore[*smallTx] }
	type txSweeper struct {
		store.TxStore[*smallTx]
		store.Sweeper
	}
	type workingTx struct{ store.WorkTxStore[*smallTx] }
	type workingTxSweeper struct {
		store.WorkTxStore[*smallTx]
		store.Sweeper
	}
	for _, s := range []store.TxStore[*smallTx]{full, txOnly{full}, txSweeper{full, full}, workingTx{full}, workingTxSweeper{full, full}} {
		got := FaultyTx(s, always(NoFault))
		_, w1 := s.(store.WorkTxStore[*smallTx])
		_, w2 := got.(store.WorkTxStore[*smallTx])
		if had, has := capabilities(s), capabilities(got); had != has || w1 != w2 {
			t.Errorf("%T, with transactions: watches, sweeps, works %v, in transactions %v; wrapped: %v, %v", s, had, w1, has, w2)
		}
	}
}

func capabilities(s store.Store) [3]bool {
	_, watches := s.(store.Watcher)
	_, sweeps := s.(store.Sweeper)
	_, works := s.(store.WorkStore)
	return [3]bool{watches, sweeps, works}
}

func TestFaultyTxWithoutFaultsConforms(t *testing.T) {
	h := smallHarness("")
	inner := h.New
	h.New = func(t testing.TB) store.Store { return FaultyTx(inner(t).(store.TxStore[*smallTx]), always(NoFault)) }
	rows, begin, damage := h.Rows, h.Begin, h.Damage
	unwrap := func(s store.TxStore[*smallTx]) store.TxStore[*smallTx] {
		return s.(interface {
			unwrap() store.TxStore[*smallTx]
		}).unwrap()
	}
	h.Damage = func(t testing.TB, s store.Store, id store.ID) { damage(t, unwrap(s.(store.TxStore[*smallTx])), id) }
	h.Rows = func(t testing.TB, s store.TxStore[*smallTx], name string) int { return rows(t, unwrap(s), name) }
	h.Begin = func(t testing.TB, s store.TxStore[*smallTx]) (*smallTx, func(bool) error) { return begin(t, unwrap(s)) }
	RunTx(t, h)
}

// unwrap returns the store below.
func (t faultyWorkTx[Tx]) unwrap() store.TxStore[Tx] { return t.tx }

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
		rec := &recorder{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			h.fill(rec)
		}()
		if <-done; !rec.Failed() {
			t.Errorf("a harness with %s was accepted", name)
		}
	}
}
