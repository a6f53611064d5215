package engine_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestCloseEndsTheRunsThatAreLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
		run := begin(t, e, op)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if cause := context.Cause(run.Context()); !errors.Is(cause, stet.ErrClosed) {
			t.Fatalf("cause %v", cause)
		}
		if err := run.Settle(t.Context(), stet.Outcome{}); err != nil {
			t.Fatalf("a settle after Close: %v", err)
		}
	})
}

func TestCloseEndsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		run := begin(t, newEngine(t, st, stet.Options{}), op)
		for name, s := range map[string]store.Store{"watched": st, "polled": blind{st}} {
			e := newEngine(t, s, stet.Options{Policy: stet.Policy{Wait: time.Minute}})
			var wg sync.WaitGroup
			wg.Go(func() {
				if _, err := e.Begin(t.Context(), op); stet.KindOf(err) != stet.KindInFlight && stet.KindOf(err) != stet.KindClosed {
					t.Errorf("%s: %v", name, err)
				}
			})
			synctest.Wait()
			begun := time.Now()
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			if took := time.Since(begun); took > time.Second {
				t.Errorf("%s: it waited %v more", name, took)
			}
		}
		if err := run.Release(t.Context(), stet.Again{}); err != nil {
			t.Fatal(err)
		}
	})
}

// scripted is a memory store whose calls go through functions, if it has them.
type scripted struct {
	*memory.Store
	claim  func(context.Context, store.ClaimRequest) (store.Record, error)
	extend func(context.Context, []store.Claim, time.Duration) ([]store.Claim, error)
	settle func(context.Context, store.Claim, store.Settlement, store.Retention) error
}

func (s *scripted) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	if s.claim != nil {
		return s.claim(ctx, req)
	}
	return s.Store.Claim(ctx, req)
}

func (s *scripted) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
	if s.extend != nil {
		return s.extend(ctx, claims, lease)
	}
	return s.Store.Extend(ctx, claims, lease)
}

func (s *scripted) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	if s.settle != nil {
		return s.settle(ctx, c, out, keep)
	}
	return s.Store.Settle(ctx, c, out, keep)
}

func TestDuplicatesDoNotTakeTurnsAtAStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &scripted{Store: memory.New(memory.Options{})}
		st.claim = func(ctx context.Context, _ store.ClaimRequest) (store.Record, error) {
			<-ctx.Done()
			return store.Record{}, ctx.Err()
		}
		e := newEngine(t, st, stet.Options{})
		begun := time.Now()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if _, err := e.Begin(t.Context(), op); stet.KindOf(err) != stet.KindStore && stet.KindOf(err) != stet.KindInFlight {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(begun); took > 8*time.Second {
			t.Fatalf("the last of them was answered after %v", took)
		}
	})
}

func TestShortClassDoesNotTakeHeartbeatsFromOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &scripted{Store: memory.New(memory.Options{})}
		st.extend = func(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
			select {
			case <-time.After(20 * time.Millisecond):
				return st.Store.Extend(ctx, claims, lease)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		e := newEngine(t, st, stet.Options{
			Policy:  stet.Policy{Lease: time.Second},
			Classes: map[string]stet.Policy{"quick": {RunTimeout: 100 * time.Millisecond}},
		})
		run := begin(t, e, op)
		time.Sleep(30 * time.Second)
		if err := run.Context().Err(); err != nil {
			t.Fatal(context.Cause(run.Context()))
		}
		if err := run.Release(t.Context(), stet.Again{}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestHangingHeartbeatDoesNotHideALostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &scripted{Store: memory.New(memory.Options{})}
		st.extend = func(context.Context, []store.Claim, time.Duration) ([]store.Claim, error) {
			time.Sleep(10 * time.Minute) // obeys no context
			return nil, errDown
		}
		e := newEngine(t, st, stet.Options{})
		run := begin(t, e, op)
		begun := time.Now()
		<-run.Context().Done()
		if took := time.Since(begun); took > 36*time.Second || !errors.Is(context.Cause(run.Context()), stet.ErrLeaseLost) {
			t.Fatalf("%v after %v", context.Cause(run.Context()), took)
		}
	})
}

func TestHeartbeatBesideASettleLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rec recorder
		s := &scripted{Store: memory.New(memory.Options{})}
		s.settle = func(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
			err := s.Store.Settle(ctx, c, out, keep)
			time.Sleep(4 * time.Second) // the reply is slow
			return err
		}
		e := newEngine(t, s, stet.Options{Observer: &rec, SweepEvery: -1})
		run := begin(t, e, op)
		time.Sleep(9 * time.Second)
		if err := run.Settle(t.Context(), stet.Outcome{}); err != nil {
			t.Fatal(err)
		}
		if got := rec.take(); got != "claimed settled" {
			t.Fatal(got)
		}
	})
}

func TestVerifierIsNotAskedByHalf(t *testing.T) {
	for name, stale := range map[string]stet.Resolution{"fail": stet.ItHappened(stet.Outcome{Failed: true}), "take over": stet.MayRunAgain()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memory.New(memory.Options{})
				leaving, leave := context.WithCancel(t.Context())
				sick := true
				e := newEngine(t, store, stet.Options{Policy: stet.Policy{Stale: stale,
					Verify: func(ctx context.Context, _ stet.Status) (stet.Resolution, error) {
						leave() // the client hangs up
						if err := ctx.Err(); err != nil || sick {
							return stet.Resolution{}, errDown
						}
						return stet.ItHappened(stet.Outcome{Body: []byte(`"charged before"`)}), nil
					}}})
				die(t, store, op)
				runs := 0
				if _, err := stet.Do(leaving, e, op, charge(&runs)); stet.KindOf(err) != stet.KindUnknown || runs != 0 {
					t.Fatalf("while the verifier fails: %v, %d runs", err, runs)
				}
				sick = false
				if res, err := stet.Do(t.Context(), e, op, charge(&runs)); err != nil || res.Value != "charged before" || runs != 0 {
					t.Fatalf("%+v, %v, %d runs", res, err, runs)
				}
			})
		})
	}
}

func TestVerifierThatBeginsItsOwnOperationDoesNotHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Options{})
		var e *stet.Engine
		var inner error
		e = newEngine(t, store, stet.Options{Policy: stet.Policy{Verify: func(context.Context, stet.Status) (stet.Resolution, error) {
			_, inner = e.Begin(t.Context(), op)
			return stet.CannotKnow(), nil
		}}})
		die(t, store, op)
		if _, err := e.Begin(t.Context(), op); stet.KindOf(err) != stet.KindUnknown || stet.KindOf(inner) != stet.KindInFlight {
			t.Fatalf("%v, inside %v", err, inner)
		}
	})
}

func TestClassCanChooseToMarkUnknown(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{
		Policy:  stet.Policy{Stale: stet.MayRunAgain()},
		Classes: map[string]stet.Policy{"payment": {Stale: stet.CannotKnow()}, "read": {}},
	})
	if p, _ := e.Policy("payment"); p.Stale.State() != store.Unknown {
		t.Error(p.Stale.State())
	}
	if p, _ := e.Policy("read"); p.Stale.State() != store.Retryable {
		t.Error(p.Stale.State())
	}
}

func TestLateSettleCannotReplaceAnExpiredFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newSpy()
		policy := stet.Policy{RunTimeout: time.Minute, Stale: stet.ItHappened(stet.Outcome{Failed: true}), Retention: store.Retention{Result: time.Minute}}
		zombie := begin(t, newEngine(t, st, stet.Options{Policy: policy}), op)
		time.Sleep(3 * time.Minute)
		runs := 0
		if _, err := stet.Do(t.Context(), newEngine(t, st, stet.Options{Policy: policy}), op, charge(&runs)); stet.KindOf(err) != stet.KindFailed {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if err := zombie.Settle(t.Context(), stet.Outcome{Failed: true, Body: []byte(`"declined"`)}); stet.KindOf(err) != stet.KindFenced {
			t.Fatal(err)
		}
	})
}
