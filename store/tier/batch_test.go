package tier_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	stopped, entered      chan struct{} // if not nil, RunTx waits for stopped
}

func (g *groups) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, pgx.Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	g.alone.Add(1)
	if g.stopped != nil {
		select {
		case g.entered <- struct{}{}:
		default:
		}
		<-g.stopped
	}
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

// SQL answers no insertion. Callers give up, and must not leave their outcomes in the queue.
func TestInsertionsOfEndedCallsAreNotQueued(t *testing.T) {
	const busy, gone = 4, 100
	back := &groups{Store: openPostgres(t, rig.Postgres(t).Database(t)), stopped: make(chan struct{}), entered: make(chan struct{}, busy)}
	s := over(t, openRedis(t, dial(t, rig.Redis(t).Addr())), back, tier.Options{})
	var wg sync.WaitGroup
	settle := func(ctx context.Context, i int) {
		c := mustClaim(t, s, request(fmt.Sprint("queued ", i))).Claim()
		wg.Go(func() { _ = s.Settle(ctx, c, completed("x"), keep) })
	}
	for i := range busy {
		settle(t.Context(), i)
	}
	for range busy {
		<-back.entered
	}
	ctx, cancel := context.WithCancel(t.Context())
	for i := range gone {
		settle(ctx, busy+i)
	}
	time.Sleep(200 * time.Millisecond) // most of them are queued
	cancel()
	time.Sleep(200 * time.Millisecond) // their calls end
	close(back.stopped)
	wg.Wait()
	if n := back.keys.Load(); n > 0 {
		t.Errorf("%d insertions of calls that had ended were still queued", n)
	}
}
