package redis_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredislib "github.com/redis/go-redis/v9"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/rig"
	"github.com/stet-go/stet/internal/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/redis/goredis"
)

func TestCallsShareScriptsOnASingleServerOnly(t *testing.T) {
	eachServers(t, func(t *testing.T, c conn) {
		_, several := c.(redis.Cluster)
		if got := open(t, c, redis.Options{}).Shares(); got == several {
			t.Errorf("a cluster: %v; calls share scripts: %v", several, got)
		}
		if !several && open(t, alonely{c}, redis.Options{}).Shares() {
			t.Error("calls share scripts although the client does not say that it has one server")
		}
	})
}

// divided is a client that says that it has one server, and has two: it sends each command to
// that of its first key.
type divided [2]conn

func (divided) SingleServer() bool { return true }

func (d divided) Do(ctx context.Context, key string, args ...string) (any, error) {
	server := 0
	if i := strings.IndexByte(key, '{'); i >= 0 {
		server = int(key[i+2]+key[i+3]) % 2
	}
	return d[server].Do(ctx, key, args...)
}

// refusing is a client of a proxy that refuses scripts whose keys have several hash tags.
type refusing struct{ *between }

func (r refusing) Do(ctx context.Context, key string, args ...string) (any, error) {
	tags := make(map[string]bool)
	for _, arg := range args[1:] {
		if at := strings.Index(arg, ":{"); at >= 0 && len(arg) > at+6 && arg[at+5] == '}' {
			tags[arg[at:at+6]] = true
		}
	}
	if len(tags) > 1 {
		return nil, redis.ReplyError("ERR eval/evalsha command keys must be in same slot")
	}
	return r.between.Do(ctx, key, args...)
}

// growing is a client of a proxy that gets a second server.
type growing struct {
	divided
	grown *atomic.Bool
}

func (g growing) Do(ctx context.Context, key string, args ...string) (any, error) {
	if g.grown.Load() {
		return g.divided.Do(ctx, key, args...)
	}
	return g.divided[0].Do(ctx, key, args...)
}

func TestProxyThatComesToDivideKeysIsFoundOut(t *testing.T) {
	other := rig.NewRedis(t, rig.RedisOptions{})
	each(t, func(t *testing.T, c conn) {
		g := growing{divided{c, dial(t, libraries[1], other.Addr())}, new(atomic.Bool)}
		s := open(t, g, redis.Options{CheckEvery: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		if !s.Shares() {
			t.Fatal("calls share no scripts")
		}
		g.grown.Store(true)
		stettest.Eventually(t, "calls share no script any more", func() bool { return !s.Shares() })
	})
}

func TestProxyThatDividesKeysIsFoundOut(t *testing.T) {
	other := rig.NewRedis(t, rig.RedisOptions{})
	each(t, func(t *testing.T, c conn) {
		two := divided{c, dial(t, libraries[1], other.Addr())}
		for name, client := range map[string]redis.Client{"silently": two, "and says so": refusing{&between{conn: c}}} {
			t.Run(name, func(t *testing.T) {
				s := open(t, client, redis.Options{})
				if s.Shares() {
					t.Fatal("calls share scripts")
				}
				together(t, 100, 5, func(int) error {
					req := request(stet.NewKey())
					rec, err := s.Claim(t.Context(), req)
					if err != nil {
						return err
					}
					return s.Settle(t.Context(), rec.Claim(), completed("x"), keep)
				})
			})
		}
	})
}

func TestServerThatDividesKeysLaterIsSharedNoMore(t *testing.T) {
	eachCrowded(t, rig.Redis(t), func(t *testing.T, s crowded) {
		s.on = func(context.Context, []string, func() (any, error)) (any, error) {
			return nil, redis.ReplyError("CROSSSLOT Keys in request don't hash to the same slot")
		}
		live := mustClaim(t, s.Store, request("live"))
		if s.Shares() || len(s.calls()) != 1 {
			t.Errorf("after CROSSSLOT calls share scripts: %v, and have shared %d", s.Shares(), s.calls())
		}
		together(t, 100, 5, func(int) error {
			_, err := s.Claim(t.Context(), request(stet.NewKey()))
			return err
		})
		mustSettle(t, s.Store, live.Claim(), "x")
		if len(s.calls()) != 1 {
			t.Errorf("%d scripts were shared", len(s.calls()))
		}
	})
}

func TestCrowdAtCrossslotGoesAlone(t *testing.T) {
	eachCrowded(t, rig.Redis(t), func(t *testing.T, s crowded) {
		reqs, calls := make([]store.ClaimRequest, 20), []func(){}
		for i := range reqs {
			reqs[i] = request(stet.NewKey())
			calls = append(calls, func() {
				if rec, err := s.Claim(t.Context(), reqs[i]); err != nil || rec.Owner != reqs[i].Owner || rec.Attempt != 1 {
					t.Errorf("%+v, %v", rec, err)
				}
			})
		}
		let, wait := s.gather(t, calls...)
		s.on = func(context.Context, []string, func() (any, error)) (any, error) {
			return nil, redis.ReplyError("CROSSSLOT")
		}
		let()
		wait()
	})
}

// TestReadonlyReachesTheClient: a client closes its connections to a server that says
// READONLY, and so finds the one that took its place.
func TestReadonlyReachesTheClient(t *testing.T) {
	eachOf := func(f func(t *testing.T, s crowded, master, next *rig.RedisServer)) {
		for _, l := range libraries {
			t.Run(l.name, func(t *testing.T) {
				master, next := rig.NewRedis(t, rig.RedisOptions{}), rig.NewRedis(t, rig.RedisOptions{})
				f(t, openCrowded(t, dial(t, l, master.Addr()), redis.Options{CheckEvery: -1}), master, next)
			})
		}
	}
	eachOf(func(t *testing.T, s crowded, master, next *rig.RedisServer) {
		demote(t, master, next)
		var calls []func()
		for range 5 {
			calls = append(calls, func() {
				rec, err := s.Claim(t.Context(), request("new"))
				mustContain(t, err, "is a replica")
				if rec.State != store.None {
					t.Errorf("a replica has granted %+v", rec)
				}
			})
		}
		s.inOneScript(t, calls...)
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := strings.Count(strings.Join(s.codes, " "), "READONLY"); n < len(calls) {
			t.Errorf("the client was told READONLY %d times in reply to a command; %d calls were", n, len(calls))
		}
	})
}

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

func TestCrowdFindsTheNewMasterBehindAName(t *testing.T) {
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
	s := openCrowded(t, c, redis.Options{CheckEvery: -1})
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
