package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// gated is a store whose claims wait until the gate opens.
type gated struct {
	*memory.Store
	gate chan struct{}
}

func (s gated) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	<-s.gate
	return s.Store.Claim(ctx, req)
}

// TestMismatchIsReturned_CallerJoinsAReplay: a call that follows another one of its
// process into a settled record is compared like any other.
func TestMismatchIsReturned_CallerJoinsAReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Options{})
		settle(t, store, stet.Options{}, op, "of the first request")
		s := gated{store, make(chan struct{})}
		e := newEngine(t, s, stet.Options{})
		begin := func(op stet.Op) <-chan error {
			done := make(chan error, 1)
			go func() {
				_, err := e.Begin(t.Context(), op)
				done <- err
			}()
			synctest.Wait() // until it is at the gate, or follows who is
			return done
		}
		leader := begin(op)
		other := op
		other.Fingerprint = stet.NewFingerprint([]byte("another request"))
		follower := begin(other)
		close(s.gate)
		if err := <-leader; err != nil {
			t.Errorf("the leader: %v", err)
		}
		if err := <-follower; stet.KindOf(err) != stet.KindMismatch {
			t.Errorf("a follower with another request: %v", err)
		}
	})
}

// sweeping is a store whose first claim is granted, marked unknown by a sweep, and then
// reported as failed.
type sweeping struct {
	*memory.Store
	claims int
}

func (s *sweeping) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	rec, err := s.Store.Claim(ctx, req)
	if s.claims++; s.claims == 1 {
		time.Sleep(2 * req.Lease)
		_, _ = s.Sweep(ctx, 10)
		return store.Record{}, errors.New("the reply was lost")
	}
	return rec, err
}

// Nothing ran under a claim whose reply was lost, so its own caller may claim again.
func TestOwnClaimThatBecameUnknownIsClaimedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &sweeping{Store: memory.New(memory.Options{})}
		e := newEngine(t, st, stet.Options{SweepEvery: -1, Policy: stet.Policy{Lease: store.MinLease}})
		runs := 0
		res, err := stet.Do(t.Context(), e, op, charge(&runs))
		if err != nil || runs != 1 || res.Attempt != 2 {
			t.Fatalf("%+v, %v, %d runs", res, err, runs)
		}
	})
}

// unseeing is a store whose transactions begin before other commits are visible.
type unseeing struct{ *memory.Store }

func (s unseeing) Read(ctx context.Context, id store.ID) (store.Record, error) {
	if ctx.Value(unseeingKey{}) != nil {
		return store.Record{ID: id}, nil
	}
	return s.Store.Read(ctx, id)
}

type unseeingKey struct{}

func (s unseeing) RunTx(ctx context.Context, req store.ClaimRequest, _ store.Retention,
	fn func(context.Context, int, store.Record) (store.Settlement, error)) (store.Record, error) {
	rec := store.Record{ID: req.ID, State: store.Running, Fingerprint: req.Fingerprint, Owner: req.Owner, Fence: 7, Attempt: 1}
	if _, err := fn(ctx, 1, rec); err != nil {
		return rec, err
	}
	now, err := s.Store.Read(ctx, req.ID)
	return now, errors.Join(err, store.ErrMismatch)
}

func (unseeing) SettleTx(context.Context, int, store.Claim, store.Settlement, store.Retention) error {
	return errors.ErrUnsupported
}

// TestTransactionWithoutEffectRefusesNoOtherCall: the transaction of
// another request began just before this operation was committed elsewhere. It will be
// refused, and must not refuse retries of this operation until then.
func TestTransactionWithoutEffectRefusesNoOtherCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := unseeing{memory.New(memory.Options{})}
		settle(t, store.Store, stet.Options{}, op, "committed")
		e := newEngine(t, store, stet.Options{})
		other := op
		other.Fingerprint = stet.NewFingerprint([]byte("another request"))
		_, err := txOf(e, store).Run(context.WithValue(t.Context(), unseeingKey{}, true), other, func(context.Context, int) (stet.Outcome, error) {
			never := func(context.Context, int) (stet.Outcome, error) { t.Error("ran"); return stet.Outcome{}, nil }
			run, err := txOf(e, store).Run(t.Context(), op, never)
			if err != nil || !run.Replayed() || string(run.Outcome().Body) != "committed" {
				t.Errorf("a retry of a committed operation: %v", err)
			}
			third := op
			third.Fingerprint = stet.NewFingerprint([]byte("a third request"))
			if _, err := txOf(e, store).Run(t.Context(), third, never); stet.KindOf(err) != stet.KindMismatch {
				t.Errorf("a third request: %v", err)
			}
			return stet.Outcome{}, nil
		})
		if stet.KindOf(err) != stet.KindMismatch {
			t.Errorf("the other request: %v", err)
		}
	})
}
