package redis_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
)

// clientFunc is the least that a client can be.
type clientFunc func(args []string) (any, error)

func (f clientFunc) Do(_ context.Context, _ string, args ...string) (any, error) { return f(args) }

func saying(info string) redis.Client {
	return clientFunc(func([]string) (any, error) { return strings.ReplaceAll(info, "\n", "\r\n"), nil })
}

func TestUnfitServersAreRefused(t *testing.T) {
	const fit = "# Server\nredis_version:7.0.15\nrole:master\nmaxmemory_policy:noeviction\ncluster_enabled:0\naof_enabled:1\n"
	if s, err := redis.New(t.Context(), saying(fit), redis.Options{Logger: quiet}); err != nil {
		t.Errorf("a server that is fit: %v", err)
	} else {
		_ = s.Close()
	}
	for want, info := range map[string]string{
		"Redis 7.0 or later": strings.Replace(fit, "7.0.15", "6.2.14", 1),
		"replica":            strings.Replace(fit, "role:master", "role:replica", 1),
		"client of clusters": strings.Replace(fit, "cluster_enabled:0", "cluster_enabled:1", 1),
		"allkeys-lru":        strings.Replace(fit, "noeviction", "allkeys-lru", 1),
		"volatile-ttl":       strings.Replace(fit, "noeviction", "volatile-ttl", 1),
		`version ""`:         "nonsense",
	} {
		_, err := redis.New(t.Context(), saying(info), redis.Options{Logger: quiet})
		mustContain(t, err, want)
	}
	_, err := redis.New(t.Context(), clientFunc(func([]string) (any, error) { return nil, errors.New("no route") }), redis.Options{})
	mustContain(t, err, "no route")
	_, err = redis.New(t.Context(), clientFunc(func([]string) (any, error) { return []any{}, nil }), redis.Options{})
	mustContain(t, err, "adapter")
}

func TestWrongWiringIsRefused(t *testing.T) {
	_, err := redis.New(t.Context(), nil, redis.Options{})
	mustContain(t, err, "needs a client")
	for _, prefix := range []string{"a{b", "a}b", strings.Repeat("x", 65)} {
		_, err = redis.New(t.Context(), saying(""), redis.Options{Prefix: prefix})
		mustContain(t, err, "Options.Prefix")
	}
}

func TestReplicaIsRefused(t *testing.T) {
	master, replica := rig.Redis(t), rig.NewRedis(t, rig.RedisOptions{})
	host, port, _ := strings.Cut(master.Addr(), ":")
	if _, err := replica.CLI(t.Context(), "REPLICAOF", host, port); err != nil {
		t.Fatal(err)
	}
	for _, l := range libraries {
		_, err := redis.New(t.Context(), dial(t, l, replica.Addr()), redis.Options{Logger: quiet})
		mustContain(t, err, "connect to the master")
	}
}

func TestServerThatBecomesUnfitGrantsNothing(t *testing.T) {
	server := rig.NewRedis(t, rig.RedisOptions{})
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			log := new(stettest.Log)
			s := open(t, dial(t, l, server.Addr()), redis.Options{CheckEvery: 10 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(log, nil))})
			done := request("done")
			running := mustClaim(t, s, done)
			refused := func() error { _, err := s.Claim(t.Context(), request(fresh())); return err }
			config(t, server, "maxmemory-policy", "allkeys-lru")
			stettest.Eventually(t, "claims are refused", func() bool { return refused() != nil })
			mustContain(t, refused(), "allkeys-lru")
			mustSettle(t, s, running.Claim(), "x") // what ran is still written
			if rec := mustRead(t, s, done.ID); string(rec.Result.Body) != "x" {
				t.Errorf("a read of an unfit server: %+v", rec)
			}
			config(t, server, "maxmemory-policy", "noeviction")
			stettest.Eventually(t, "claims are granted again", func() bool { return refused() == nil })
			text := log.String()
			for _, once := range []string{"append-only", "claims are refused", "granted again"} {
				if strings.Count(text, once) != 1 {
					t.Errorf("the log should say %q once:\n%s", once, text)
				}
			}
		})
	}
}

func TestEvictionIsAcceptedWhenAskedFor(t *testing.T) {
	server := rig.NewRedis(t, rig.RedisOptions{Settings: map[string]string{"maxmemory-policy": "allkeys-lru"}})
	c := dial(t, libraries[0], server.Addr())
	_, err := redis.New(t.Context(), c, redis.Options{Logger: quiet})
	mustContain(t, err, "noeviction")
	mustClaim(t, open(t, c, redis.Options{AllowEviction: true, CheckEvery: -1}), request("k"))
}

func TestServerThatIsFitAgainSoonGrantsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var role atomic.Value
		role.Store("master")
		s := open(t, clientFunc(func(args []string) (any, error) {
			if args[0] == "INFO" {
				return "redis_version:7.0.15\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\nrole:" + role.Load().(string) + "\r\n", nil
			}
			return nil, errors.New("granted")
		}), redis.Options{})
		claim := func() error { _, err := s.Claim(t.Context(), request("k")); return err }
		role.Store("slave") // a failover, seen by the regular inspection
		time.Sleep(time.Minute + time.Millisecond)
		mustContain(t, claim(), "claims are refused")
		role.Store("master")
		time.Sleep(2 * time.Second)
		mustContain(t, claim(), "granted")
	})
}

func TestInspectionsOfAClusterDoNotRaceWithCalls(t *testing.T) {
	const fit = "redis_version:7.0.15\r\nrole:master\r\nmaxmemory_policy:noeviction\r\ncluster_enabled:1\r\naof_enabled:1\r\n"
	inspections := make(chan struct{})
	s := open(t, member{func(args []string) (any, error) {
		if args[0] == "INFO" {
			select {
			case inspections <- struct{}{}:
			default:
			}
			return fit, nil
		}
		return []any{}, nil
	}}, redis.Options{CheckEvery: time.Millisecond})
	for range 20 {
		<-inspections
		_, _ = s.Sweep(t.Context(), 1)
	}
}

// member is a server of a cluster, and a client of it.
type member struct{ clientFunc }

func (m member) Servers(context.Context) (map[string]redis.Client, error) {
	return map[string]redis.Client{"a": m.clientFunc}, nil
}

func TestOnlyCommandsThatWereNotExecutedAreRepeated(t *testing.T) {
	const fit = "redis_version:7.0.15\r\nrole:master\r\nmaxmemory_policy:noeviction\r\ncluster_enabled:1\r\naof_enabled:1\r\n"
	for answer, want := range map[error]int{
		redis.ReplyError("TRYAGAIN Multiple keys request during rehashing of slot"): 3,
		redis.ReplyError("CLUSTERDOWN Hash slot not served"):                        3,
		redis.ReplyError("OOM command not allowed"):                                 1,
		errors.New("connection reset"):                                              1,
	} {
		calls := 0
		count := func() int { calls++; return calls }
		s := open(t, member{func(args []string) (any, error) {
			switch {
			case args[0] == "INFO":
				return fit, nil
			case count() < 3:
				return nil, answer
			}
			return int64(1), nil
		}}, redis.Options{})
		calls = 0 // of New
		err := s.Release(t.Context(), store.Claim{Fence: 1}, keep)
		if calls != want || (err == nil) != (want == 3) {
			t.Errorf("after %q the command was sent %d times, and the call returned %v; want it sent %d times", answer, calls, err, want)
		}
	}
}
