package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// TestDidItExecuteIsAnsweredAlikeAfterTheResultIsGone, or more carefully: never
// "executed" where it may not have been.
func TestDidItExecuteIsAnsweredAlikeAfterTheResultIsGone(t *testing.T) {
	stale := stet.Options{SweepEvery: -1, Policy: stet.Policy{Stale: stet.ItHappened(stet.Outcome{Failed: true})}}
	for name, c := range map[string]struct {
		o            stet.Options
		before       func(*testing.T, *stet.Engine, store.Store)
		stands, gone stet.Execution
		kind         stet.Kind // while it stands
		cause        error     // which it wraps then
	}{
		"completed": {stale, func(t *testing.T, e *stet.Engine, _ store.Store) {
			_, _ = stet.Do(t.Context(), e, op, func(context.Context) (string, error) { return "done", nil })
		}, stet.Executed, stet.Executed, 0, nil},
		"failed": {stale, func(t *testing.T, e *stet.Engine, _ store.Store) {
			_, _ = stet.Do(t.Context(), e, op, func(context.Context) (string, error) { return "", errors.New("declined") })
		}, stet.MayHaveExecuted, stet.MayHaveExecuted, stet.KindFailed, nil},
		"stale": {stale, func(t *testing.T, _ *stet.Engine, s store.Store) { die(t, s, op) },
			stet.MayHaveExecuted, stet.MayHaveExecuted, stet.KindFailed, nil},
		"cancelled before any run": {stale, func(t *testing.T, e *stet.Engine, _ store.Store) { cancelled(t, e, accept(t, e, op, parcel)) },
			stet.NotExecuted, stet.NotExecuted, stet.KindFailed, stet.ErrCancelled},
		"cancelled between two runs": {stale, func(t *testing.T, e *stet.Engine, _ store.Store) {
			it := accept(t, e, op, parcel)
			run, err := e.Take(t.Context(), it)
			if err == nil {
				err = run.Release(t.Context(), stet.Again{After: time.Minute})
			}
			if err != nil {
				t.Fatal(err)
			}
			cancelled(t, e, it)
		}, stet.MayHaveExecuted, stet.MayHaveExecuted, stet.KindFailed, stet.ErrCancelled},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := memory.New(memory.Options{})
			e := newEngine(t, store, c.o)
			c.before(t, e, store)
			never := func(context.Context) (string, error) { t.Error("ran"); return "", nil }
			res, err := stet.Do(t.Context(), e, op, never)
			if got := stet.ExecutionOf(err); stet.KindOf(err) != c.kind || c.cause != nil && !errors.Is(err, c.cause) || err == nil && !res.Replayed || err != nil && got != c.stands {
				t.Errorf("%s: %v", name, err)
			}
			rec, _ := store.Read(t.Context(), e.ID(op.Scope, op.Key))
			if err := store.Expire(t.Context(), rec.Claim()); err != nil {
				t.Fatal(err)
			}
			if _, err := stet.Do(t.Context(), e, op, never); stet.KindOf(err) != stet.KindExpired || stet.ExecutionOf(err) != c.gone {
				t.Errorf("%s, and its result is gone: %v", name, err)
			}
		})
	}
}

func cancelled(t *testing.T, e *stet.Engine, it stet.Item) {
	t.Helper()
	if st, err := e.Cancel(t.Context(), op.Scope, it.ID); err != nil || st.Record.State != store.Failed {
		t.Fatalf("%+v, %v", st, err)
	}
}

// hasty is a store whose transactions find, once they have run, that another one
// was faster.
type hasty struct{ *memory.Store }

func (s hasty) RunTx(ctx context.Context, req store.ClaimRequest, _ store.Retention,
	fn func(context.Context, int, store.Record) (store.Settlement, error)) (store.Record, error) {
	rec := store.Record{ID: req.ID, State: store.Running, Fingerprint: req.Fingerprint, Owner: req.Owner, Fence: 7, Attempt: 1}
	if _, err := fn(ctx, 1, rec); err != nil {
		return rec, err
	}
	other := req
	other.Owner = store.NewOwner()
	won, err := s.Claim(ctx, other)
	if err == nil {
		err = s.Settle(ctx, won.Claim(), store.Settlement{State: store.Completed, Result: store.Result{Body: []byte("\x01theirs")}}, store.Retention{Result: time.Hour, Tombstone: time.Hour})
	}
	if err != nil {
		return rec, err
	}
	return s.Read(ctx, req.ID)
}

func (hasty) SettleTx(context.Context, int, store.Claim, store.Settlement, store.Retention) error {
	return errors.ErrUnsupported
}

// TestTransactionThatLostToAnotherIsNotReportedAsSettled: nor is the other one, by
// this process.
func TestTransactionThatLostToAnotherIsNotReportedAsSettled(t *testing.T) {
	var kinds []observe.Kind
	e := newEngine(t, hasty{memory.New(memory.Options{})}, stet.Options{SweepEvery: -1, Observer: observe.Func(func(_ context.Context, ev observe.Event) {
		kinds = append(kinds, ev.Kind)
	})})
	s := e.Store().(hasty)
	_, _ = txOf(e, s).Run(t.Context(), op, func(context.Context, int) (stet.Outcome, error) {
		return stet.Outcome{Body: []byte("ours")}, nil
	})
	if want := []observe.Kind{observe.Claimed, observe.Released, observe.Replayed}; len(kinds) != 3 || kinds[0] != want[0] || kinds[1] != want[1] || kinds[2] != want[2] {
		t.Errorf("observed %v, want %v", kinds, want)
	}
}

// unrested is a store whose first transaction of a key ends in the middle: the
// record is retryable when it looks again, and settled after that.
type unrested struct {
	*memory.Store
	rounds int
}

func (s *unrested) RunTx(ctx context.Context, req store.ClaimRequest, _ store.Retention,
	fn func(context.Context, int, store.Record) (store.Settlement, error)) (store.Record, error) {
	rec := store.Record{ID: req.ID, State: store.Running, Fingerprint: req.Fingerprint, Owner: req.Owner, Fence: 7, Attempt: 1}
	if s.rounds++; s.rounds > 1 {
		return s.Read(ctx, req.ID)
	}
	if _, err := fn(ctx, 1, rec); err != nil {
		return rec, err
	}
	rec.State, rec.Owner = store.Retryable, store.NewOwner()
	return rec, nil
}

func (*unrested) SettleTx(context.Context, int, store.Claim, store.Settlement, store.Retention) error {
	return errors.ErrUnsupported
}

// TestOutcomeOfAnotherIsNotReportedAsSettledAfterALostRound.
func TestOutcomeOfAnotherIsNotReportedAsSettledAfterALostRound(t *testing.T) {
	store := &unrested{Store: memory.New(memory.Options{})}
	settle(t, store.Store, stet.Options{}, op, "theirs")
	settled := 0
	e := newEngine(t, store, stet.Options{SweepEvery: -1, Observer: observe.Func(func(_ context.Context, ev observe.Event) {
		if ev.Kind == observe.Settled {
			settled++
		}
	})})
	run, err := txOf(e, store).Run(t.Context(), op, func(context.Context, int) (stet.Outcome, error) {
		return stet.Outcome{Body: []byte("ours")}, nil
	})
	if err != nil || !run.Replayed() || string(run.Outcome().Body) != "theirs" || settled != 0 {
		t.Errorf("%v; %d settled", err, settled)
	}
}
