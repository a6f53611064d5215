package engine_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestResultThatCannotBeKeptIsNotRunAgain(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{MaxResult: 100}})
	runs := 0
	big := func(context.Context) (string, error) { runs++; return string(make([]byte, 1000)), nil }
	if res, err := stet.Do(t.Context(), e, op, big); err != nil || len(res.Value) != 1000 {
		t.Fatalf("the first caller: %v", err)
	}
	if _, err := stet.Do(t.Context(), e, op, big); stet.KindOf(err) != stet.KindExpired {
		t.Fatalf("a retry: %v", err)
	}
	odd := stet.Op{Scope: "s", Key: "odd"}
	nan := func(context.Context) (float64, error) { runs++; return math.NaN(), nil }
	for range 2 {
		if _, err := stet.Do(t.Context(), e, odd, nan); stet.KindOf(err) != stet.KindExpired || stet.ExecutionOf(err) != stet.Executed {
			t.Fatal(err)
		}
	}
	if runs != 2 {
		t.Fatalf("ran %d times", runs)
	}
}

func TestRunEndsOnce(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	run := begin(t, e, op)
	if err := run.Settle(t.Context(), stet.Outcome{Body: []byte("a")}); err != nil {
		t.Fatal(err)
	}
	if err := run.Release(t.Context(), stet.Again{}); stet.KindOf(err) != stet.KindInvalid {
		t.Fatalf("release after settle: %v", err)
	}
	if err := run.Context().Err(); err == nil {
		t.Fatal("the context of an ended run has not ended")
	}
	again, err := e.Begin(t.Context(), op)
	if err != nil || string(again.Outcome().Body) != "a" {
		t.Fatal(err)
	}
	if err := again.Settle(t.Context(), stet.Outcome{Failed: true}); stet.KindOf(err) != stet.KindInvalid {
		t.Fatalf("settle of a replay: %v", err)
	}
}

func TestScopesDoNotShareOutcomes(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	runs := 0
	for _, o := range []stet.Op{{Scope: "a:b", Key: "c"}, {Scope: "a", Key: "b:c"}, {Scope: "a", Key: "b"}, {Scope: "ab", Key: ":c"}} {
		if res, err := stet.Do(t.Context(), e, o, charge(&runs)); err != nil || res.Replayed {
			t.Fatalf("%v: %+v, %v", o, res, err)
		}
	}
	v2 := newEngine(t, memory.New(memory.Options{}), stet.Options{Namespace: "v2"})
	if e.ID("a", "b") == v2.ID("a", "b") {
		t.Fatal("namespaces share a record")
	}
}

func TestDerivedKeysAreStableAndApart(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	run := begin(t, e, op)
	charge, mail := run.DeriveKey("charge"), run.DeriveKey("mail")
	if charge == mail {
		t.Fatal("two calls share a key")
	}
	if err := run.Release(t.Context(), stet.Again{}); err != nil {
		t.Fatal(err)
	}
	second := begin(t, e, op)
	if second.DeriveKey("charge") != charge {
		t.Fatal("a second attempt derives another key")
	}
	if stet.DeriveKey("pay", "ab", "c") == stet.DeriveKey("pay", "a", "bc") || stet.DeriveKey("pay", "a") == stet.DeriveKey("pay", "a", "") {
		t.Fatal("parameters run into one another")
	}
	if got, want := stet.DeriveKey("pay", "order 7"), "1ae94cb4-d0b6-8f5f-852f-fb8b22e88e80"; got != want {
		t.Fatalf("DeriveKey changed from %s to %s: every deployed key would", want, got)
	}
}

func TestWrongWiringIsRefusedAtConstruction(t *testing.T) {
	stettest.Options(t, "testdata/options.txt", func(o stet.Options) error { _, err := stet.New(memory.New(memory.Options{}), o); return err })
	if _, err := stet.New(memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{Stale: stet.ItDidNotHappen()}}); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("a resolution that is no Stale: %v", err)
	}
	if _, err := stet.New(memory.New(memory.Options{}), stet.Options{Namespace: string(make([]byte, 5000))}); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("a long namespace: %v", err)
	}
	var unopened *memory.Store
	for _, none := range []store.Store{nil, unopened} {
		if _, err := stet.New(none, stet.Options{}); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("the store %T is nil, and was accepted", none)
		}
	}
}

func TestUnacceptableOperationsAreRefused(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx context.Context
		op  stet.Op
	}{
		"no scope":     {t.Context(), stet.Op{Key: "k"}},
		"no key":       {t.Context(), stet.Op{Scope: "s"}},
		"long key":     {t.Context(), stet.Op{Scope: "s", Key: string(make([]byte, store.MaxKey+1))}},
		"long scope":   {t.Context(), stet.Op{Key: "k", Scope: string(make([]byte, store.MaxScope+1))}},
		"no class":     {t.Context(), stet.Op{Scope: "s", Key: "k", Class: "unheard of"}},
		"ended caller": {ended, op},
	} {
		_, err := e.Begin(c.ctx, c.op)
		if stet.KindOf(err) != stet.KindInvalid || stet.ExecutionOf(err) != stet.NotExecuted {
			t.Errorf("%s: %v", name, err)
		}
	}
	_ = e.Close()
	if _, err := e.Begin(t.Context(), op); stet.KindOf(err) != stet.KindClosed {
		t.Errorf("after Close: %v", err)
	}
}

func TestStoreThatIsDownExecutesNothing(t *testing.T) {
	store := newSpy()
	store.failClaim.Store(&errDown)
	e := newEngine(t, store, stet.Options{})
	runs := 0
	_, err := stet.Do(t.Context(), e, op, charge(&runs))
	if stet.KindOf(err) != stet.KindStore || !errors.Is(err, errDown) || stet.ExecutionOf(err) != stet.NotExecuted || runs != 0 {
		t.Fatalf("%v, %d runs", err, runs)
	}
}
