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

func TestRecordWithoutAKeyIsCountedAsBlind(t *testing.T) {
	asked := 0
	verify := func(context.Context, stet.Status) (stet.Resolution, error) { asked++; return happened, nil }
	inMemory(t, stet.Options{Policy: stet.Policy{Verify: verify, Stale: stet.MayRunAgain()}}, func(t *testing.T, b *bench) {
		id := b.unknown("k", "")
		if got := b.pass(reconcile.Options{}); got != (reconcile.Report{Looked: 1, Blind: 1}) || asked != 0 {
			t.Errorf("%+v, asked %d times; want it left, and counted", got, asked)
		}
		b.is(id, store.Unknown)
	})
}

func TestPanicLeavesTheRecordAndIsReported(t *testing.T) {
	boom := func() { panic("boom") }
	for name, o := range map[string]reconcile.Options{
		"Verify": {Verify: func(context.Context, stet.Status) (stet.Resolution, error) { boom(); return stet.CannotKnow(), nil }},
		"Select": {Select: func(stet.Status) bool { boom(); return true }},
		"Audit":  {Audit: func(context.Context, reconcile.Entry) error { boom(); return nil }},
	} {
		inMemory(t, stet.Options{Policy: stet.Policy{Stale: stet.MayRunAgain()}}, func(t *testing.T, b *bench) {
			id := b.unknown("k", "")
			if got := b.pass(o); got != (reconcile.Report{Looked: 1, Errors: 1}) {
				t.Errorf("%s panics: %+v; want an error", name, got)
			}
			b.is(id, store.Unknown)
		})
	}
}

func TestEndOfAnExpiredRunKeepsLabelAndAttempt(t *testing.T) {
	inMemory(t, stet.Options{Policy: stet.Policy{Outside: true}}, func(t *testing.T, b *bench) {
		req := store.ClaimRequest{ID: b.engine.ID("shop", "k"), Scope: store.DigestScope("", "shop"), Owner: store.NewOwner(), Lease: time.Minute,
			Outside: true, Label: store.Label{Name: "POST /payments", Ref: "order 7"}}
		_, err := b.store.Claim(ctx, req)
		must(t, err)
		time.Sleep(2 * time.Minute)
		b.pass(reconcile.Options{})
		if rec := b.record(req.ID); rec.State != store.Retryable || rec.Attempt != 1 || rec.Label != req.Label || rec.Owner != req.Owner {
			t.Errorf("after a pass: %v, attempt %d, %+v", rec.State, rec.Attempt, rec.Label)
		}
	})
}

// A verifier that looks in the books by key finds nothing under an empty one.
func TestVerifierByKeyIsNotCalledWithoutAKey(t *testing.T) {
	var asked []stet.Op
	verify := func(_ context.Context, st stet.Status) (stet.Resolution, error) {
		asked = append(asked, st.Op)
		if st.Op.Key == "a" { // the books
			return happened, nil
		}
		return stet.ItDidNotHappen(), nil
	}
	inMemory(t, stet.Options{Policy: stet.Policy{Verify: verify}}, func(t *testing.T, b *bench) {
		op := b.op("a", "")
		op.Ref = "order 7"
		run, err := b.engine.Begin(ctx, op)
		must(t, err)
		must(t, run.MarkUnknown(ctx))
		if got := b.pass(reconcile.Options{}); got != (reconcile.Report{Looked: 1, Blind: 1}) || len(asked) != 0 {
			t.Errorf("%+v, the verifier was asked about %+v; want it left, and nothing asked", got, asked)
		}
		b.is(run.ID(), store.Unknown)
		again, err := b.engine.Begin(ctx, op)
		if err != nil || !again.Replayed() {
			t.Errorf("a retry: %+v, %v; want what the books say", again, err)
		}
	})
}

// The resolution is about the steps before the verification.
func TestRunBeingVerifiedBeginsNoStep(t *testing.T) {
	for name, verify := range map[string]func(context.Context, stet.Status) (stet.Resolution, error){
		"a verifier": func(context.Context, stet.Status) (stet.Resolution, error) { return stet.ItDidNotHappen(), nil },
		"a policy":   nil,
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
			b.unknown("a", "")
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
