package stetwork_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
)

// TestOutsideOperationEndsBeforeItRuns: one whose cancellation was asked for, and one whose
// runs have all died, ends also where a service settles.
func TestOutsideOperationEndsBeforeItRuns(t *testing.T) {
	inMemory(t, stetwork.Options{MaxAttempts: 1}, stet.Policy{Outside: true}, func(t *testing.T, b *bench) {
		runs := 0
		must(t, stetwork.HandleOutcome(b.worker, "ship", true, func(ctx context.Context, run *stet.Lease) (stet.Outcome, error) {
			runs++
			if _, err := b.engine.Cancel(ctx, "shop", run.ID()); err != nil {
				t.Error(err)
			}
			return stet.Outcome{}, stetwork.Again(errors.New("not reached"), func(time.Duration) stet.Again { return stet.Again{Uncounted: true} })
		}))
		id := b.accept("ship", "cancelled")
		dead := b.accept("ship", "dead")
		if _, err := b.engine.Store().(store.WorkStore).Take(t.Context(), store.TakeRequest{ID: dead, Owner: store.NewOwner(), Lease: time.Second, Repeatable: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		b.runs()
		time.Sleep(time.Minute)
		synctest.Wait()
		if st := b.status(id); st.Record.State != store.Failed || st.Outcome.Reason != store.ReasonCancelled || runs != 1 {
			t.Errorf("cancelled: %v, attempt %d, after %d runs", st.Record.State, st.Record.Attempt, runs)
		}
		if st := b.status(dead); st.Record.State != store.Failed {
			t.Errorf("exhausted: %v, attempt %d", st.Record.State, st.Record.Attempt)
		}
	})
}
