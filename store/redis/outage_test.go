package redis_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	goredislib "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
	stetrueidis "github.com/stet-go/stet/store/redis/rueidis"
)

// asTheyAre are the libraries with their own timeouts.
var asTheyAre = []library{
	{"go-redis", func(addrs []string) (conn, error) { return goredis.Open(&goredislib.UniversalOptions{Addrs: addrs}) }},
	{"rueidis", func(addrs []string) (conn, error) {
		return stetrueidis.Open(rueidis.ClientOption{InitAddress: addrs})
	}},
}

// outages are ways for a server to go.
var outages = map[string]func(*rig.RedisServer) error{
	"paused": func(s *rig.RedisServer) error { return s.Pause() },
	"killed": func(s *rig.RedisServer) error { return s.Kill() },
}

// lame is a cluster of three whose healthy servers continue without the others: Redis's
// default is that they refuse everything.
func lame(t *testing.T) *rig.RedisCluster {
	t.Helper()
	return rig.NewRedisCluster(t, 3, rig.RedisOptions{Settings: map[string]string{"cluster-require-full-coverage": "no", "cluster-allow-reads-when-down": "yes"}})
}

// eachOutage runs a test with each library and each way for a server to go.
func eachOutage(t *testing.T, f func(t *testing.T, cluster *rig.RedisCluster, c conn, end func(server int))) {
	for _, l := range asTheyAre {
		for _, name := range slices.Sorted(maps.Keys(outages)) {
			t.Run(name+", "+l.name, func(t *testing.T) {
				t.Parallel()
				cluster := lame(t)
				f(t, cluster, dial(t, l, cluster.Addrs()...), func(server int) {
					if err := outages[name](cluster.Servers[server]); err != nil {
						t.Fatal(err)
					}
				})
			})
		}
	}
}

// serverOf returns which of three servers has a record.
func serverOf(t *testing.T, cluster *rig.RedisCluster, id store.ID) int {
	t.Helper()
	out, err := cluster.Servers[0].CLI(context.Background(), "CLUSTER", "KEYSLOT", recordKey("x", id))
	if err != nil {
		t.Fatal(err)
	}
	var slot int
	if _, err := fmt.Sscan(strings.TrimSpace(out), &slot); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if slot < (i+1)*16384/3 {
			return i
		}
	}
	return 3
}

func TestRunsOnHealthyServersContinueWhileOneIsDown(t *testing.T) {
	const runs, lease, victim = 300, 12 * time.Second, 2 // a healthy server has a sixth of that to answer
	t.Parallel()
	eachOutage(t, func(t *testing.T, cluster *rig.RedisCluster, c conn, end func(int)) {
		s := open(t, c, redis.Options{})
		e := stettest.Engine(t, s, stet.Options{Policy: stet.Policy{Lease: lease}})
		healthy := make(map[store.ID]*stet.Lease)
		for i := range runs {
			r, err := e.Begin(t.Context(), stet.Op{Scope: "s", Key: fmt.Sprint(i)})
			if err != nil {
				t.Fatal(err)
			}
			if i%10 != 0 || serverOf(t, cluster, r.ID()) != victim { // to look at a few is enough
				if i%10 == 0 {
					healthy[r.ID()] = r
				}
			}
		}
		end(victim)
		gone := time.Now()
		for time.Since(gone) < 3*lease {
			for _, r := range healthy {
				if err := context.Cause(r.Context()); err != nil {
					t.Fatalf("%v after the server had gone, a run on another one was cancelled: %v", time.Since(gone), err)
				}
			}
			time.Sleep(20 * time.Millisecond) // between two looks
		}
		for id := range healthy {
			if rec := mustRead(t, s, id); rec.LeaseLeft <= 0 || rec.State != store.Running {
				t.Errorf("a run on a healthy server is %v, and its lease has %v left", rec.State, rec.LeaseLeft)
			}
		}
	})
}

func TestExtendAndSweepNameTheRecordsNotReached(t *testing.T) {
	const records, victim = 60, 2
	t.Parallel()
	eachOutage(t, func(t *testing.T, cluster *rig.RedisCluster, c conn, end func(int)) {
		s := open(t, c, redis.Options{})
		var live, lapsed []store.Claim
		there := make(map[store.ID]bool) // on the server that goes
		for i := range records {
			req := request(fmt.Sprint(i))
			if req.Lease = time.Minute; i%2 == 1 {
				req.Lease = time.Millisecond
			}
			claim := mustClaim(t, s, req).Claim()
			there[req.ID] = serverOf(t, cluster, req.ID) == victim
			if i%2 == 1 {
				lapsed = append(lapsed, claim)
			} else {
				live = append(live, claim)
			}
		}
		last := lapsed[len(lapsed)-1]
		stettest.Eventually(t, "the last lease runs out", func() bool { return mustRead(t, s, last.ID).LeaseLeft <= 0 })
		end(victim)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // of which the healthy have half
		lost, err := s.Extend(ctx, append(live, store.Claim{ID: live[0].ID, Fence: 1}), time.Hour)
		cancel()
		partial, ok := errors.AsType[*store.PartialError](err)
		if !ok {
			t.Fatalf("Extend: lost %d, %v; want a PartialError", len(lost), err)
		}
		for _, claim := range live {
			named := slices.Contains(partial.Claims, claim)
			if named != there[claim.ID] {
				t.Errorf("a record on the server that has gone: %v; that could not be reached: %v", there[claim.ID], named)
			}
			if !there[claim.ID] && mustRead(t, s, claim.ID).LeaseLeft < time.Minute {
				t.Error("a claim that is neither lost nor named was not renewed")
			}
		}
		if n := len(lost); n > 1 || n == 0 && !there[live[0].ID] {
			t.Errorf("%d claims are lost; want the one with another fence", n)
		}
		want, marked, partly := 0, 0, false
		for _, claim := range lapsed {
			if !there[claim.ID] {
				want++
			}
		}
		// A healthy server that is busy may be too late for one sweep, which says so; the next one marks unknown the rest.
		for more, end := true, time.Now().Add(time.Minute); more || marked < want && time.Now().Before(end); {
			swept, err := s.Sweep(t.Context(), 100)
			_, ok := errors.AsType[*store.PartialError](err)
			if err != nil && !ok {
				t.Fatalf("Sweep: %v; want a PartialError", err)
			}
			marked, partly, more = marked+swept.MarkedUnknown, partly || ok, swept.More
		}
		if marked != want || !partly {
			t.Errorf("%d became unknown of %d on healthy servers; a PartialError came: %v", marked, want, partly)
		}
	})
}

func TestWorkOnHealthyServersIsDueWhileOneIsGone(t *testing.T) {
	t.Parallel()
	for _, victim := range []int{0, 1, 2} { // one of them has the schedule
		t.Run(fmt.Sprint(victim), func(t *testing.T) {
			t.Parallel()
			eachOutage(t, func(t *testing.T, cluster *rig.RedisCluster, c conn, end func(int)) {
				s := open(t, c, redis.Options{})
				want := make(map[store.ID]bool)
				for range 40 {
					if id := wait(t, s, toRun); serverOf(t, cluster, id) != victim {
						want[id] = true
					}
				}
				end(victim)
				for end := time.Now().Add(time.Minute); len(want) > 0; {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					recs, err := s.Due(ctx, 100, time.Hour)
					cancel()
					for _, rec := range recs {
						delete(want, rec.ID)
					}
					if time.Now().After(end) {
						t.Fatalf("%d on healthy servers were not due: %v", len(want), err)
					}
				}
			})
		})
	}
}
