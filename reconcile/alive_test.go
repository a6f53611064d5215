package reconcile_test

import (
	"context"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/reconcile"
	"github.com/stet-go/stet/store"
)

// What a run that is not dead begins while its verifier looks was not among what
// the resolution is about.
func TestRunBeingVerifiedBeginsNoStep(t *testing.T) {
	for name, verify := range map[string]func(context.Context, stet.Status) (stet.Resolution, error){
		"a verdict": func(context.Context, stet.Status) (stet.Resolution, error) { return stet.ItDidNotHappen(), nil },
		"a policy":  nil,
	} {
		inMemory(t, stet.Options{Policy: stet.Policy{Stale: stet.MayRunAgain()}}, func(t *testing.T, b *bench) {
			id := b.accepted("k", "")
			dying, err := stet.New(b.store, stet.Options{SweepEvery: -1})
			must(t, err)
			run, err := dying.Take(ctx, stet.Item{ID: id, Name: "ship"})
			must(t, err)
			must(t, dying.Close())
			time.Sleep(time.Minute)
			begun := 0
			report := b.pass(reconcile.Options{Verify: func(ctx context.Context, st stet.Status) (stet.Resolution, error) {
				_, err := stet.StepOnce(run.Context(), "charge", func(context.Context) (int, error) { begun++; return 0, nil })
				if stet.KindOf(err) != stet.KindFenced {
					t.Errorf("%s: the step: %v", name, err)
				}
				if verify == nil {
					return stet.CannotKnow(), nil
				}
				return verify(ctx, st)
			}})
			if begun != 0 || report.Again != 1 {
				t.Errorf("%s: begun %d times, %+v", name, begun, report)
			}
			b.is(id, store.Accepted)
		})
	}
}
