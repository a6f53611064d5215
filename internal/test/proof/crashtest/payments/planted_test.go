package payments

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/store"
)

// defect is a defect that services or stores really had. It is planted in every process.
type defect struct {
	mode    Mode
	promise string // that the judge must find broken
	plant   func(*service)
	without []fault.Point
}

// broken is a store with a defect, below what records its calls.
type broken struct {
	store.Store
	claim  func(context.Context, store.Store, store.ClaimRequest) (store.Record, error)
	settle func(context.Context, store.Store, store.Claim, store.Settlement, store.Retention) error
	as     func(store.Claim) store.Claim // what the claim of a write is to the store
	lease  time.Duration                 // of every claim; 0: the requested one
}

func (b *broken) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	if b.lease > 0 {
		req.Lease = b.lease
	}
	if b.claim == nil {
		return b.Store.Claim(ctx, req)
	}
	return b.claim(ctx, b.Store, req)
}

func (b *broken) Extend(ctx context.Context, cs []store.Claim, lease time.Duration) ([]store.Claim, error) {
	if b.lease > 0 {
		lease = b.lease
	}
	return b.Store.Extend(ctx, cs, lease)
}

func (b *broken) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	if b.as != nil {
		c = b.as(c)
	}
	if b.settle == nil {
		return b.Store.Settle(ctx, c, out, keep)
	}
	return b.settle(ctx, b.Store, c, out, keep)
}

func (b *broken) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	if b.as != nil {
		c = b.as(c)
	}
	return b.Store.Release(ctx, c, keep)
}

// stored plants a store.
func stored(b broken) func(*service) {
	return func(s *service) {
		b.Store = s.site.Store
		s.site.Recorded = crashtest.Record(&b, s.history)
	}
}

var defects = map[string]defect{
	"it charges twice": {MarkUnknown, crashtest.OneEffect, func(s *service) {
		charge := s.charge
		s.charge = func(ctx context.Context, e crashtest.Effect) error {
			twice := e
			twice.ID += "-again"
			return errors.Join(charge(ctx, e), charge(ctx, twice))
		}
	}, nil},
	"it reports a charge that it has not made": {Tx, crashtest.Acknowledged, func(s *service) {
		s.charge = func(context.Context, crashtest.Effect) error { return nil }
	}, nil},
	"scopes share their keys": {Tx, crashtest.Scope, func(s *service) {
		s.scope = func(*http.Request) (string, error) { return "everybody", nil }
	}, nil},
	"replays differ": {Tx, crashtest.Stable, func(s *service) {
		wrap, n := s.wrap, new(atomic.Int64)
		s.wrap = func(next http.Handler) http.Handler {
			return wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(w, r)
				fmt.Fprint(w, n.Add(1), s.Process)
			}))
		}
	}, nil},
	"replays are not marked": {MarkUnknown, crashtest.Stable, func(s *service) {
		wrap := s.wrap
		s.wrap = func(next http.Handler) http.Handler {
			return wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(unmarked{w}, r) }))
		}
	}, nil},
	"the verifier guesses": {Verify, crashtest.OneEffect, func(s *service) {
		s.verify = func(context.Context, stet.Status) (stet.Resolution, error) { return stet.ItDidNotHappen(), nil }
	}, nil},
	"an expired run is run again": {MarkUnknown, crashtest.OneEffect, stored(broken{
		claim: func(ctx context.Context, s store.Store, req store.ClaimRequest) (store.Record, error) {
			rec, err := s.Claim(ctx, req)
			if err == nil && rec.State == store.Unknown {
				if err := s.Release(ctx, store.Claim{ID: rec.ID, Owner: rec.Owner, Fence: rec.Fence}, store.Retention{}); err == nil {
					return s.Claim(ctx, req)
				}
			}
			return rec, err
		},
	}), nil},
	"another request gets the answer": {MarkUnknown, crashtest.Mismatch, stored(broken{
		claim: func(ctx context.Context, s store.Store, req store.ClaimRequest) (store.Record, error) {
			rec, err := s.Claim(ctx, req)
			if stet.KindOf(err) == stet.KindMismatch {
				if there, err := s.Read(ctx, req.ID); err == nil && there.State.Settled() {
					there.Fingerprint = req.Fingerprint
					return there, nil
				}
			}
			return rec, err
		},
	}), nil},
	"an acknowledged outcome is gone": {MarkUnknown, crashtest.Linear, stored(broken{
		settle: func(ctx context.Context, s store.Store, c store.Claim, out store.Settlement, keep store.Retention) error {
			if c.ID[len(c.ID)-1]%4 == 0 {
				return nil
			}
			return s.Settle(ctx, c, out, keep)
		},
	}), nil},
	"leases are shorter than was asked for": {MarkUnknown, crashtest.Leasing, func(s *service) {
		s.lease = time.Minute                      // so that the end of a short one is seen in that time on a slow machine, too
		stored(broken{lease: serviceLease / 3})(s) // shorter than some runs
	}, []fault.Point{fault.HeartbeatBefore, fault.HeartbeatAfter}},
	"fences start again": {MarkUnknown, crashtest.Fencing, func(s *service) {
		var real sync.Map // owner → fence
		stored(broken{
			claim: func(ctx context.Context, s store.Store, req store.ClaimRequest) (store.Record, error) {
				rec, err := s.Claim(ctx, req)
				real.Store(rec.Owner, rec.Fence)
				rec.Fence = min(rec.Fence, 1)
				return rec, err
			},
			as: func(c store.Claim) store.Claim {
				if fence, ok := real.Load(c.Owner); ok {
					c.Fence, _ = fence.(int64)
				}
				return c
			},
		})(s)
	}, nil},
}

// unmarked takes the mark of a replay away.
type unmarked struct{ http.ResponseWriter }

func (u unmarked) WriteHeader(status int) {
	u.Header().Del("Idempotent-Replayed")
	u.ResponseWriter.WriteHeader(status)
}

func init() {
	plant = func(s *service) { defects[s.Defect].plant(s) }
}

// load tests are as many as a defect may take to show itself: which processes die in
// which moment is chance.
const loadTests = 8

func TestPlantedDefectsAreFound(t *testing.T) {
	for name, d := range defects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var found []string
			for seed := range uint64(loadTests) {
				cfg := Config{Place: crashtest.Place{Kind: crashtest.SQLite}, Mode: d.mode, Seed: seed + 1, Kills: 12, defect: name, without: d.without}
				rep, err := Run(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				for _, v := range rep.Violations {
					if v.Promise == d.promise {
						return
					}
				}
				found = rep.Summary(1)
				t.Logf("loadTest %d shows only %q", seed+1, found)
			}
			t.Errorf("the judge has not found that %q is broken: %q", d.promise, found)
		})
	}
}
