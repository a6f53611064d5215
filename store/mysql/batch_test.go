package mysql

import (
	"context"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
)

// A fence is drawn when the batch is written. A later call of the same key belongs to the next batch.
func TestCallsOfOneKeyInABatchHaveDifferentFences(t *testing.T) {
	s := openStore(t, Options{})
	req, owner := request("job"), store.NewOwner()
	call := func(apply func(now micros, r *row) (store.Record, error)) *op {
		return &op{ctx: context.Background(), id: req.ID, apply: apply, done: make(chan struct{})}
	}
	accept := call(func(now micros, r *row) (store.Record, error) {
		err := r.claim(now, claiming{&req, []byte("work"), 0})
		return r.at(now), err
	})
	take := call(func(now micros, r *row) (store.Record, error) {
		err := r.take(now, store.TakeRequest{ID: req.ID, Owner: owner, Lease: time.Minute})
		return r.whole(now), err
	})
	s.run([]*op{accept, take})
	if accept.err != nil || take.err != nil || accept.rec.Fence <= 0 || take.rec.Fence <= accept.rec.Fence {
		t.Errorf("accepted with fence %d, %v; taken with %d, %v", accept.rec.Fence, accept.err, take.rec.Fence, take.err)
	}
	if rec := mustRead(t, s, req.ID); rec.Fence != take.rec.Fence || rec.Owner != owner {
		t.Errorf("the record is %+v", rec)
	}
}

func TestSweepSkipsLockedRecords(t *testing.T) {
	s := openStore(t, Options{})
	locked, other := mustClaim(t, s, request("locked")), mustClaim(t, s, request("other"))
	tx, err := s.DB().Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if err := s.SettleTx(t.Context(), tx, locked.Claim(), completed("by tx"), keep); err != nil {
		t.Fatal(err)
	}
	s.advance(2 * time.Minute)
	if swept, err := s.Sweep(t.Context(), 10); err != nil || swept.MarkedUnknown != 1 {
		t.Errorf("Sweep beside a locked record: %+v, %v", swept, err)
	}
	if rec := mustRead(t, s, other.ID); rec.State != store.Unknown {
		t.Errorf("the other record is %v", rec.State)
	}
}
