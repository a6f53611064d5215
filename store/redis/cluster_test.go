package redis_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
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
	store.Store
	store.Watcher
	store.Sweeper
}

func TestStoreKeepsTheContractWhileSlotsMove(t *testing.T) {
	t.Parallel()
	cluster := rig.NewRedisCluster(t, 3, rig.RedisOptions{})
	moves := moving(t, cluster)
	for _, l := range libraryOf("go-redis") {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			before := moves.Load()
			t.Cleanup(func() { // after all cases
				if moves.Load() == before {
					t.Error("nothing was moved in the meantime")
				}
			})
			h := contract(dial(t, l, cluster.Addrs()...), redis.Options{})
			h.Unit, h.Histories = 500*time.Millisecond, 2
			all := h.New
			h.New = func(t testing.TB) store.Store {
				s := all(t).(*redis.Store)
				return unbrowsed{s, s, s}
			}
			storetest.Run(t, h)
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
				e := stettest.Engine(t, s, stet.Options{Policy: stet.Policy{Wait: 20 * time.Second}, StoreTimeout: 20 * time.Second, SweepEvery: -1})
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
						if err != nil && stet.KindOf(err) != stet.KindStore || err == nil && res.Value != 1 {
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

// repairing is a client of a cluster that is repaired when it first returns an error.
type repairing struct {
	conn
	redis.Cluster
	once   sync.Once
	repair func()
}

func (m *repairing) Do(ctx context.Context, key string, args ...string) (any, error) {
	reply, err := m.conn.Do(ctx, key, args...)
	if err != nil {
		m.once.Do(m.repair)
	}
	return reply, err
}

// A server that has only just joined does not know whose all slots are.
func TestSlotThatServersDoNotKnowForAMomentIsWaitedFor(t *testing.T) {
	cluster := lame(t)
	all := func(args ...string) (err error) {
		for _, s := range cluster.Servers {
			_, e := s.CLI(t.Context(), append([]string{"CLUSTER"}, args...)...)
			err = errors.Join(err, e)
		}
		return err
	}
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			req := request(l.name)
			owner := cluster.Servers[serverOf(t, cluster, req.ID)]
			id, err := owner.CLI(t.Context(), "CLUSTER", "MYID")
			if err != nil {
				t.Fatal(err)
			}
			slot, err := owner.CLI(t.Context(), "CLUSTER", "KEYSLOT", recordKey("x", req.ID))
			if err != nil {
				t.Fatal(err)
			}
			stettest.Eventually(t, "no server knows whose the slot is", func() bool {
				_ = all("DELSLOTS", slot) // a server that does not know it either refuses
				for _, s := range cluster.Servers {
					if info, err := s.CLI(t.Context(), "CLUSTER", "INFO"); err != nil || !strings.Contains(info, "cluster_slots_assigned:16383") {
						return false
					}
				}
				return true
			})
			repaired := false
			c := dial(t, l, cluster.Addrs()...)
			s := open(t, &repairing{conn: c, Cluster: c.(redis.Cluster), repair: func() {
				repaired = true
				if err := all("SETSLOT", slot, "NODE", id); err != nil {
					t.Error(err)
				}
			}}, redis.Options{})
			if rec, err := s.Claim(t.Context(), req); err != nil || rec.Owner != req.Owner || !repaired {
				t.Errorf("Claim: %+v, %v; the slot was missing: %v", rec, err, repaired)
			}
		})
	}
}

// tallying is a client of a cluster that counts the commands it sends.
type tallying struct {
	conn
	redis.Cluster
	sent atomic.Int64
}

func (c *tallying) Do(ctx context.Context, key string, args ...string) (any, error) {
	c.sent.Add(1)
	return c.conn.Do(ctx, key, args...)
}

// A move that was broken off half way leaves a slot so permanently.
func TestRunsContinueWhileTheirSlotMoves(t *testing.T) {
	for _, l := range asTheyAre {
		t.Run(l.name, func(t *testing.T) {
			cluster := rig.NewRedisCluster(t, 3, rig.RedisOptions{})
			c, prefix := dial(t, l, cluster.Addrs()...), fresh()
			tally := &tallying{conn: c, Cluster: c.(redis.Cluster)}
			s := open(t, tally, redis.Options{Prefix: prefix})
			claims := claimMany(t, s, 6) // in two shards
			moved := claims[0].ID
			to := halfMoved(t, cluster, recordKey(prefix, moved))
			if out, err := cluster.Servers[to].CLI(t.Context(), "DBSIZE"); err != nil || out == "0" {
				t.Fatalf("nothing has moved: %s, %v", out, err)
			}
			begun, before := time.Now(), tally.sent.Load()
			lost, err := s.Extend(t.Context(), append(claims, store.Claim{ID: moved, Fence: 1}), time.Hour)
			if err != nil || len(lost) != 1 || lost[0].Fence != 1 {
				t.Errorf("Extend: lost %v, %v; want the one with another fence", lost, err)
			}
			// Two scripts, then one for each claim, and each twice where it is not known yet.
			if n := tally.sent.Load() - before; n > 20 {
				t.Errorf("it took %d commands; a move that does not end is waited for", n)
			}
			for _, claim := range claims { // Read needs all keys of a record in one place
				lease, _ := do(t, c, "GETRANGE", recordKey(prefix, claim.ID), "104", "111").(string)
				if end := time.UnixMicro(int64(binary.BigEndian.Uint64([]byte(lease)))); end.Before(begun.Add(time.Minute + time.Second)) {
					t.Errorf("the lease of a claim ends at %v", end)
				}
			}
		})
	}
}

// halfMoved moves one key of a slot to another server, which it returns, and leaves the
// others.
func halfMoved(t *testing.T, cluster *rig.RedisCluster, key string) (to int) {
	t.Helper()
	cli := func(server int, args ...string) string {
		out, err := cluster.Servers[server].CLI(t.Context(), args...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	slot := cli(0, "CLUSTER", "KEYSLOT", key)
	n, _ := strconv.Atoi(slot)
	from := 0
	for n >= (from+1)*16384/3 {
		from++
	}
	to = (from + 1) % 3
	cli(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", cli(from, "CLUSTER", "MYID"))
	cli(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", cli(to, "CLUSTER", "MYID"))
	host, port, _ := strings.Cut(cluster.Servers[to].Addr(), ":")
	cli(from, "MIGRATE", host, port, key, "0", "5000")
	return to
}
