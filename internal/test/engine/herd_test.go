package engine_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// herd makes n calls at once, and returns how many ended with each kind of error.
func herd(t *testing.T, e *stet.Engine, n int, op func(i int) stet.Op) map[stet.Kind]int {
	t.Helper()
	var mu sync.Mutex
	kinds := make(map[stet.Kind]int)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, err := e.Begin(t.Context(), op(i))
			mu.Lock()
			defer mu.Unlock()
			kinds[stet.KindOf(err)]++
		})
	}
	wg.Wait()
	return kinds
}

// TestHerdWithAnotherRequestCostsFewClaims: what refuses one refuses all that ask
// for something else, and they need not ask one after the other.
func TestHerdWithAnotherRequestCostsFewClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &tardy{Store: memory.New(memory.Options{}), way: 10 * time.Millisecond}
		var refused atomic.Int64
		e := newEngine(t, store, stet.Options{SweepEvery: -1, Observer: observe.Func(func(_ context.Context, ev observe.Event) {
			if ev.Kind == observe.Mismatched {
				refused.Add(1)
			}
		})})
		settle(t, store.Store, stet.Options{}, op, "of the first request")
		began := time.Now()
		const n = 4000
		kinds := herd(t, e, n, func(i int) stet.Op {
			other := op
			if i%100 != 50 { // some retry the first request
				other.Fingerprint = stet.NewFingerprint(fmt.Append(nil, "another request", i%2))
			}
			return other
		})
		if kinds[stet.KindMismatch] != n-n/100 || kinds[0] != n/100 || refused.Load() != n-n/100 {
			t.Errorf("%v, and %d were observed", kinds, refused.Load())
		}
		if claims, took := store.claims.Load(), time.Since(began); claims > 10 || took > 100*time.Millisecond {
			t.Errorf("%d claims, one after the other, in %v", claims, took)
		}
	})
}

// TestHerdOnADamagedRecordCostsOneClaim, and nothing is tried again.
func TestHerdOnADamagedRecordCostsOneClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &unreadable{Store: memory.New(memory.Options{}), gate: make(chan struct{})}
		e := newEngine(t, store, stet.Options{SweepEvery: -1})
		go func() { time.Sleep(time.Second); close(store.gate) }()
		kinds := herd(t, e, 500, func(int) stet.Op { return op })
		if kinds[stet.KindDamaged] != 500 || store.calls.Load() != 1 {
			t.Errorf("%v with %d claims", kinds, store.calls.Load())
		}
	})
}

// TestCallsThatFollowOthersAreBounded in number, and in how long they wait.
func TestCallsThatFollowOthersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := gated{memory.New(memory.Options{}), make(chan struct{})}
		var inFlight atomic.Int64
		e := newEngine(t, store, stet.Options{SweepEvery: -1, MaxWaiters: 2, Observer: observe.Func(func(_ context.Context, ev observe.Event) {
			if ev.Kind == observe.InFlight {
				inFlight.Add(1)
			}
		})})
		var led sync.WaitGroup
		led.Go(func() { _, _ = e.Begin(t.Context(), op) })
		synctest.Wait()
		began := time.Now()
		var told sync.WaitGroup
		var atOnce, later atomic.Int64
		for range 40 {
			told.Go(func() {
				if _, err := e.Begin(t.Context(), op); stet.KindOf(err) != stet.KindInFlight {
					t.Error(err)
				}
				if time.Since(began) == 0 {
					atOnce.Add(1)
				} else {
					later.Add(1)
				}
			})
		}
		told.Wait()
		if took := time.Since(began); atOnce.Load() != 8 || later.Load() != 32 || inFlight.Load() != 40 || took > 10*time.Second {
			t.Errorf("%d at once, %d after %v; %d observed", atOnce.Load(), later.Load(), took, inFlight.Load())
		}
		close(store.gate)
		led.Wait()
	})
}

// TestUnacknowledgedClaimsAreAllReleased: nothing ran under them, so
// none becomes unknown, even if the store is down for longer than a lease.
func TestUnacknowledgedClaimsAreAllReleased(t *testing.T) {
	for name, away := range map[string]time.Duration{"shortly": time.Second, "for longer than the lease": 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			st := newSpy()
			there := &absent{spy: st}
			st.claimAfter = true
			st.failClaim.Store(&errDown)
			there.gone.Store(true)
			e := newEngine(t, there, stet.Options{SweepEvery: -1})
			const n = 2000
			key := func(i int) stet.Op { return stet.Op{Scope: "s", Key: fmt.Sprint(i)} }
			if kinds := herd(t, e, n, key); kinds[stet.KindStore] != n {
				t.Fatal(name, kinds)
			}
			time.Sleep(away)
			st.failClaim.Store(nil)
			there.gone.Store(false)
			time.Sleep(2 * time.Minute)
			_, _ = st.Sweep(t.Context(), 2*n)
			if p, err := st.Browse(t.Context(), store.Query{States: []store.State{store.Unknown, store.Running}, Limit: store.MaxBrowse}); err != nil || len(p.Records) > 0 {
				t.Errorf("%s: %d records are running or unknown, though nothing ran, %v", name, len(p.Records), err)
			}
		})
	}
}

// absent is a store that cannot be asked while it is gone.
type absent struct {
	*spy
	gone  atomic.Bool
	reads atomic.Int64
}

func (s *absent) Read(ctx context.Context, id store.ID) (store.Record, error) {
	s.reads.Add(1)
	if s.gone.Load() {
		return store.Record{}, errDown
	}
	return s.spy.Read(ctx, id)
}

func (s *absent) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	if s.gone.Load() {
		return errDown
	}
	return s.spy.Release(ctx, c, keep)
}
