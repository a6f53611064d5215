package redis_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
)

// counting counts what a client's replies list, and lists in them.
type counting struct {
	redis.Client
	listed atomic.Int64
}

func (c *counting) Do(ctx context.Context, key string, args ...string) (any, error) {
	reply, err := c.Client.Do(ctx, key, args...)
	c.count(reply)
	return reply, err
}

func (c *counting) count(reply any) {
	list, _ := reply.([]any)
	c.listed.Add(int64(len(list)))
	for _, inner := range list {
		c.count(inner)
	}
}

// countingCluster is a counting of a cluster.
type countingCluster struct{ *counting }

func (c countingCluster) Servers(ctx context.Context) (map[string]redis.Client, error) {
	return c.Client.(redis.Cluster).Servers(ctx)
}

// load claims n records in two shards that are next to each other.
func claimMany(t *testing.T, s *redis.Store, n int) (claims []store.Claim) {
	t.Helper()
	for i := range n {
		req := request(fmt.Sprint(i))
		req.ID[8], req.ID[9] = 0, byte(7+i%2)
		claims = append(claims, mustClaim(t, s, req).Claim())
	}
	return claims
}

var stuck = []store.State{store.Running, store.Unknown}

func TestOnePageOfTheStuckReadsABoundedNumber(t *testing.T) {
	const records, bound = 1500, 256
	addrs := cluster(t)
	for _, l := range libraries {
		single := &counting{Client: dial(t, l, rig.Redis(t).Addr())}
		several := &counting{Client: dial(t, l, addrs...)}
		for name, of := range map[string]struct {
			redis.Client
			*counting
			lists int64 // that are read together
		}{"single": {single, single, 1}, "cluster": {countingCluster{several}, several, 2}} {
			t.Run(name+", "+l.name, func(t *testing.T) {
				s := open(t, of.Client, redis.Options{CheckEvery: -1})
				claimMany(t, s, records)
				for pages, q := 0, (store.Query{States: stuck, Limit: 1}); pages < 20; pages++ {
					of.listed.Store(0)
					page, err := s.Browse(t.Context(), q)
					if err != nil || len(page.Records) != 1 || page.Next == "" {
						t.Fatalf("page %d: %+v, %v", pages, page, err)
					}
					q.After = page.Next
					// The lists, their entries, and three answers for each of the few records read.
					if n := of.listed.Load(); n > of.lists*bound+64+64+3*64 {
						t.Errorf("page %d, of one record, has read %d values; %d records are running", pages, n, records)
					}
				}
			})
		}
	}
}

func TestPagesOfTheStuckContinueWhileLeasesMove(t *testing.T) {
	eachServers(t, func(t *testing.T, c conn) {
		s := open(t, c, redis.Options{})
		claims := claimMany(t, s, 600)
		n := 0
		got := browseAll(t, s, store.Query{States: stuck, Limit: 50}, func() {
			// A heartbeat puts those of a shard into another order of leases.
			for i := n % 3; i < len(claims); i += 3 {
				if _, err := s.Extend(t.Context(), claims[i:i+1], time.Hour+time.Duration(len(claims)-i)*time.Second); err != nil {
					t.Fatal(err)
				}
			}
			n++
		})
		if len(got) != len(claims) {
			t.Errorf("%d records came; want %d", len(got), len(claims))
		}
	})
}

func TestScopeWithoutTheStuckIsBrowsedInBoundedPages(t *testing.T) {
	addr := rig.Redis(t).Addr()
	c := &counting{Client: dial(t, libraries[1], addr)}
	s := open(t, c, redis.Options{CheckEvery: -1})
	claimMany(t, s, 5000)
	q := store.Query{States: stuck, Scope: store.DigestScope("", "unused"), Limit: 10}
	for pages := 1; ; pages++ {
		c.listed.Store(0)
		page, err := s.Browse(t.Context(), q)
		if err != nil || len(page.Records) != 0 {
			t.Fatalf("page %d: %d records, %v", pages, len(page.Records), err)
		}
		if n := c.listed.Load(); n > 16*(256*4+256) {
			t.Errorf("page %d has read %d values", pages, n)
		}
		if q.After = page.Next; q.After == "" {
			if pages < 2 {
				t.Error("5000 records were looked at for one page")
			}
			return
		}
	}
}
