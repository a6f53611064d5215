package engine_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// spy is a memory store whose calls can be counted, and made to fail.
type spy struct {
	*memory.Store
	claims, extends, extended, settles atomic.Int64
	failClaim, failExtend, failSettle  atomic.Pointer[error]
	failRelease                        atomic.Pointer[error]
	claimAfter                         bool // fail the claim after it took effect
}

func newSpy() *spy { return &spy{Store: memory.New(memory.Options{})} }

func (s *spy) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	s.claims.Add(1)
	if err := s.failClaim.Load(); err != nil {
		if s.claimAfter {
			_, _ = s.Store.Claim(ctx, req)
		}
		return store.Record{}, *err
	}
	return s.Store.Claim(ctx, req)
}

func (s *spy) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
	s.extends.Add(1)
	s.extended.Add(int64(len(claims)))
	if err := s.failExtend.Load(); err != nil {
		return nil, *err
	}
	return s.Store.Extend(ctx, claims, lease)
}

func (s *spy) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	s.settles.Add(1)
	if err := s.failSettle.Load(); err != nil {
		return *err
	}
	return s.Store.Settle(ctx, c, out, keep)
}

func (s *spy) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	if err := s.failRelease.Load(); err != nil {
		return *err
	}
	return s.Store.Release(ctx, c, keep)
}

var errDown = errors.New("connection refused")

// claimOf is the claim of a run, as the store has it.
func claimOf(t *testing.T, st store.Store, run *stet.Lease) store.Claim {
	t.Helper()
	rec, err := st.Read(t.Context(), run.ID())
	if err != nil || rec.Fence != run.Fence() {
		t.Fatalf("the record of the run: %+v, %v", rec, err)
	}
	return rec.Claim()
}

// shown is what an operator has seen of a run's record.
func shown(run *stet.Lease) store.Record { return store.Record{ID: run.ID(), Fence: run.Fence()} }

func begin(t *testing.T, e *stet.Engine, op stet.Op) *stet.Lease {
	t.Helper()
	run, err := e.Begin(t.Context(), op)
	if err != nil || run.Replayed() {
		t.Fatalf("Begin: %v", err)
	}
	return run
}

func TestLongRunKeepsItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSpy()
		e := newEngine(t, store, stet.Options{})
		run := begin(t, e, op)
		time.Sleep(4 * time.Minute)
		if _, err := newEngine(t, store, stet.Options{}).Begin(t.Context(), op); stet.KindOf(err) != stet.KindInFlight {
			t.Fatalf("a duplicate elsewhere: %v", err)
		}
		if err := run.Settle(t.Context(), stet.Outcome{}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestShortRunsCostNoHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSpy()
		e := newEngine(t, store, stet.Options{SweepEvery: -1})
		for range 20 {
			run := begin(t, e, stet.Op{Scope: "s", Key: stet.NewKey()})
			time.Sleep(9 * time.Second)
			if err := run.Settle(t.Context(), stet.Outcome{}); err != nil {
				t.Fatal(err)
			}
		}
		if n := store.extends.Load(); n != 0 {
			t.Fatalf("%d heartbeats", n)
		}
	})
}

func TestLeasesAreRenewedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSpy()
		e := newEngine(t, store, stet.Options{SweepEvery: -1})
		for range 500 {
			begin(t, e, stet.Op{Scope: "s", Key: stet.NewKey()})
		}
		time.Sleep(14 * time.Second)
		if calls, leases := store.extends.Load(), store.extended.Load(); calls != 1 || leases != 500 {
			t.Fatalf("%d calls for %d leases", calls, leases)
		}
	})
}

func TestLostLeaseCancelsTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newSpy()
		e := newEngine(t, st, stet.Options{})
		run := begin(t, e, op)
		if err := st.Release(t.Context(), claimOf(t, st, run), store.Retention{Result: time.Hour}); err != nil {
			t.Fatal(err) // as an operator might
		}
		<-run.Context().Done()
		if cause := context.Cause(run.Context()); !errors.Is(cause, stet.ErrLeaseLost) {
			t.Fatalf("cause %v", cause)
		}
		err := run.Settle(t.Context(), stet.Outcome{})
		if stet.KindOf(err) != stet.KindFenced || stet.ExecutionOf(err) != stet.MayHaveExecuted {
			t.Fatalf("settle: %v", err)
		}
	})
}

func TestUnreachableStoreCancelsTheHandlerWithinItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSpy()
		e := newEngine(t, store, stet.Options{})
		run := begin(t, e, op)
		store.failExtend.Store(&errDown)
		started := time.Now()
		<-run.Context().Done()
		if cause := context.Cause(run.Context()); !errors.Is(cause, stet.ErrLeaseLost) {
			t.Fatalf("cause %v", cause)
		}
		if took := time.Since(started); took < 30*time.Second || took > 36*time.Second {
			t.Fatalf("cancelled after %v of a lease of 30 s", took)
		}
		// No other claim was granted, so the outcome of the run is stored.
		if err := run.Settle(t.Context(), stet.Outcome{}); err != nil {
			t.Fatalf("late settle: %v", err)
		}
	})
}

func TestLateSettleIsAcceptedFromUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSpy()
		e := newEngine(t, store, stet.Options{})
		run := begin(t, e, op)
		store.failExtend.Store(&errDown)
		time.Sleep(time.Minute)
		if _, err := e.Begin(t.Context(), op); stet.KindOf(err) != stet.KindUnknown {
			t.Fatalf("a retry during the run: %v", err)
		}
		if err := run.Settle(t.Context(), stet.Outcome{Body: []byte("late")}); err != nil {
			t.Fatalf("late settle: %v", err)
		}
		again, err := e.Begin(t.Context(), op)
		if err != nil || string(again.Outcome().Body) != "late" {
			t.Fatalf("a retry afterwards: %v", err)
		}
	})
}

func TestRunTimeoutEndsContextAndHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSpy()
		e := newEngine(t, store, stet.Options{Policy: stet.Policy{RunTimeout: time.Minute}})
		run := begin(t, e, op)
		<-run.Context().Done()
		if cause := context.Cause(run.Context()); !errors.Is(cause, stet.ErrRunTimeout) {
			t.Fatalf("cause %v", cause)
		}
		time.Sleep(time.Minute)
		if rec, _ := store.Read(t.Context(), run.ID()); rec.LeaseLeft > 0 {
			t.Fatalf("the lease still has %v", rec.LeaseLeft)
		}
	})
}

func TestHandlerOutlivesItsCaller(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	ctx, leave := context.WithCancel(context.WithValue(t.Context(), ctxKey{}, "trace"))
	res, err := stet.Do(ctx, e, op, func(ctx context.Context) (string, error) {
		leave()
		return ctx.Value(ctxKey{}).(string), ctx.Err()
	})
	if err != nil || res.Value != "trace" {
		t.Fatalf("%+v, %v", res, err)
	}
	if res, err := stet.Do(t.Context(), e, op, func(context.Context) (string, error) { return "", nil }); err != nil || !res.Replayed {
		t.Fatalf("%+v, %v", res, err)
	}
}

type ctxKey struct{}

func TestLostClaimReplyDoesNotConflictWithItself(t *testing.T) {
	store := &lossy{Store: memory.New(memory.Options{}), lose: 1}
	e := newEngine(t, store, stet.Options{})
	runs := 0
	if res, err := stet.Do(t.Context(), e, op, charge(&runs)); err != nil || runs != 1 || res.Attempt != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
}

// lossy loses the reply of the first calls of Claim and Settle each.
type lossy struct {
	*memory.Store
	lose, lost int
}

func (s *lossy) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	rec, err := s.Store.Claim(ctx, req)
	if s.lost < s.lose {
		s.lost++
		return store.Record{}, errDown
	}
	return rec, err
}

func (s *lossy) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	err := s.Store.Settle(ctx, c, out, keep)
	if s.lost < 2*s.lose {
		s.lost++
		return errDown
	}
	return err
}

func TestUnacknowledgedClaimIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSpy()
		store.claimAfter = true
		e := newEngine(t, store, stet.Options{})
		store.failClaim.Store(&errDown)
		runs := 0
		_, err := stet.Do(t.Context(), e, op, charge(&runs))
		if stet.KindOf(err) != stet.KindStore || stet.ExecutionOf(err) != stet.NotExecuted || runs != 0 {
			t.Fatalf("%v, %d runs", err, runs)
		}
		store.failClaim.Store(nil)
		time.Sleep(time.Second)
		if res, err := stet.Do(t.Context(), e, op, charge(&runs)); err != nil || runs != 1 {
			t.Fatalf("%+v, %v: the lost claim became unknown", res, err)
		}
	})
}

// The caller received "not executed", so the record is released when the store is back.
func TestFailedRelease_IsRepeatedInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSpy()
		store.failRelease.Store(&errDown)
		e := newEngine(t, store, stet.Options{})
		_, err := stet.Do(t.Context(), e, op, func(context.Context) (string, error) { return "", stet.Retryable(errors.New("busy")) })
		if stet.KindOf(err) != stet.KindRetryable || stet.ExecutionOf(err) != stet.NotExecuted {
			t.Fatal(err)
		}
		store.failRelease.Store(nil)
		time.Sleep(time.Second)
		runs := 0
		if _, err := stet.Do(t.Context(), e, op, charge(&runs)); err != nil || runs != 1 {
			t.Fatalf("%v, %d runs", err, runs)
		}
	})
}

// Otherwise retries would be refused as in flight until the lease expires.
func TestFailedMarkUnknown_IsRepeatedInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newSpy()
		store.failExtend.Store(&errDown)
		e := newEngine(t, store, stet.Options{})
		_, err := stet.Do(t.Context(), e, op, doubtful(0, func() error { return nil }))
		if stet.KindOf(err) != stet.KindUnknown {
			t.Fatal(err)
		}
		store.failExtend.Store(nil)
		time.Sleep(time.Second)
		runs := 0
		if _, err := stet.Do(t.Context(), e, op, charge(&runs)); stet.KindOf(err) != stet.KindUnknown || runs != 0 {
			t.Fatalf("%v, %d runs", err, runs)
		}
	})
}
