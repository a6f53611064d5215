package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

func TestAbandonedClaimLeavesTheClaimOfAnotherOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newSpy()
		st.failClaim.Store(&errDown)
		cut := newEngine(t, st, stet.Options{SweepEvery: -1})
		run := begin(t, newEngine(t, st.Store, stet.Options{SweepEvery: -1}), op)
		if _, err := cut.Begin(t.Context(), op); stet.KindOf(err) != stet.KindStore {
			t.Fatalf("a claim that does not arrive: %v", err)
		}
		time.Sleep(5 * time.Second)
		if rec, err := st.Read(t.Context(), run.ID()); err != nil || rec.State != store.Running || rec.Fence != run.Fence() {
			t.Errorf("the other owner's claim is %+v, %v; want it running", rec, err)
		}
		if err := run.Settle(t.Context(), stet.Outcome{}); err != nil {
			t.Error(err)
		}
	})
}

// The record was forgotten meanwhile, and the key was used for another request.
func TestRunThatAServiceSettlesDoesNotReturnTheOutcomeOfAnotherRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newSpy()
		e := newEngine(t, st.Store, outside)
		run := begin(t, newEngine(t, &still{Store: st.Store}, outside), op)
		out, err := run.Do(t.Context(), nil, func(ctx context.Context) (stet.Outcome, error) {
			if err := st.Release(t.Context(), run.Claim, store.Retention{Result: time.Second, Tombstone: time.Second}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			another := op
			another.Fingerprint = stet.NewFingerprint([]byte("another"))
			if err := settleFor(t, st.Store, begin(t, e, another), "another"); err != nil {
				t.Error(err)
			}
			return stet.Outcome{}, nil
		})
		if stet.KindOf(err) != stet.KindInFlight || len(out.Body) > 0 {
			t.Errorf("the run ends with %q, %v; want no outcome", out.Body, err)
		}
	})
}
