package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// browse returns the only record in a state.
func browse(t *testing.T, st store.Browser, state store.State) store.Record {
	t.Helper()
	p, err := st.Browse(t.Context(), store.Query{States: []store.State{state}})
	if err != nil || len(p.Records) != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	return p.Records[0]
}

func TestOperatorResolvesUnknownOperations(t *testing.T) {
	for _, swept := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(memory.Options{})
			e := newEngine(t, st, stet.Options{SweepEvery: -1})
			die(t, st, op)
			shown := browse(t, st, store.Running) // lapsed, and not marked unknown yet
			if swept {
				_, _ = st.Sweep(t.Context(), 10)
				shown = browse(t, st, store.Unknown)
			}
			for range 2 { // a repetition is a success
				if err := e.Resolve(t.Context(), shown, "", stet.ItDidNotHappen()); err != nil {
					t.Fatal(err)
				}
			}
			runs := 0
			if res, err := stet.Do(t.Context(), e, op, charge(&runs)); err != nil || runs != 1 || res.Attempt != 2 {
				t.Fatalf("after it was resolved as not executed: %+v, %v, %d runs", res, err, runs)
			}
			err := e.Resolve(t.Context(), shown, "", stet.ItDidNotHappen())
			if stet.KindOf(err) != stet.KindFenced {
				t.Fatalf("resolving a record that has run again since it was shown: %v", err)
			}
			if res, err := stet.Do(t.Context(), e, op, charge(&runs)); err != nil || runs != 1 || res.Value != "charged" {
				t.Fatalf("%+v, %v, %d runs", res, err, runs)
			}
		})
	}
}

func TestEveryRetryGetsTheResolvedOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Options{})
		e := newEngine(t, store, stet.Options{SweepEvery: -1})
		dead := die(t, store, op)
		happened := stet.ItHappened(stet.Outcome{Body: []byte(`"from the books"`)})
		for range 2 {
			if err := e.Resolve(t.Context(), dead, "", happened); err != nil {
				t.Fatal(err)
			}
		}
		other := stet.ItHappened(stet.Outcome{Failed: true})
		for _, v := range []stet.Resolution{other, stet.ItDidNotHappen()} {
			if err := e.Resolve(t.Context(), dead, "", v); stet.KindOf(err) != stet.KindFenced {
				t.Fatalf("a second resolution: %v", err)
			}
		}
		runs := 0
		if res, err := stet.Do(t.Context(), e, op, charge(&runs)); err != nil || !res.Replayed || res.Value != "from the books" || runs != 0 {
			t.Fatalf("%+v, %v, %d runs", res, err, runs)
		}
	})
}

func TestLiveRunCannotBeResolved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		e := newEngine(t, st, stet.Options{})
		run, err := e.Begin(t.Context(), op)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // twice the lease, renewed
		err = e.Resolve(t.Context(), browse(t, st, store.Running), "", stet.ItDidNotHappen())
		if failure, ok := errors.AsType[*stet.Error](err); !ok || stet.KindOf(err) != stet.KindInFlight || failure.RetryAfter <= 0 {
			t.Fatalf("resolving a live run: %v", err)
		}
		if err := run.Settle(t.Context(), stet.Outcome{}); err != nil {
			t.Fatal(err)
		}
		if err := e.Resolve(t.Context(), shown(run), "", stet.ItDidNotHappen()); stet.KindOf(err) != stet.KindFenced {
			t.Fatalf("resolving a settled record: %v", err)
		}
	})
}

func TestResolveRefusesCannotKnowAndUnknownClasses(t *testing.T) {
	st := memory.New(memory.Options{})
	e := newEngine(t, st, stet.Options{})
	rec, _ := st.Claim(t.Context(), store.ClaimRequest{ID: store.Digest("", "a", "b"), Owner: store.NewOwner(), Lease: time.Nanosecond})
	for _, err := range []error{
		e.Resolve(t.Context(), rec, "", stet.CannotKnow()),
		e.Resolve(t.Context(), rec, "unknown class", stet.ItDidNotHappen()),
	} {
		if stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%v; want KindInvalid", err)
		}
	}
	if err := e.Resolve(t.Context(), store.Record{ID: store.Digest("", "a", "c"), Fence: 1}, "", stet.ItDidNotHappen()); stet.KindOf(err) != stet.KindFenced {
		t.Errorf("resolving a key that was never claimed: %v", err)
	}
}

// releasing is a store whose record is released between being read and being ended.
type releasing struct{ *memory.Store }

func (s releasing) release(ctx context.Context, id store.ID) {
	if rec, _ := s.Read(ctx, id); rec.State == store.Running {
		_ = s.Release(ctx, rec.Claim(), store.Retention{Result: time.Hour, Tombstone: time.Hour})
	}
}

func (s releasing) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	s.release(ctx, req.ID)
	return s.Store.Claim(ctx, req)
}

func (s releasing) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	s.release(ctx, req.ID)
	return s.Store.Take(ctx, req)
}

func TestResolveLeavesNoClaimBehind(t *testing.T) {
	for name, of := range map[string]func(*memory.Store) store.Store{
		"a store of work":    func(st *memory.Store) store.Store { return releasing{st} },
		"a store of no work": func(st *memory.Store) store.Store { return struct{ store.Store }{releasing{st}} },
	} {
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(memory.Options{})
			e := newEngine(t, of(st), stet.Options{SweepEvery: -1})
			shown := die(t, st, op)
			if err := e.Resolve(t.Context(), shown, "", stet.ItHappened(stet.Outcome{})); stet.KindOf(err) != stet.KindFenced {
				t.Fatal(name, err)
			}
			browse(t, st, store.Retryable)
		})
	}
}

func TestResolveKeepsLabelAndAttemptOfALapsedRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		e := newEngine(t, st, stet.Options{SweepEvery: -1})
		req := store.ClaimRequest{ID: e.ID("a", "k"), Owner: store.NewOwner(), Lease: time.Minute, Outside: true, Label: store.Label{Name: "POST /payments"}}
		shown, err := st.Claim(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if err := e.Resolve(t.Context(), shown, "", stet.ItDidNotHappen()); err != nil {
			t.Fatal(err)
		}
		if rec, err := st.Read(t.Context(), req.ID); err != nil || rec.State != store.Retryable || rec.Attempt != 1 || rec.Label != req.Label || rec.Owner != req.Owner {
			t.Errorf("%+v, %v", rec, err)
		}
	})
}

func TestResolutionAppliesOnlyToTheRunThatWasShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		e := newEngine(t, st, stet.Options{SweepEvery: -1})
		shown := die(t, st, op)
		if err := e.Resolve(t.Context(), shown, "", stet.ItDidNotHappen()); err != nil {
			t.Fatal(err)
		}
		again := die(t, st, op)
		for _, v := range []stet.Resolution{stet.ItDidNotHappen(), stet.ItHappened(stet.Outcome{})} {
			if err := e.Resolve(t.Context(), shown, "", v); stet.KindOf(err) != stet.KindFenced {
				t.Fatalf("the resolution of an earlier run was applied to this one: %v", err)
			}
		}
		if rec, _ := st.Read(t.Context(), again.ID); rec.Fence != again.Fence || rec.State != store.Running {
			t.Fatalf("%+v", rec)
		}
	})
}
