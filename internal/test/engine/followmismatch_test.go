package engine_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// elsewhere is a store in which another process runs op in a transaction: it refuses other
// requests, and cannot say what that one asks for.
type elsewhere struct{ *memory.Store }

func (elsewhere) Claim(_ context.Context, req store.ClaimRequest) (store.Record, error) {
	time.Sleep(100 * time.Millisecond)
	rec := store.Record{ID: req.ID, State: store.Running, InTx: true}
	if req.Fingerprint != stet.NewFingerprint([]byte("that runs")) {
		return rec, store.ErrMismatch
	}
	rec.Fingerprint = req.Fingerprint
	return rec, nil
}

func TestRetryThatFollowsAnotherRequestIsNoMismatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, elsewhere{memory.New(memory.Options{})}, stet.Options{SweepEvery: -1})
		same, another := op, op
		same.Fingerprint, another.Fingerprint = stet.NewFingerprint([]byte("that runs")), stet.NewFingerprint([]byte("another"))
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := e.Begin(t.Context(), another); stet.KindOf(err) != stet.KindMismatch {
				t.Errorf("another request: %v", err)
			}
		})
		time.Sleep(10 * time.Millisecond)
		if _, err := e.Begin(t.Context(), same); stet.KindOf(err) != stet.KindInFlight {
			t.Errorf("the request that runs: %v; want in flight", err)
		}
		wg.Wait()
	})
}

// ending is a store in which a transaction of another process ends during the first claim:
// the store cannot compare its fingerprint any more, and reports the operation as running.
type ending struct {
	*memory.Store
	first store.Fingerprint
}

func (s ending) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	if req.Fingerprint != s.first {
		return s.Store.Claim(ctx, req)
	}
	time.Sleep(100 * time.Millisecond)
	return store.Record{ID: req.ID, State: store.Running, InTx: true, Fingerprint: req.Fingerprint}, nil
}

func TestRetryThatFollowsAnotherRequest_WhileATransactionEnds_IsReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		another := op
		another.Fingerprint = stet.NewFingerprint([]byte("another"))
		s := ending{memory.New(memory.Options{}), another.Fingerprint}
		run, err := newEngine(t, s, stet.Options{SweepEvery: -1}).Begin(t.Context(), op)
		if err != nil {
			t.Fatal(err)
		}
		complete(t, run, "1")
		e := newEngine(t, s, stet.Options{SweepEvery: -1})
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := e.Begin(t.Context(), another); stet.KindOf(err) != stet.KindInFlight {
				t.Errorf("another request: %v", err)
			}
		})
		time.Sleep(10 * time.Millisecond)
		if run, err := e.Begin(t.Context(), op); err != nil || !run.Replayed() {
			t.Errorf("the request that was charged: %v; want its outcome", err)
		}
		wg.Wait()
	})
}
