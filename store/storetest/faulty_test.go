package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stet-go/stet"
)

func always(f Fault) Plan { return func(Call) Fault { return f } }

// The wrapper must not make a store out to be more, or less, than it is.
func TestFaultyKeepsCapabilities(t *testing.T) {
	full := smallHarness("").New(t).(*small)
	type bare struct{ stet.Store }
	type watcher struct {
		stet.Store
		stet.Watcher
	}
	type sweeper struct {
		stet.Store
		stet.Sweeper
	}
	for _, s := range []stet.Store{full, bare{full}, watcher{full, full}, sweeper{full, full}} {
		got := Faulty(s, always(NoFault))
		_, w1 := s.(stet.Watcher)
		_, w2 := got.(stet.Watcher)
		_, s1 := s.(stet.Sweeper)
		_, s2 := got.(stet.Sweeper)
		if w1 != w2 || s1 != s2 {
			t.Errorf("%T: watches %v, sweeps %v; wrapped: %v, %v", s, w1, s1, w2, s2)
		}
	}
	tx := FaultyTx[*smallTx](full, always(NoFault))
	_, watches := tx.(stet.Watcher)
	_, sweeps := tx.(stet.Sweeper)
	if !watches || !sweeps {
		t.Errorf("with transactions: watches %v, sweeps %v", watches, sweeps)
	}
}

func TestFaultyWithoutFaultsConforms(t *testing.T) {
	h := smallHarness("")
	inner := h.New
	h.New = func(t testing.TB) stet.Store { return Faulty(inner(t), always(NoFault)) }
	Run(t, h.Harness)
}

func TestFaultsComeBeforeOrAfterTheEffect(t *testing.T) {
	for fault, state := range map[Fault]stet.State{FailBefore: stet.None, FailAfter: stet.Running} {
		f := newFixture(t, smallHarness("").Harness)
		s := Faulty(f.store, always(fault))
		req := f.request(time.Minute)
		if rec, err := s.Claim(t.Context(), req); !errors.Is(err, ErrFault) || rec.State != stet.None {
			t.Errorf("Claim returned %s, %v; want a fault and no record", show(rec), err)
		}
		if rec := f.read(req.ID); rec.State != state {
			t.Errorf("the claim that failed left %s; want %v", show(rec), state)
		}
	}
}

func TestLostReplyOfACommitIsUnknown(t *testing.T) {
	s := FaultyTx(smallHarness("").New(t).(stet.TxStore[*smallTx]), always(FailAfter))
	f := newFixture(t, smallHarness("").Harness)
	mine := errors.New("mine")
	for _, want := range []error{mine, stet.ErrUnknown} {
		_, err := s.RunTx(t.Context(), f.request(time.Minute), f.keep, func(context.Context, *smallTx, stet.Record) (stet.Outcome, error) {
			if want == mine {
				return stet.Outcome{}, mine
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
		_, _ = s.Read(t.Context(), stet.ID{})
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
