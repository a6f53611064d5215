package redis_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredislib "github.com/redis/go-redis/v9"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
)

// demote makes a server a replica of another.
func demote(t *testing.T, master, next *rig.RedisServer) {
	t.Helper()
	host, port, _ := net.SplitHostPort(next.Addr())
	if _, err := master.CLI(t.Context(), "REPLICAOF", host, port); err != nil {
		t.Fatal(err)
	}
	stettest.Eventually(t, "it is in step", func() bool {
		info, err := master.CLI(t.Context(), "INFO", "replication")
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
}

func TestClaimOnADemotedMasterIsRefused(t *testing.T) {
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			master, next := rig.NewRedis(t, rig.RedisOptions{}), rig.NewRedis(t, rig.RedisOptions{})
			s := open(t, dial(t, l, master.Addr()), redis.Options{CheckEvery: -1})
			demote(t, master, next)
			rec, err := s.Claim(t.Context(), request("new"))
			mustContain(t, err, "is a replica")
			if rec.State != store.None {
				t.Errorf("a replica has granted %+v", rec)
			}
		})
	}
}

// A client closes its connections to a server that replies READONLY, and then finds the server
// that took its place.
func TestClientFindsTheNewMasterBehindAName(t *testing.T) {
	master, next := rig.NewRedis(t, rig.RedisOptions{}), rig.NewRedis(t, rig.RedisOptions{})
	var named atomic.Value
	named.Store(master.Addr())
	lib := goredislib.NewClient(&goredislib.Options{MaxRetries: -1, ContextTimeoutEnabled: true, PoolSize: 8,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, named.Load().(string))
		}})
	defer lib.Close()
	c, err := goredis.New(lib)
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, c, redis.Options{CheckEvery: -1})
	together(t, 32, 5, func(int) error { _, err := s.Claim(t.Context(), request(stet.NewKey())); return err })
	named.Store(next.Addr())
	demote(t, master, next)
	end := time.Now().Add(time.Minute)
	together(t, 32, 1, func(int) error {
		for {
			_, err := s.Claim(t.Context(), request(stet.NewKey()))
			if err == nil || time.Now().After(end) {
				return err
			}
		}
	})
}
