package redis_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/rig"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/storetest"
)

// moving moves slots round a cluster until the test ends, and counts the moves.
func moving(t *testing.T, cluster *rig.RedisCluster) *atomic.Int64 {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	moves := new(atomic.Int64)
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := len(cluster.Servers); ctx.Err() == nil; moves.Add(1) {
			from := int(moves.Load()) % n
			if err := cluster.Move(context.Background(), from, (from+1)%n, 300); err != nil {
				t.Errorf("moving slots: %v", err)
				return
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return moves
}

// unbrowsed is a store without its Browse, which may show a record twice while
// slots move: SCAN does.
type unbrowsed struct {
	stet.Store
	stet.Watcher
	stet.Sweeper
}

func TestStoreKeepsTheContractWhileSlotsMove(t *testing.T) {
	t.Parallel()
	cluster := rig.NewRedisCluster(t, 3, rig.RedisOptions{})
	moves := moving(t, cluster)
	for _, l := range libraryOf("go-redis") {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			before := moves.Load()
			h := contract(dial(t, l, cluster.Addrs()...))
			h.Unit, h.Histories = 500*time.Millisecond, 2
			all := h.New
			h.New = func(t testing.TB) stet.Store {
				s := all(t).(*redis.Store)
				return unbrowsed{s, s, s}
			}
			storetest.Run(t, h)
			if moves.Load() == before {
				t.Error("nothing was moved meanwhile")
			}
		})
	}
}

func TestNothingRunsTwiceWhileSlotsMove(t *testing.T) {
	const keys, callers = 400, 8
	cluster := rig.NewRedisCluster(t, 3, rig.RedisOptions{})
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			s := open(t, dial(t, l, cluster.Addrs()...), redis.Options{})
			moves := moving(t, cluster)
			var engines []*stet.Engine
			for range 2 {
				e, err := stet.New(s, stet.Options{Policy: stet.Policy{Wait: 20 * time.Second}, StoreTimeout: 20 * time.Second, SweepEvery: -1})
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				engines = append(engines, e)
			}
			var runs [keys]atomic.Int64
			var wg sync.WaitGroup
			for caller := range callers {
				wg.Go(func() {
					for i := 0; i < keys || moves.Load() < 3; i++ {
						key := (i + caller*keys/callers) % keys
						res, err := stet.Do(t.Context(), engines[caller%2], stet.Op{Scope: "test", Key: fmt.Sprint(key)},
							func(context.Context) (int64, error) { return runs[key].Add(1), nil })
						if err != nil && !errors.Is(err, stet.ErrStore) || err == nil && res.Value != 1 {
							t.Errorf("Do: %+v, %v", res, err)
							return
						}
					}
				})
			}
			wg.Wait()
			for key := range runs {
				if n := runs[key].Load(); n != 1 {
					t.Errorf("operation %d ran %d times", key, n)
				}
			}
		})
	}
}
