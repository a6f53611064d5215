package redis_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
)

// Each of them keeps a connection for as long as it waits.
func TestCallersThatWaitForReplicasStarveNoHeartbeat(t *testing.T) {
	const callers = 200
	for _, l := range asTheyAre {
		t.Run(l.name, func(t *testing.T) {
			master := rig.NewRedis(t, rig.RedisOptions{})
			replica := rig.NewRedis(t, rig.RedisOptions{ReplicaOf: master})
			s := open(t, dial(t, l, master.Addr()), redis.Options{Replicas: 1, ReplicaTimeout: 10 * time.Second})
			live := mustClaim(t, s, request("live")).Claim()
			if err := replica.Pause(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for ctx.Err() == nil {
						_, _ = s.Claim(ctx, request(stet.NewKey()))
					}
				})
			}
			defer wg.Wait()
			defer func() {
				cancel()
				_ = replica.Resume() // which ends their waits
			}()
			stettest.Eventually(t, "many wait for the replica", func() bool {
				info, err := master.CLI(t.Context(), "INFO", "clients")
				return err == nil && !strings.Contains(info, "blocked_clients:0") && !strings.Contains(info, "blocked_clients:1\r")
			})
			begun := time.Now()
			lost, err := s.Extend(t.Context(), []store.Claim{live}, time.Minute)
			if took := time.Since(begun); err != nil || len(lost) != 0 || took > 8*time.Second {
				t.Errorf("after %v: lost %v, %v", took, lost, err)
			}
			short, end := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer end()
			if rec, err := s.Claim(short, request(stet.NewKey())); err == nil {
				t.Errorf("a claim that no replica has: %+v", rec)
			}
		})
	}
}
