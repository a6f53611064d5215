package redis_test

import (
	"errors"
	"flag"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
	"github.com/stet-go/stet/store/storetest"
)

var quiet = slog.New(slog.DiscardHandler)

var everywhere = flag.Bool("everywhere", false, "run the contract with both libraries in each setting (some minutes more)")

// libraryOf is the library that the contract is run with in one setting. Each has
// one without a cluster and one with: what the server is asked, and in which
// trips, is the same with both.
func libraryOf(name string) []library {
	if *everywhere {
		return libraries
	}
	for i, l := range libraries {
		if l.name == name {
			return libraries[i : i+1]
		}
	}
	panic("there is no library " + name)
}

// contract is the harness of stores with a client. Its cases mostly wait for the
// server's clock, so they run side by side.
func contract(c redis.Client, o redis.Options) storetest.Harness {
	var prefixes sync.Map // of stores
	return storetest.Harness{Unit: 400 * time.Millisecond, Histories: 5, Parallel: true, New: func(t testing.TB) store.Store {
		o := o
		o.Prefix = fresh()
		s := open(t, c, o)
		prefixes.Store(s, o.Prefix)
		return s
	}, Damage: func(t testing.TB, s store.Store, id store.ID) {
		if u, ok := s.(unbrowsed); ok {
			s = u.Store
		}
		prefix, _ := prefixes.Load(s)
		do(t, c, "SETRANGE", recordKey(prefix.(string), id), "0", "\x03")
	}}
}

func TestStoreKeepsTheContract(t *testing.T) {
	t.Parallel()
	addr := rig.Redis(t).Addr()
	for _, l := range libraryOf("go-redis") {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, contract(dial(t, l, addr), redis.Options{}))
		})
	}
}

func TestStoreKeepsTheContractOnACluster(t *testing.T) {
	t.Parallel()
	addrs := cluster(t)
	for _, l := range libraryOf("rueidis") {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, contract(dial(t, l, addrs...), redis.Options{}))
		})
	}
}

// sweepAll sweeps until there was nothing to do for a whole round.
func sweepAll(t *testing.T, s *redis.Store) (sum store.Swept) {
	t.Helper()
	for idle := 0; idle < 2; {
		got, err := s.Sweep(t.Context(), 100)
		if err != nil {
			t.Fatalf("Sweep: %v", err)
		}
		sum.MarkedUnknown += got.MarkedUnknown
		if !got.More {
			idle++
		}
	}
	return sum
}

func TestSweepParksTheDeadAndNothingElse(t *testing.T) {
	const lease = 150 * time.Millisecond
	each(t, func(t *testing.T, c conn) {
		s := open(t, c, redis.Options{})
		made := make(map[string]store.Record)
		extend := func(c store.Claim, lease time.Duration) {
			if lost, err := s.Extend(t.Context(), []store.Claim{c}, lease); err != nil || len(lost) != 0 {
				t.Errorf("Extend: lost %v, %v", lost, err)
			}
		}
		for name, do := range map[string]func(store.Claim){
			"live":      func(store.Claim) {},
			"lapsed":    func(c store.Claim) { extend(c, lease) },
			"renewed":   func(c store.Claim) { extend(c, lease); extend(c, time.Hour) },
			"completed": func(c store.Claim) { mustSettle(t, s, c, "x") },
			"retryable": func(c store.Claim) {
				if err := s.Release(t.Context(), c, keep); err != nil {
					t.Error(err)
				}
			},
		} {
			made[name] = mustClaim(t, s, request(name))
			do(made[name].Claim())
		}
		stettest.Eventually(t, "the lease runs out", func() bool { return mustRead(t, s, made["lapsed"].ID).LeaseLeft <= 0 })
		if got := sweepAll(t, s); got.MarkedUnknown != 1 {
			t.Errorf("%d records became unknown; want 1", got.MarkedUnknown)
		}
		for name, want := range map[string]store.State{"live": store.Running, "lapsed": store.Unknown, "renewed": store.Running,
			"completed": store.Completed, "retryable": store.Retryable} {
			if now := mustRead(t, s, made[name].ID); now.State != want || now.Fence != made[name].Fence {
				t.Errorf("after the sweep the record that was %s is %v; want it %v", name, now.State, want)
			}
		}
		mustSettle(t, s, made["lapsed"].Claim(), "late") // no other run began
		if again := sweepAll(t, s); again.MarkedUnknown != 0 {
			t.Errorf("a second sweep unknown %d", again.MarkedUnknown)
		}
	})
}

func TestSweepersTogetherParkEachRecordOnce(t *testing.T) {
	const n, limit = 300, 20
	each(t, func(t *testing.T, c conn) {
		prefix := fresh()
		s := open(t, c, redis.Options{Prefix: prefix})
		req := request("last")
		for range n {
			req = request(stet.NewKey())
			req.Lease = 100 * time.Millisecond
			mustClaim(t, s, req)
		}
		stettest.Eventually(t, "the last lease runs out", func() bool { return mustRead(t, s, req.ID).LeaseLeft <= 0 })
		first, err := s.Sweep(t.Context(), limit)
		if err != nil || first.MarkedUnknown > limit || !first.More {
			t.Errorf("Sweep with a limit of %d: %+v, %v; want no more unknown than that, and More", limit, first, err)
		}
		var mu sync.Mutex
		var wg sync.WaitGroup
		sum := first.MarkedUnknown
		for range 4 {
			other := open(t, c, redis.Options{Prefix: prefix})
			wg.Go(func() {
				for more := true; more; {
					got, err := other.Sweep(t.Context(), limit)
					if err != nil {
						t.Errorf("Sweep beside others: %v", err)
					}
					mu.Lock()
					sum += got.MarkedUnknown
					mu.Unlock()
					more = err == nil && got.More
				}
			})
		}
		wg.Wait()
		if sum += sweepAll(t, s).MarkedUnknown; sum != n {
			t.Errorf("5 sweepers together say that they unknown %d records; there were %d", sum, n)
		}
	})
}

func TestClosedStoreRefuses(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		s := open(t, c, redis.Options{})
		_ = s.Close()
		_, err := s.Claim(t.Context(), request("k"))
		mustContain(t, err, "closed")
		if err := s.Watch(t.Context(), request("k").ID, 1); err == nil || errors.Is(err, store.ErrInvalid) {
			t.Errorf("Watch of a closed store: %v", err)
		}
	})
}
