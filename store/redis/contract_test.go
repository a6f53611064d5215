package redis_test

import (
	"errors"
	"flag"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/rig"
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
