package redis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
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
)

// scheduleKey is part of the data format, like recordKey. The schedule of each name is behind it
// and a colon.
func scheduleKey(prefix string, what waitsFor) string { return prefix + ":{schedule}:" + kinds[what] }

func TestQueueHoldsOnlyWaitingOperations(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		prefix := fresh()
		s := open(t, c, redis.Options{Prefix: prefix})
		queued := func(what string, id store.ID, run, relay int64) {
			t.Helper()
			for kind, want := range map[waitsFor]int64{toRun: run, toSend: relay} {
				name := strings.Replace(recordKey(prefix, id), fmt.Sprintf("op:%x", id[:]), kinds[kind]+":", 1)
				if got := do(t, c, "ZCARD", name); got != want {
					t.Errorf("%s: %v records are in %s; want %d", what, got, name, want)
				}
			}
		}
		cancelled, req := request("cancelled"), request("k")
		rec := mustAccept(t, s, cancelled, time.Hour)
		queued("accepted", cancelled.ID, 1, 0)
		if _, err := s.Cancel(t.Context(), rec.Claim(), store.Settlement{State: store.Failed}, keep); err != nil {
			t.Fatal(err)
		}
		queued("cancelled", cancelled.ID, 0, 0)
		mustAccept(t, s, req, 0)
		rec = mustTake(t, s, req.ID)
		queued("taken", req.ID, 0, 0)
		if err := s.Return(t.Context(), rec.Claim(), 0); err != nil {
			t.Fatal(err)
		}
		queued("returned", req.ID, 1, 0)
		rec = mustTake(t, s, req.ID)
		mustSend(t, s, rec.Claim())
		queued("settled, with messages", req.ID, 0, 1)
		if err := s.Relayed(t.Context(), rec.Claim(), keep); err != nil {
			t.Fatal(err)
		}
		queued("relayed", req.ID, 0, 0)
	})
}

func TestSweep_RewritesALostSchedule(t *testing.T) {
	eachServers(t, func(t *testing.T, c conn) {
		for what := range kinds {
			prefix := fresh()
			s := open(t, c, redis.Options{Prefix: prefix})
			want := make(map[store.ID]bool)
			for range 20 {
				want[wait(t, s, what)] = true
			}
			do(t, c, "DEL", scheduleKey(prefix, what), scheduleKey(prefix, what)+":")
			if got := mustDue(t, s, what, 100, time.Hour); len(got) != 0 {
				t.Errorf("without a schedule, %d records are due", len(got))
			}
			sweepAll(t, s)
			for _, id := range mustDue(t, s, what, 100, time.Hour) {
				delete(want, id)
			}
			if len(want) > 0 {
				t.Errorf("after a sweep, %d of 20 records that wait are not due", len(want))
			}
		}
	})
}

// meddled is a client whose scripts that begin with a certain key are not sent, or
// after something else has happened.
type meddled struct {
	conn
	before func(key string, args []string) error
}

func (m *meddled) Do(ctx context.Context, key string, args ...string) (any, error) {
	if strings.HasPrefix(args[0], "EVAL") {
		if err := m.before(key, args[3:]); err != nil {
			return nil, err
		}
	}
	return m.conn.Do(ctx, key, args...)
}

// meddledCluster is a meddled of a cluster.
type meddledCluster struct{ *meddled }

func (m meddledCluster) Servers(ctx context.Context) (map[string]redis.Client, error) {
	return m.conn.(redis.Cluster).Servers(ctx)
}

func meddle(m *meddled) redis.Client {
	if _, ok := m.conn.(redis.Cluster); ok {
		return meddledCluster{m}
	}
	return m
}

var errDied = errors.New("the process died")

func TestSweep_SchedulesRecordsOfAProcessThatDied(t *testing.T) {
	addrs := cluster(t)
	for _, l := range libraries {
		for what := range kinds {
			t.Run(l.name+", "+kinds[what], func(t *testing.T) {
				c := dial(t, l, addrs...)
				prefix := fresh()
				dying := open(t, meddle(&meddled{c, func(key string, _ []string) error {
					if key == scheduleKey(prefix, what) {
						return errDied
					}
					return nil
				}}), redis.Options{Prefix: prefix})
				id := wait(t, dying, what)
				s := open(t, c, redis.Options{Prefix: prefix})
				if got := mustDue(t, s, what, 10, time.Hour); len(got) != 0 {
					t.Fatal("the schedule was written; this test needs an unwritten one")
				}
				sweepAll(t, s)
				if got := mustDue(t, s, what, 10, time.Hour); !slices.Equal(got, []store.ID{id}) {
					t.Errorf("after a sweep %d records are due; want the one", len(got))
				}
			})
		}
	}
}

func TestScheduleIsWrittenOnceItsServerIsBack(t *testing.T) {
	addrs := cluster(t)
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			c := dial(t, l, addrs...)
			prefix := fresh()
			var away atomic.Bool
			away.Store(true)
			s := open(t, meddle(&meddled{c, func(key string, _ []string) error {
				if away.Load() && strings.HasPrefix(key, prefix+":{schedule}:") {
					return errors.New("it is away")
				}
				return nil
			}}), redis.Options{Prefix: prefix})
			run, relay := wait(t, s, toRun), wait(t, s, toSend)
			away.Store(false)
			for what, id := range map[waitsFor]store.ID{toRun: run, toSend: relay} {
				stettest.Eventually(t, "without a sweep it is due", func() bool { return slices.Equal(mustDue(t, s, what, 10, time.Hour), []store.ID{id}) })
			}
		})
	}
}

func TestDue_FindsARecordAddedDuringARead(t *testing.T) {
	eachServers(t, func(t *testing.T, c conn) {
		for name, lapse := range map[string]time.Duration{"at once": 0, "later": 300 * time.Millisecond} {
			prefix := fresh()
			s := open(t, c, redis.Options{Prefix: prefix})
			// Two records of one shard; the second comes when Due has looked there.
			first, second := request(stet.NewKey()), request(stet.NewKey())
			second.ID[8], second.ID[9] = first.ID[8], first.ID[9]
			mustAccept(t, s, first, 0)
			var once sync.Once
			looker := open(t, meddle(&meddled{c, func(key string, args []string) error {
				if key == scheduleKey(prefix, toRun) && len(args) == 5 { // it writes the result of its reads
					once.Do(func() { mustAccept(t, s, second, lapse) })
				}
				return nil
			}}), redis.Options{Prefix: prefix})
			if got := mustDue(t, looker, toRun, 10, time.Hour); !slices.Equal(got, []store.ID{first.ID}) {
				t.Fatalf("%d records are due; want the first", len(got))
			}
			stettest.Eventually(t, name+" the second record is due", func() bool {
				return slices.Equal(mustDue(t, s, toRun, 10, time.Hour), []store.ID{second.ID})
			})
		}
	})
}

func TestDueNeedsNoSweepBesideWritersAndLookers(t *testing.T) {
	const writers, each = 4, 100
	eachServers(t, func(t *testing.T, c conn) {
		prefix := fresh()
		var accepted, handed sync.Map
		var twice, left atomic.Int64
		left.Store(writers)
		var wg sync.WaitGroup
		for i := range writers {
			s := open(t, c, redis.Options{Prefix: prefix})
			wg.Go(func() {
				defer left.Add(-1)
				for j := range each {
					req := request(stet.NewKey())
					req.ID[8], req.ID[9] = 0, byte(j%5)
					mustAccept(t, s, req, time.Duration(j%3)*20*time.Millisecond)
					accepted.Store(req.ID, true)
				}
			})
			wg.Go(func() {
				for done := false; !done; {
					done = left.Load() == 0
					for _, id := range mustDue(t, s, toRun, 3+i, time.Hour) {
						if _, was := handed.LoadOrStore(id, true); was {
							twice.Add(1)
						}
					}
				}
			})
		}
		wg.Wait()
		s := open(t, c, redis.Options{Prefix: prefix})
		stettest.Eventually(t, "all is due", func() bool {
			for _, id := range mustDue(t, s, toRun, 100, time.Hour) {
				if _, was := handed.LoadOrStore(id, true); was {
					twice.Add(1)
				}
			}
			n := 0
			handed.Range(func(any, any) bool { n++; return true })
			return n == writers*each
		})
		if n := twice.Load(); n != 0 {
			t.Errorf("%d records were returned twice within the hour", n)
		}
	})
}

func TestLongestWaitingOfAllShardsIsDueFirst(t *testing.T) {
	eachServers(t, func(t *testing.T, c conn) {
		s := open(t, c, redis.Options{})
		var want []store.ID
		for i := range 40 {
			req := request(stet.NewKey())
			req.ID[8], req.ID[9] = 0, byte(i*i%13) // some shards have more than others
			mustAccept(t, s, req, 0)
			want = append(want, req.ID)
			time.Sleep(10 * time.Millisecond) // so that how long a look takes is little beside it
		}
		var got []store.ID
		for range 8 {
			got = append(got, mustDue(t, s, toRun, 5, time.Hour)...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d records came in another order than they had waited, or none; want %d", len(got), len(want))
		}
	})
}

func TestBacklogOfOneShardIsReturnedInSteps(t *testing.T) {
	eachServers(t, func(t *testing.T, c conn) {
		s := open(t, c, redis.Options{})
		want := make(map[store.ID]bool)
		for range 50 {
			req := request(stet.NewKey())
			req.ID[8], req.ID[9] = 0, 1
			mustAccept(t, s, req, 0)
			want[req.ID] = true
		}
		for range 5 {
			got := mustDue(t, s, toRun, 10, time.Hour)
			if len(got) != 10 {
				t.Fatalf("a step has %d records; want 10", len(got))
			}
			for _, id := range got {
				delete(want, id)
			}
		}
		if len(want) != 0 {
			t.Errorf("%d records were not returned", len(want))
		}
	})
}

func TestDue_FindsRecordsAlthoughTheScheduleIsTooEarly(t *testing.T) {
	eachServers(t, func(t *testing.T, c conn) {
		prefix := fresh()
		s := open(t, c, redis.Options{Prefix: prefix})
		id := wait(t, s, toRun)
		for shard := range 100 { // as if they had had something due since long ago
			do(t, c, "ZADD", scheduleKey(prefix, toRun)+":", fmt.Sprint(shard+1), fmt.Sprint(shard))
		}
		if got := mustDue(t, s, toRun, 1, time.Hour); !slices.Equal(got, []store.ID{id}) {
			t.Errorf("%d records are due; want the one", len(got))
		}
	})
}

func TestOneAnswerIsBounded(t *testing.T) {
	eachServers(t, func(t *testing.T, c conn) {
		const n = 24
		s := open(t, c, redis.Options{})
		large := bytes.Repeat([]byte("w"), 1<<20)
		want := make(map[store.ID]bool)
		for i := range n {
			req := request(stet.NewKey())
			req.ID[8], req.ID[9] = 0, byte(i%2)
			if _, err := s.Accept(t.Context(), req, large, 0); err != nil {
				t.Fatal(err)
			}
			want[req.ID] = true
		}
		for rounds := 0; len(want) > 0; rounds++ {
			got := mustDue(t, s, toRun, 100, time.Hour)
			if len(got) == 0 || len(got) > 18 {
				t.Fatalf("one Due returned %d MiB, %d are left; a script is to end after 8", len(got), len(want))
			}
			for _, id := range got {
				delete(want, id)
			}
		}
	})
}

func TestRecordThatIsGoneHoldsUpNoQueue(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		prefix := fresh()
		s := open(t, c, redis.Options{Prefix: prefix})
		var want []store.ID
		for i := range 3 {
			req := request(stet.NewKey())
			req.ID[8], req.ID[9] = 0, 1
			mustAccept(t, s, req, 0)
			if i == 0 {
				do(t, c, "DEL", recordKey(prefix, req.ID))
			} else {
				want = append(want, req.ID)
			}
		}
		if got := mustDue(t, s, toRun, 10, time.Hour); !slices.Equal(got, want) {
			t.Errorf("%d records are due; want the existing ones", len(got))
		}
		if got := mustDue(t, s, toRun, 10, time.Hour); len(got) != 0 {
			t.Errorf("%d records are due again", len(got))
		}
	})
}

func TestWorkIsNeitherLostNorDoneTwiceWhileSlotsMove(t *testing.T) {
	const n, workers = 300, 4
	cluster := rig.NewRedisCluster(t, 3, rig.RedisOptions{})
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			s := open(t, dial(t, l, cluster.Addrs()...), redis.Options{})
			moves := moving(t, cluster)
			var runs, sent sync.Map
			var left atomic.Int64
			left.Store(n)
			var wg sync.WaitGroup
			wg.Go(func() {
				for i := 0; i < n; i++ {
					req := request(fmt.Sprint(i))
					persist(t, func() error { _, err := s.Accept(t.Context(), req, []byte("work"), 0); return err })
				}
			})
			for range workers {
				wg.Go(func() {
					for left.Load() > 0 || moves.Load() < 3 {
						work(t, s, &runs)
						recs, _ := s.DueMessages(t.Context(), 10, 2*time.Second)
						for _, rec := range recs {
							persist(t, func() error { return s.Relayed(t.Context(), rec.Claim(), keep) })
							if _, was := sent.LoadOrStore(rec.ID, true); !was {
								left.Add(-1)
							}
						}
						_, _ = s.Sweep(t.Context(), 100) // writes of the schedule may be lost
					}
				})
			}
			wg.Wait()
			runs.Range(func(id, times any) bool {
				if n := times.(*atomic.Int64).Load(); n != 1 {
					t.Errorf("an operation ran %d times", n)
				}
				return true
			})
			for i := range n {
				if rec := mustRead(t, s, request(fmt.Sprint(i)).ID); rec.State != store.Completed {
					t.Errorf("operation %d is %v in the end", i, rec.State)
				}
			}
		})
	}
}

// work runs due operations, and settles them with messages.
func work(t *testing.T, s *redis.Store, runs *sync.Map) {
	t.Helper()
	recs, _ := s.Due(t.Context(), 10, 2*time.Second)
	for _, rec := range recs {
		owner := store.NewOwner()
		var took store.Record
		persist(t, func() (err error) {
			took, err = s.Take(t.Context(), store.TakeRequest{ID: rec.ID, Owner: owner, Lease: time.Hour})
			return err
		})
		if took.State != store.Running || took.Owner != owner {
			continue // another worker has it
		}
		times, _ := runs.LoadOrStore(rec.ID, new(atomic.Int64))
		times.(*atomic.Int64).Add(1)
		out := completed("x")
		out.Outbox = []byte("messages")
		persist(t, func() error { return s.Settle(t.Context(), took.Claim(), out, keep) })
	}
}

// persist repeats a call, as the engine does, until it is answered.
func persist(t *testing.T, call func() error) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := call()
		if err == nil {
			return
		}
		if errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrInvalid) || time.Now().After(end) {
			t.Errorf("a call that was repeated: %v", err)
			return
		}
	}
}
