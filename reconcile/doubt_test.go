package reconcile_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/reconcile"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// interrupted is a store in which another process acts after each Take.
type interrupted struct {
	*memory.Store
	act func(store.Record)
}

func (s interrupted) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	rec, err := s.Store.Take(ctx, req)
	s.act(rec)
	return rec, err
}

// Select has seen the attempt before. The verifier must not be asked about another attempt.
func TestAttemptThatBeginsDuringAPassIsLeft(t *testing.T) {
	inMemory(t, stet.Options{}, func(t *testing.T, b *bench) {
		id := b.lapsed("a")
		e, err := stet.New(interrupted{b.store, func(rec store.Record) {
			must(t, b.engine.Resolve(ctx, rec, "", stet.ItDidNotHappen()))
			b.parked("a", "")
		}}, stet.Options{SweepEvery: -1})
		must(t, err)
		defer e.Close()
		asked := 0
		r, err := reconcile.New(e, reconcile.Options{ErrorLog: slog.New(slog.DiscardHandler), Verify: func(context.Context, stet.Status) (stet.Resolution, error) {
			asked++
			return happened, nil
		}})
		must(t, err)
		got, err := r.Pass(ctx)
		if want := (reconcile.Report{Looked: 1, Changed: 1}); err != nil || got != want || asked != 0 {
			t.Errorf("%+v, %v, asked %d times; want %+v", got, err, asked, want)
		}
		b.is(id, store.Unknown)
	})
}

// charging begins the step "charge" of a run. The step ends unknown.
func charging(t *testing.T, run *stet.Lease) {
	t.Helper()
	_, err := stet.StepOnce(run.Context(), "charge", func(context.Context) (int, error) { return 0, errors.New("no answer") })
	if stet.KindOf(err) != stet.KindUnknown {
		t.Errorf("the step: %v", err)
	}
}

// A dry run and the audit must not announce a next attempt that Resolve then refuses.
func TestOpenStep_IsMarkedUnknownBeforeAnyResolution(t *testing.T) {
	inMemory(t, stet.Options{Policy: stet.Policy{Stale: stet.MayRunAgain()}}, func(t *testing.T, b *bench) {
		id := b.accepted("a", "")
		run, err := b.engine.Take(ctx, stet.Item{ID: id, Name: "ship"})
		must(t, err)
		charging(t, run)
		must(t, run.MarkUnknown(ctx))
		for _, dry := range []bool{true, false} {
			got := b.pass(reconcile.Options{DryRun: dry, Audit: func(_ context.Context, e reconcile.Entry) error {
				if e.Stage != reconcile.Left {
					t.Errorf("dry %v: the audit has %q", dry, e.Stage)
				}
				return nil
			}})
			if want := (reconcile.Report{Looked: 1, Left: 1}); got != want {
				t.Errorf("dry %v: %+v; want %+v", dry, got, want)
			}
		}
		b.is(id, store.Unknown)
	})
}

// Older versions released runs with an open step. Such an operation cannot be failed.
func TestAcceptedOperationWithAnOpenStepIsNotFailed(t *testing.T) {
	inMemory(t, stet.Options{Policy: stet.Policy{Stale: stet.ItHappened(stet.Outcome{Failed: true})}}, func(t *testing.T, b *bench) {
		id := b.accepted("a", "")
		run, err := b.engine.Take(ctx, stet.Item{ID: id, Name: "ship"})
		must(t, err)
		charging(t, run)
		must(t, b.store.Return(ctx, b.record(id).Claim(), 0))
		time.Sleep(time.Hour)
		got := b.pass(reconcile.Options{AcceptedFor: time.Minute})
		if want := (reconcile.Report{Looked: 1, Left: 1}); got != want {
			t.Errorf("%+v; want %+v", got, want)
		}
		if rec := b.record(id); rec.State != store.Accepted || rec.Attempt != 1 {
			t.Errorf("%v, attempt %d; want it accepted, after 1 attempt", rec.State, rec.Attempt)
		}
	})
}
