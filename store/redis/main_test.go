package redis_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	goredislib "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
	stetrueidis "github.com/stet-go/stet/store/redis/rueidis"
	"go.uber.org/goleak"
)

// After a refresh, a cluster's client of rueidis sleeps for five seconds, even when
// it was closed.
func TestMain(m *testing.M) {
	// Most of the tests that run side by side wait for a server's clock.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(withCluster{rig.Main(m)}, goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"))
}

// withCluster ends the cluster after the last test.
type withCluster struct{ m interface{ Run() int } }

func (w withCluster) Run() int {
	code := w.m.Run()
	if clusterRig != nil {
		if err := clusterRig.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "the cluster:", err)
			code = max(code, 1)
		}
	}
	return code
}

var clusterRig *rig.Rig

var startCluster = sync.OnceValues(func() (c *rig.RedisCluster, err error) {
	if clusterRig, err = rig.New(); err != nil {
		return nil, err
	}
	return clusterRig.StartRedisCluster(context.Background(), 3, rig.RedisOptions{})
})

// cluster returns the addresses of the cluster that all tests share which move no
// slots.
func cluster(t testing.TB) []string {
	t.Helper()
	c, err := startCluster()
	if err != nil {
		t.Fatal(err)
	}
	return c.Addrs()
}

// conn is what both adapters make.
type conn interface {
	redis.Client
	redis.Listener
	redis.Pipeliner
	Close() error
}

// library is a client library, and a short name for it.
type library struct {
	name string
	open func(addrs []string) (conn, error)
}

var libraries = []library{
	{"go-redis", func(addrs []string) (conn, error) {
		return goredis.Open(&goredislib.UniversalOptions{Addrs: addrs, ReadTimeout: 30 * time.Second, DialTimeout: 30 * time.Second})
	}},
	{"rueidis", func(addrs []string) (conn, error) {
		return stetrueidis.Open(rueidis.ClientOption{InitAddress: addrs})
	}},
}

// dial opens a client that closes with the test.
func dial(t testing.TB, l library, addrs ...string) conn {
	t.Helper()
	c, err := l.open(addrs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close of %s: %v", l.name, err)
		}
	})
	return c
}

// fresh returns a prefix that was never used.
func fresh() string { return "test-" + stet.NewKey() }

// open opens a store that closes with the test.
func open(t testing.TB, c redis.Client, o redis.Options) *redis.Store {
	t.Helper()
	if o.Prefix == "" {
		o.Prefix = fresh()
	}
	if o.Logger == nil {
		o.Logger = quiet
	}
	s, err := redis.New(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// each runs a test with each library, against the servers that all tests share.
func each(t *testing.T, f func(t *testing.T, c conn)) {
	addr := rig.Redis(t).Addr()
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) { f(t, dial(t, l, addr)) })
	}
}

// eachServers runs a test on a single server and on a cluster, with each library.
func eachServers(t *testing.T, f func(t *testing.T, c conn)) {
	for name, addrs := range map[string][]string{"single": {rig.Redis(t).Addr()}, "cluster": cluster(t)} {
		for _, l := range libraries {
			t.Run(name+", "+l.name, func(t *testing.T) { f(t, dial(t, l, addrs...)) })
		}
	}
}

// mustContain requires that an error say something.
func mustContain(t testing.TB, err error, what string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), what) {
		t.Errorf("the error is %v; want it to say %q", err, what)
	}
}

// What tests of stores share.
var (
	keep               = stettest.Keep
	request, completed = stettest.Request, stettest.Completed

	mustClaim, mustSettle, mustRead = stettest.Claim, stettest.Settle, stettest.Read
	mustTake                        = stettest.Take
)
