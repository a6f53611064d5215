package zookeeper

import (
	"context"
	"flag"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/storetest"
)

func TestMain(m *testing.M) {
	// Most of the tests wait for a server.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(rig.Main(m))
}

// What tests of stores share.
var (
	keep               = stettest.Keep
	request, completed = stettest.Request, stettest.Completed

	mustClaim, mustSettle, mustRead = stettest.Claim, stettest.Settle, stettest.Read
)

// ensemble is for all tests that leave the servers running.
var ensemble = struct {
	once  sync.Once
	addrs []string
}{}

// servers returns the addresses of three servers that the tests of this binary share.
func servers(t testing.TB) []string {
	t.Helper()
	ensemble.once.Do(func() { ensemble.addrs = rig.ZooKeeperForAll(t, 3).Addrs() })
	if ensemble.addrs == nil {
		t.Fatal("the servers did not start")
	}
	return ensemble.addrs
}

// openStore opens a store with a path of its own, or with the one given.
func openStore(t testing.TB, addrs []string, path ...string) *Store {
	t.Helper()
	o := Options{Path: "/" + rig.Named(t, "-")}
	if len(path) > 0 {
		o.Path = path[0]
	}
	s, err := Open(context.Background(), addrs, o)
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

// contract is the harness of stores. Its cases mostly wait for the server's clock.
func contract(t *testing.T, open func(t testing.TB) store.Store) storetest.Harness {
	servers(t)
	return storetest.Harness{Unit: 600 * time.Millisecond, Histories: 5, Parallel: true, New: open,
		Damage: func(t testing.TB, s store.Store, id store.ID) {
			z := store.Base(s).(*Store)
			if _, err := z.conn.Set(z.path(id), []byte("damaged"), -1); err != nil {
				t.Fatal(err)
			}
		}}
}

func TestStoreKeepsTheContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, contract(t, func(t testing.TB) store.Store { return openStore(t, servers(t)) }))
}

// Each call goes through the next of three sessions, each with another server: a read that is stale
// would be seen.
func TestThreeSessionsKeepTheContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, contract(t, func(t testing.TB) store.Store {
		path := "/" + rig.Named(t, "-")
		a := &alternate{}
		for _, addr := range servers(t) {
			a.stores = append(a.stores, openStore(t, []string{addr}, path))
		}
		return a
	}))
}

// alternate sends each call to the next of some stores.
type alternate struct {
	mu     sync.Mutex
	n      int
	stores []*Store
}

func (a *alternate) next() *Store {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n++
	return a.stores[a.n%len(a.stores)]
}

func (a *alternate) Unwrap() store.Store { return a.next() }

func (a *alternate) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	return a.next().Claim(ctx, req)
}
func (a *alternate) Extend(ctx context.Context, cs []store.Claim, lease time.Duration) ([]store.Claim, error) {
	return a.next().Extend(ctx, cs, lease)
}
func (a *alternate) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	return a.next().Settle(ctx, c, out, keep)
}
func (a *alternate) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	return a.next().Release(ctx, c, keep)
}
func (a *alternate) Read(ctx context.Context, id store.ID) (store.Record, error) {
	return a.next().Read(ctx, id)
}
func (a *alternate) Sweep(ctx context.Context, limit int) (store.Swept, error) {
	return a.next().Sweep(ctx, limit)
}
func (a *alternate) Browse(ctx context.Context, q store.Query) (store.Page, error) {
	return a.next().Browse(ctx, q)
}
func (a *alternate) Expire(ctx context.Context, c store.Claim) error { return a.next().Expire(ctx, c) }
