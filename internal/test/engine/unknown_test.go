package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func doubtful(still time.Duration, then func() error) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		stet.FromContext(ctx).Declare(stet.MayHaveExecuted, still)
		return "", then()
	}
}

func TestVerifierIsNotAskedWhileTheEffectMayStillHappen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Options{})
		asked := 0
		e := newEngine(t, store, stet.Options{SweepEvery: -1, Policy: stet.Policy{
			Verify: func(context.Context, stet.Status) (stet.Resolution, error) {
				asked++
				return stet.ItDidNotHappen(), nil
			}}})
		_, err := stet.Do(t.Context(), e, op, doubtful(time.Hour, func() error { return nil }))
		if stet.KindOf(err) != stet.KindUnknown {
			t.Fatal(err)
		}
		runs := 0
		time.Sleep(59 * time.Minute)
		if _, err := stet.Do(t.Context(), e, op, charge(&runs)); stet.KindOf(err) != stet.KindInFlight || runs+asked != 0 {
			t.Fatalf("while it may still happen: %v, %d runs, asked %d times", err, runs, asked)
		}
		time.Sleep(2 * time.Minute)
		if _, err := stet.Do(t.Context(), e, op, charge(&runs)); err != nil || runs != 1 || asked != 1 {
			t.Fatalf("afterwards: %v, %d runs, asked %d times", err, runs, asked)
		}
	})
}

func TestLongestUnknownStepCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
		_, err := stet.Do(t.Context(), e, op, func(ctx context.Context) (string, error) {
			stet.FromContext(ctx).Declare(stet.MayHaveExecuted, time.Hour)
			return stet.StepOnce(ctx, "charge", func(context.Context) (string, error) { return "", errors.New("no answer") })
		})
		if stet.KindOf(err) != stet.KindUnknown {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Minute)
		runs := 0
		if _, err := stet.Do(t.Context(), e, op, charge(&runs)); stet.KindOf(err) != stet.KindInFlight {
			t.Errorf("while it may still happen: %v", err)
		}
	})
}

func TestMarkUnknownEndsARunOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		e := newEngine(t, st, stet.Options{SweepEvery: -1})
		run, err := e.Begin(t.Context(), op)
		if err != nil {
			t.Fatal(err)
		}
		if err := run.MarkUnknown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if run.Context().Err() == nil {
			t.Error("the run's context has not ended")
		}
		for _, err := range []error{run.MarkUnknown(t.Context()), run.Release(t.Context(), stet.Again{}), run.Settle(t.Context(), stet.Outcome{})} {
			if stet.KindOf(err) != stet.KindInvalid {
				t.Errorf("after MarkUnknown: %v", err)
			}
		}
		browse(t, st, store.Unknown)
	})
}

// vanishing is a store that another process writes to just before leases are extended.
type vanishing struct{ *memory.Store }

func (s vanishing) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
	for _, c := range claims {
		_ = s.Settle(ctx, c, store.Settlement{State: store.Completed}, store.Retention{Result: time.Hour, Tombstone: time.Hour})
	}
	return s.Store.Extend(ctx, claims, lease)
}

func TestMarkUnknownLeavesASettledOperation(t *testing.T) {
	st := memory.New(memory.Options{})
	e := newEngine(t, vanishing{st}, stet.Options{SweepEvery: -1})
	run, err := e.Begin(t.Context(), op)
	if err != nil {
		t.Fatal(err)
	}
	if err := run.MarkUnknown(t.Context()); stet.KindOf(err) != stet.KindFenced {
		t.Errorf("%v", err)
	}
	browse(t, st, store.Completed)
}

// slow is a store whose first extension waits for the gate.
type slow struct {
	*memory.Store
	gate  chan struct{}
	calls *atomic.Int32
}

func newSlow() slow {
	return slow{memory.New(memory.Options{}), make(chan struct{}), new(atomic.Int32)}
}

func (s slow) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
	if s.calls.Add(1) == 1 {
		<-s.gate
	}
	return s.Store.Extend(ctx, claims, lease)
}

// TestHeartbeatOnItsWayDoesNotCutTheTimeShort: a renewal that was sent before MarkUnknown
// must not put the lease back to its usual length.
func TestHeartbeatOnItsWayDoesNotCutTheTimeShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newSlow()
		e := newEngine(t, st, stet.Options{SweepEvery: -1})
		run, err := e.Begin(t.Context(), op)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second) // the heartbeat is at the gate
		run.Declare(stet.MayHaveExecuted, time.Hour)
		done := make(chan error, 1)
		go func() { done <- run.MarkUnknown(t.Context()) }()
		time.Sleep(time.Second)
		close(st.gate)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if rec, _ := st.Read(t.Context(), run.ID()); rec.State != store.Running || rec.LeaseLeft < 59*time.Minute {
			t.Errorf("the effect may take an hour yet: %v, %v left", rec.State, rec.LeaseLeft)
		}
	})
}

// If a service fails that all handlers call, all their runs end at once. Their store calls
// must not delay the renewal of other leases.
func TestManyRunsEndAtOnce_StoreCallsStayFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 500
		st := &busyStore{Store: memory.New(memory.Options{})}
		e := newEngine(t, st, stet.Options{SweepEvery: -1})
		done := make(chan error, n)
		for i := range n {
			op := op
			op.Key = fmt.Sprint(i)
			go func() {
				_, err := stet.Do(t.Context(), e, op, doubtful(time.Minute, func() error { return nil }))
				done <- err
			}()
		}
		for range n {
			if err := <-done; stet.KindOf(err) != stet.KindUnknown || stet.KindOf(errors.Unwrap(err)) == stet.KindStore {
				t.Fatal(err)
			}
		}
		if st.most > 16 {
			t.Errorf("%d store calls at the same time, want at most 16", st.most)
		}
		time.Sleep(2 * time.Minute)
		_, _ = st.Sweep(t.Context(), 2*n)
		if p, err := st.Browse(t.Context(), store.Query{States: []store.State{store.Unknown}, Limit: store.MaxBrowse}); err != nil || len(p.Records) != n {
			t.Errorf("%d of %d are unknown, %v", len(p.Records), n, err)
		}
	})
}

// busyStore takes 20 ms to extend a lease, and counts the calls in progress.
type busyStore struct {
	*memory.Store
	mu        sync.Mutex
	now, most int
}

func (s *busyStore) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
	count := func(n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.now += n
		s.most = max(s.most, s.now)
	}
	count(1)
	defer count(-1)
	time.Sleep(20 * time.Millisecond)
	return s.Store.Extend(ctx, claims, lease)
}

// TestZombieGetsNoSuccess_OtherOutcomeExpired: an operator expired the other outcome, or its
// class has a shorter retention.
func TestZombieGetsNoSuccess_OtherOutcomeExpired(t *testing.T) {
	byHand := func(b store.Browser, c store.Claim) { _ = b.Expire(t.Context(), c) }
	byItself := func(store.Browser, store.Claim) { time.Sleep(2 * time.Hour) }
	small, large := stet.Outcome{Body: []byte("Y")}, stet.Outcome{Gone: true}
	for name, tc := range map[string]struct {
		gone func(store.Browser, store.Claim)
		out  stet.Outcome
	}{
		"expired by hand":                     {byHand, small},
		"kept for less":                       {byItself, small},
		"expired by hand, and then too large": {byHand, large},
		"kept for less, and then too large":   {byItself, large},
	} {
		gone, out := tc.gone, tc.out
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(memory.Options{})
			first := newEngine(t, st, stet.Options{SweepEvery: -1})
			zombie, err := first.Begin(t.Context(), op)
			if err != nil {
				t.Fatal(err)
			}
			_ = first.Close() // no heartbeat any more
			time.Sleep(time.Minute)
			e := newEngine(t, st, stet.Options{SweepEvery: -1, Policy: stet.Policy{Retention: store.Retention{Result: time.Hour}}})
			if err := e.Resolve(t.Context(), shown(zombie), "", stet.ItHappened(stet.Outcome{Body: []byte("X")})); err != nil {
				t.Fatal(err)
			}
			if got, err := replayed(t, st, stet.Options{}, op); err != nil || got != "X" {
				t.Fatalf("%q, %v", got, err)
			}
			gone(st, claimOf(t, st, zombie))
			if err := zombie.Settle(t.Context(), out); stet.KindOf(err) != stet.KindFenced {
				t.Errorf("%s: a retry was given X, and the zombie's %q (gone: %v): %v", name, out.Body, out.Gone, err)
			}
		})
	}
}

// standing is a store whose clock continues while that of the process stands still, as
// in a virtual machine that is paused: leases run out within moments.
type standing struct {
	*memory.Store
	reads error
}

func (s *standing) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	lease := req.Lease
	req.Lease = time.Millisecond
	rec, err := s.Store.Claim(ctx, req)
	if rec.LeaseLeft > 0 {
		rec.LeaseLeft = lease
	}
	return rec, err
}

func (s *standing) Read(ctx context.Context, id store.ID) (store.Record, error) {
	if s.reads != nil {
		return store.Record{}, s.reads
	}
	return s.Store.Read(ctx, id)
}

// TestZombieIsFencedAtAnyClock: also if its read before the settle fails.
func TestZombieIsFencedAtAnyClock(t *testing.T) {
	for name, reads := range map[string]error{"a clock that stood still": nil, "a read that fails": errDown} {
		synctest.Test(t, func(t *testing.T) {
			store := &standing{Store: memory.New(memory.Options{})}
			first := newEngine(t, store, stet.Options{SweepEvery: -1})
			zombie := begin(t, first, op)
			_ = first.Close() // no heartbeat any more
			if reads != nil {
				time.Sleep(time.Hour)
			}
			time.Sleep(time.Second)
			e := newEngine(t, store, stet.Options{SweepEvery: -1})
			if err := e.Resolve(t.Context(), shown(zombie), "", stet.ItHappened(stet.Outcome{Body: []byte("X")})); err != nil {
				t.Fatal(err)
			}
			if got, err := replayed(t, store, stet.Options{}, op); err != nil || got != "X" {
				t.Fatalf("%q, %v", got, err)
			}
			if err := store.Expire(t.Context(), claimOf(t, store, zombie)); err != nil {
				t.Fatal(err)
			}
			store.reads = reads
			if err := zombie.Settle(t.Context(), stet.Outcome{Body: []byte("Y")}); stet.KindOf(err) != stet.KindFenced {
				t.Errorf("%s: a retry was given X, and the zombie's Y: %v", name, err)
			}
		})
	}
}
