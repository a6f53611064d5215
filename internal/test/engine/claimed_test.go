package engine_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// TestRunAfterASlowVerifierHasItsWholeLease: what counts is when the claim was
// sent that was granted, not when the call came.
func TestRunAfterASlowVerifierHasItsWholeLease(t *testing.T) {
	for _, way := range []string{"called", "accepted"} {
		synctest.Test(t, func(t *testing.T) {
			store := memory.New(memory.Options{})
			var effects, verified int
			e := newEngine(t, store, stet.Options{SweepEvery: -1, Policy: stet.Policy{Lease: time.Second,
				Verify: func(context.Context, stet.Status) (stet.Resolution, error) {
					if verified++; verified == 1 {
						time.Sleep(3 * time.Second)
					}
					if effects > 0 {
						return stet.ItHappened(stet.Outcome{Gone: true}), nil
					}
					return stet.ItDidNotHappen(), nil
				}}})
			take := func() (*stet.Lease, error) { return e.Begin(t.Context(), op) }
			if way == "accepted" {
				st, err := e.Accept(t.Context(), op, stet.Work{Name: "w"})
				if err != nil {
					t.Fatal(err)
				}
				it := stet.Item{ID: st.Record.ID, Name: "w"}
				abandoned(t, store, it)
				take = func() (*stet.Lease, error) { return e.Take(t.Context(), it) }
			} else {
				die(t, store, op)
			}
			run, err := take()
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Second) // of work, which does not obey its context
			effects++
			if cause := context.Cause(run.Context()); cause != nil {
				t.Errorf("%s: the context of a run that is alive ended: %v", way, cause)
			}
			if again, err := take(); stet.KindOf(err) != stet.KindInFlight {
				t.Errorf("%s: a retry during the run: %v, %v", way, again, err)
			}
			if err := run.Settle(t.Context(), stet.Outcome{}); err != nil {
				t.Error(way, err)
			}
		})
	}
}

// tardy is a store whose claims take a while to arrive, or whose first replies are
// slow to be lost.
type tardy struct {
	*memory.Store
	way     time.Duration // of each claim
	losses  int           // of replies
	lost    time.Duration // until a reply is found to be lost
	claims  atomic.Int64
	extends atomic.Int64
	fail    atomic.Bool // Extend
}

func (s *tardy) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	rec, err := s.Store.Claim(ctx, req)
	if s.claims.Add(1) <= int64(s.losses) {
		time.Sleep(s.lost)
		return store.Record{}, errDown
	}
	time.Sleep(s.way)
	return rec, err
}

func (s *tardy) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
	s.extends.Add(1)
	if s.fail.Load() {
		return nil, errDown
	}
	return s.Store.Extend(ctx, claims, lease)
}

// TestRunNeverBeginsWithALeaseThatIsNearlyOver: where the claim was slow, or was
// repeated because its reply was lost, the lease is renewed before anything runs.
func TestRunNeverBeginsWithALeaseThatIsNearlyOver(t *testing.T) {
	for name, store := range map[string]*tardy{
		"slow":           {way: 900 * time.Millisecond},
		"slower":         {way: 3 * time.Second},
		"repeated":       {losses: 1, lost: 900 * time.Millisecond},
		"repeated twice": {losses: 2, lost: 600 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			store.Store = memory.New(memory.Options{})
			e := newEngine(t, store, stet.Options{SweepEvery: -1, Policy: stet.Policy{Lease: time.Second}})
			run, err := e.Begin(t.Context(), op)
			if err != nil {
				t.Fatal(name, err)
			}
			if left := leaseLeft(t, store, run); left < time.Second/3 {
				t.Errorf("%s: the run begins with %v of its lease", name, left)
			}
			time.Sleep(5 * time.Second)
			if cause := context.Cause(run.Context()); cause != nil {
				t.Errorf("%s: %v", name, cause)
			}
			if err := run.Settle(t.Context(), stet.Outcome{}); err != nil {
				t.Error(name, err)
			}
		})
	}
}

func leaseLeft(t *testing.T, st store.Store, run *stet.Lease) time.Duration {
	t.Helper()
	rec, err := st.Read(t.Context(), run.ID())
	if err != nil || rec.State != store.Running || rec.Fence != run.Fence() {
		t.Fatalf("%+v, %v", rec, err)
	}
	return rec.LeaseLeft
}

// TestClaimWithoutAHeldLeaseRunsNothing: the claim is released.
func TestClaimWithoutAHeldLeaseRunsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &tardy{Store: memory.New(memory.Options{}), way: 900 * time.Millisecond}
		store.fail.Store(true)
		e := newEngine(t, store, stet.Options{SweepEvery: -1, Policy: stet.Policy{Lease: time.Second}})
		runs := 0
		_, err := stet.Do(t.Context(), e, op, charge(&runs))
		if stet.KindOf(err) != stet.KindStore || stet.ExecutionOf(err) != stet.NotExecuted || runs != 0 {
			t.Fatalf("%v, %d runs", err, runs)
		}
		store.way = 0
		time.Sleep(5 * time.Second)
		if res, err := stet.Do(t.Context(), e, op, charge(&runs)); err != nil || runs != 1 {
			t.Fatalf("%+v, %v", res, err)
		}
	})
}

// TestRepeatedClaimHasTheRestOfItsLease: the reply to its first call was lost.
func TestRepeatedClaimHasTheRestOfItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &tardy{Store: memory.New(memory.Options{}), losses: 1, lost: 500 * time.Millisecond}
		e := newEngine(t, store, stet.Options{SweepEvery: -1, Policy: stet.Policy{Lease: time.Second}})
		run, err := e.Begin(t.Context(), op)
		if err != nil {
			t.Fatal(err)
		}
		store.fail.Store(true) // nothing renews it from here on
		left := leaseLeft(t, store, run)
		began := time.Now()
		<-run.Context().Done()
		if took := time.Since(began); took > left+time.Second/6 {
			t.Errorf("with %v of its lease left, the run was ended after %v", left, took)
		}
	})
}
