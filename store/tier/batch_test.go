package tier_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/tier"
)

// groups counts the calls of a store with groups. Those of RunGroup fail if fails is true.
type groups struct {
	*postgres.Store
	alone, together, keys atomic.Int64
	fails                 bool
}

func (g *groups) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, pgx.Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	g.alone.Add(1)
	return g.Store.RunTx(ctx, req, keep, fn)
}

func (g *groups) RunGroup(ctx context.Context, reqs []store.ClaimRequest, keep []store.Retention,
	fn func(context.Context, pgx.Tx, int, store.Record) (store.Settlement, error)) ([]store.Record, error) {
	g.together.Add(1)
	g.keys.Add(int64(len(reqs)))
	if g.fails {
		return nil, errDown
	}
	return g.Store.RunGroup(ctx, reqs, keep, fn)
}

func TestConcurrentOutcomesShareATransaction(t *testing.T) {
	const n = 100
	for name, fails := range map[string]bool{"batches": false, "batches that fail": true} {
		t.Run(name, func(t *testing.T) {
			back := &groups{Store: openPostgres(t, rig.Postgres(t).Database(t)), fails: fails}
			s := over(t, openRedis(t, dial(t, rig.Redis(t).Addr())), back, tier.Options{})
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					c := mustClaim(t, s, request(fmt.Sprint(i))).Claim()
					if err := s.Settle(t.Context(), c, completed(fmt.Sprint("result ", i)), keep); err != nil {
						t.Errorf("Settle %d: %v", i, err)
					}
				})
			}
			wg.Wait()
			for i := range n {
				if rec := mustRead(t, back, request(fmt.Sprint(i)).ID); rec.State != store.Completed || string(rec.Result.Body) != fmt.Sprint("result ", i) {
					t.Errorf("SQL has outcome %d as %v, with the result %q", i, rec.State, rec.Result.Body)
				}
			}
			t.Logf("%d alone, %d together in %d transactions", back.alone.Load(), back.keys.Load(), back.together.Load())
			if back.together.Load() == 0 || back.together.Load() >= back.keys.Load() {
				t.Errorf("%d outcomes were inserted together, in %d transactions", back.keys.Load(), back.together.Load())
			}
		})
	}
}
