package memory_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/storetest"
)

// clock stands still until it is moved.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(_ testing.TB, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestConformsOnAnInjectedClock(t *testing.T) {
	c := newClock()
	storetest.Run(t, storetest.Harness{
		New:     func(testing.TB) store.Store { return memory.New(memory.Options{Clock: c.Now}) },
		Advance: c.Advance,
	})
}

// The way in which a server's store is tested.
func TestConformsOnTheRealClock(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		New:       func(testing.TB) store.Store { return memory.New(memory.Options{}) },
		Unit:      100 * time.Millisecond,
		Histories: 5,
	})
}

func request(lease time.Duration) store.ClaimRequest {
	return store.ClaimRequest{ID: store.Digest("", "acct_1", stet.NewKey()), Owner: store.NewOwner(), Lease: lease}
}

func TestFullStoreRefusesNewKeysOnly(t *testing.T) {
	c := newClock()
	s := memory.New(memory.Options{MaxRecords: 2, Clock: c.Now})
	first := request(time.Minute)
	rec, err := s.Claim(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(t.Context(), request(time.Minute)); err != nil {
		t.Fatal(err)
	}
	third := request(time.Minute)
	if rec, err := s.Claim(t.Context(), third); !errors.Is(err, store.ErrNotDone) || rec.State != store.None {
		t.Errorf("a third key in a store for two: %v, %v; want ErrNotDone", rec.State, err)
	}
	if rec, err := s.Accept(t.Context(), third, nil, 0); !errors.Is(err, store.ErrNotDone) || rec.State != store.None {
		t.Errorf("a third key in a store for two was accepted: %v, %v; want ErrNotDone", rec.State, err)
	}
	if s.Len() != 2 {
		t.Errorf("it holds %d records", s.Len())
	}

	// Existing records continue to work at the limit.
	if again, err := s.Claim(t.Context(), first); err != nil || again.Owner != first.Owner {
		t.Errorf("a key that is held: %v", err)
	}
	keep := store.Retention{Result: time.Minute, Tombstone: time.Hour}
	if err := s.Settle(t.Context(), rec.Claim(), store.Settlement{State: store.Completed}, keep); err != nil {
		t.Errorf("Settle: %v", err)
	}

	// Forgetting makes room.
	c.Advance(t, time.Hour)
	if _, err := s.Sweep(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(t.Context(), third); err != nil {
		t.Errorf("after a record was forgotten: %v", err)
	}
}

func TestSweepReadsNoMoreThanItsLimit(t *testing.T) {
	c := newClock()
	s := memory.New(memory.Options{Clock: c.Now})
	for range 25 {
		if _, err := s.Claim(t.Context(), request(time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	c.Advance(t, time.Minute)
	for i, want := range []store.Swept{{MarkedUnknown: 10, More: true}, {MarkedUnknown: 10, More: true}, {MarkedUnknown: 5}, {More: true}} {
		if got, err := s.Sweep(t.Context(), 10); err != nil || got != want {
			t.Errorf("sweep %d: %+v, %v; want %+v", i+1, got, err, want)
		}
	}
}

func TestPurgingDuringASweepSkipsNoRecord(t *testing.T) {
	c := newClock()
	s := memory.New(memory.Options{Clock: c.Now})
	for i := range 20 { // to forget and to mark unknown, in turns
		rec, err := s.Claim(t.Context(), request(time.Second))
		if err == nil && i%2 == 0 {
			err = s.Settle(t.Context(), rec.Claim(), store.Settlement{State: store.Failed}, store.Retention{Result: 1, Tombstone: 2})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c.Advance(t, time.Minute)
	if got, err := s.Sweep(t.Context(), 100); err != nil || got != (store.Swept{MarkedUnknown: 10, Purged: 10}) || s.Len() != 10 {
		t.Errorf("Sweep: %+v, %v, and %d records are left; want 10 unknown, 10 purged, 10 left", got, err, s.Len())
	}
}

func TestWatcherWakesWhenTheLeaseRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Options{})
		rec, err := s.Claim(t.Context(), request(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		time.AfterFunc(30*time.Second, func() { // a heartbeat
			if _, err := s.Extend(t.Context(), []store.Claim{rec.Claim()}, time.Minute); err != nil {
				t.Error(err)
			}
		})
		if err := s.Watch(t.Context(), rec.ID, rec.Fence); err != nil || time.Since(start) != 90*time.Second {
			t.Errorf("Watch returned %v after %v; want it when the renewed lease runs out, after 90 s", err, time.Since(start))
		}
	})
}

func TestNegativeMaxRecordsPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("New accepted a negative MaxRecords")
		}
	}()
	memory.New(memory.Options{MaxRecords: -1})
}
