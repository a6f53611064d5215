package engine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// lame is a store of which a part is down: it renews the claims of the others at once,
// and then waits for that part without effect.
type lame struct {
	*memory.Store
	down map[store.ID]bool
}

func (s *lame) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
	var up, down []store.Claim
	for _, c := range claims {
		if s.down[c.ID] {
			down = append(down, c)
		} else {
			up = append(up, c)
		}
	}
	lost, err := s.Store.Extend(ctx, up, lease)
	if err != nil || len(down) == 0 {
		return lost, err
	}
	<-ctx.Done()
	return lost, &store.PartialError{Claims: down, Cause: ctx.Err()}
}

func TestRunsContinue_PartOfTheStoreIsDown(t *testing.T) {
	const runs = 4500 // more than are renewed in one call
	synctest.Test(t, func(t *testing.T) {
		s := &lame{memory.New(memory.Options{}), make(map[store.ID]bool)}
		for i := 0; i < runs; i += 900 {
			s.down[store.Digest("", "s", fmt.Sprint(i))] = true
		}
		e := newEngine(t, s, stet.Options{SweepEvery: -1, Policy: stet.Policy{Lease: 2 * time.Second, RunTimeout: time.Hour}})
		var up, down []*stet.Lease
		for i := range runs {
			r := begin(t, e, stet.Op{Scope: "s", Key: fmt.Sprint(i)})
			if s.down[r.ID()] {
				down = append(down, r)
			} else {
				up = append(up, r)
			}
		}
		time.Sleep(time.Minute)
		lost := 0
		for _, r := range up {
			rec, err := s.Read(t.Context(), r.ID())
			if context.Cause(r.Context()) != nil || err != nil || rec.LeaseLeft <= 0 {
				lost++
			}
		}
		if lost > 0 {
			t.Errorf("%d of %d runs lost their leases, for %d whose part of the store is down", lost, len(up), len(down))
		}
		for _, r := range down {
			if !errors.Is(context.Cause(r.Context()), stet.ErrLeaseLost) {
				t.Error("a run without a renewed lease was not cancelled")
			}
		}
	})
}
