package redis_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store/redis"
)

// wakeTime is how long a watcher sleeps after the run has ended.
func wakeTime(s *redis.Store) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	rec, err := s.Claim(ctx, request(stet.NewKey()))
	if err != nil {
		return 0, err
	}
	done := make(chan error, 1)
	go func() { done <- s.Watch(ctx, rec.ID, rec.Fence) }()
	time.Sleep(20 * time.Millisecond) // so that it sleeps, mostly
	ended := time.Now()
	for range 10 { // a connection that was lost is noticed by the first call on it
		if err = s.Settle(ctx, rec.Claim(), completed("x"), keep); err == nil {
			break
		}
	}
	if err != nil {
		return 0, err // the watcher leaves with the lease
	}
	err = <-done
	return time.Since(ended), err
}

// wakeTimes are those of some watchers, in order.
func wakeTimes(t *testing.T, s *redis.Store, rounds int) (all []time.Duration) {
	t.Helper()
	for range rounds {
		took, err := wakeTime(s)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, took)
	}
	slices.Sort(all)
	return all
}

// promptly is a limit for what a message wakes. Without messages, watchers of listening
// would sleep until their leases end, which is twice as long.
const promptly = 30 * time.Second

// listening opens a store whose watchers do not look by themselves.
func listening(t *testing.T, c redis.Client) *redis.Store {
	t.Helper()
	s := open(t, c, redis.Options{})
	s.LookEvery(time.Hour)
	return s
}

func TestWatchersAreWokenByMessages(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		if took := wakeTimes(t, listening(t, c), 15); took[14] > promptly {
			t.Errorf("watchers woke up after %v", took)
		}
	})
}

func TestWatchersOnAClusterAreWokenByMessages(t *testing.T) {
	cluster := rig.NewRedisCluster(t, 3, rig.RedisOptions{})
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			if took := wakeTimes(t, listening(t, dial(t, l, cluster.Addrs()...)), 15); took[14] > promptly {
				t.Errorf("watchers woke up after %v", took)
			}
		})
	}
}

// deaf is a client whose messages get lost.
type deaf struct{ redis.Client }

func (deaf) Listen(ctx context.Context, _ string, heard func(string)) error {
	heard("")
	<-ctx.Done()
	return ctx.Err()
}

func TestWatchersPollWhenMessagesAreLost(t *testing.T) {
	each(t, func(t *testing.T, c conn) { wakeTimes(t, open(t, deaf{c}, redis.Options{}), 2) })
}

func TestWithoutListenerWatchersPoll(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		s := open(t, struct{ redis.Client }{c}, redis.Options{})
		rec := mustClaim(t, s, request("k"))
		if err := s.Watch(t.Context(), rec.ID, rec.Fence); err == nil {
			t.Error("Watch returned nil without being able to tell")
		}
	})
}

func TestSubscriptionSurvivesALostConnection(t *testing.T) {
	eachLossy(t, func(t *testing.T, p *lossy, s *redis.Store) {
		s.LookEvery(time.Hour)
		wakeTimes(t, s, 1)
		p.cut()
		for range 10 {
			stettest.Eventually(t, "a watcher's calls get through again", func() bool {
				took, err := wakeTime(s)
				if err == nil && took > promptly {
					t.Errorf("a watcher woke up after %v", took)
				}
				return err == nil
			})
		}
	})
}

func TestRunsWithoutAWatcherAreNotPublished(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		prefix := fresh()
		s := open(t, c, redis.Options{Prefix: prefix})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		heard, done := make(chan string, 100), make(chan struct{})
		go func() {
			defer close(done)
			_ = c.Listen(ctx, prefix+":ended", func(m string) {
				if m == "" {
					m = "subscribed"
				}
				heard <- m
			})
		}()
		<-heard
		mustSettle(t, s, mustClaim(t, s, request("unwatched")).Claim(), "x")
		wakeTimes(t, s, 1)
		watched := <-heard
		for watched == "subscribed" {
			watched = <-heard
		}
		cancel()
		<-done
		if id := request("unwatched").ID; watched == string(id[:]) || len(watched) != len(id) {
			t.Errorf("the first message is %q; want the identity of the run that was watched", watched)
		}
	})
}
