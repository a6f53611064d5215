package cache_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/cache"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/storetest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counted is a store that counts how often it is asked.
type counted struct {
	*memory.Store
	asked atomic.Int64
}

func (c *counted) Claim(ctx context.Context, req stet.ClaimRequest) (stet.Record, error) {
	c.asked.Add(1)
	return c.Store.Claim(ctx, req)
}

func (c *counted) Read(ctx context.Context, id stet.ID) (stet.Record, error) {
	c.asked.Add(1)
	return c.Store.Read(ctx, id)
}

var keep = stet.Retention{Result: time.Hour, Tombstone: 2 * time.Hour}

func request(key string) stet.ClaimRequest {
	return stet.ClaimRequest{
		ID: stet.Digest("", "test", key), Scope: stet.DigestScope("", "test"),
		Fingerprint: stet.NewFingerprint([]byte("body")), Owner: stet.NewOwner(), Lease: time.Minute,
	}
}

// cached is what a cache does besides a stet.Store, always.
type cached interface {
	stet.Store
	stet.Watcher
	stet.Sweeper
	stet.Browser
}

func wrap(t testing.TB, s stet.Store, o cache.Options) cached {
	t.Helper()
	c, err := cache.New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	return c.(cached)
}

// settled claims and settles a key.
func settled(t testing.TB, s stet.Store, req stet.ClaimRequest, keep stet.Retention) stet.Record {
	t.Helper()
	rec, err := s.Claim(t.Context(), req)
	if err != nil || rec.Owner != req.Owner {
		t.Fatalf("Claim: %+v, %v", rec, err)
	}
	if err := s.Settle(t.Context(), rec.Claim(), stet.Outcome{State: stet.Completed, Result: []byte("result")}, keep); err != nil {
		t.Fatal(err)
	}
	return rec
}

// again claims a settled key.
func again(t testing.TB, s stet.Store, req stet.ClaimRequest) stet.Record {
	t.Helper()
	req.Owner = stet.NewOwner()
	rec, err := s.Claim(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func TestCacheKeepsTheContract(t *testing.T) {
	storetest.Run(t, storetest.Harness{New: func(t testing.TB) stet.Store {
		return wrap(t, memory.New(memory.Options{}), cache.Options{})
	}})
}

func TestReplayAsksTheStoreOnce(t *testing.T) {
	s := &counted{Store: memory.New(memory.Options{})}
	c := wrap(t, s, cache.Options{})
	req := request("k")
	settled(t, c, req, keep)
	first := again(t, c, req)
	asked := s.asked.Load()
	for range 10 {
		if rec := again(t, c, req); string(rec.Result) != "result" || rec.Fence != first.Fence || rec.ExpiresAt != first.ExpiresAt {
			t.Fatalf("a replay from the cache is %+v", rec)
		}
		if rec, err := c.Read(t.Context(), req.ID); err != nil || string(rec.Result) != "result" {
			t.Fatalf("Read: %+v, %v", rec, err)
		}
	}
	if n := s.asked.Load() - asked; n != 0 {
		t.Errorf("the store was asked %d times for an outcome that was at hand", n)
	}
	req.Fingerprint = stet.NewFingerprint([]byte("another"))
	if rec, err := c.Claim(t.Context(), req); !errors.Is(err, stet.ErrMismatch) || rec.Fence != first.Fence {
		t.Errorf("another fingerprint: %+v, %v; want ErrMismatch", rec, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Claim(ctx, request("k")); err == nil {
		t.Error("a caller that has left got an answer")
	}
}

func TestOnlySettledRecordsAreKept(t *testing.T) {
	s := &counted{Store: memory.New(memory.Options{})}
	c := wrap(t, s, cache.Options{})
	running, gone, retryable := request("running"), request("gone"), request("retryable")
	for _, req := range []stet.ClaimRequest{running, gone, retryable} {
		rec, err := c.Claim(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		switch req {
		case gone:
			err = c.Settle(t.Context(), rec.Claim(), stet.Outcome{State: stet.Failed, Gone: true}, keep)
		case retryable:
			err = c.Release(t.Context(), rec.Claim(), keep)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	asked := s.asked.Load()
	for range 3 {
		for _, req := range []stet.ClaimRequest{running, gone, retryable} {
			if _, err := c.Read(t.Context(), req.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := s.asked.Load() - asked; n != 9 {
		t.Errorf("of 9 reads of records that can change %d reached the store", n)
	}
}

func TestOutcomeIsNotHandedOutPastItsExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		offset := 1000 * time.Hour // the store's clock is its own affair
		clock := func() time.Time { return time.Now().Add(offset) }
		s := &counted{Store: memory.New(memory.Options{Clock: clock})}
		c := wrap(t, s, cache.Options{MaxAge: 24 * time.Hour})
		req := request("k")
		settled(t, c, req, stet.Retention{Result: time.Minute, Tombstone: time.Hour})
		again(t, c, req)
		asked := s.asked.Load()
		time.Sleep(50 * time.Second)
		if rec := again(t, c, req); string(rec.Result) != "result" || s.asked.Load() != asked {
			t.Errorf("after 50 s of a minute the record is %+v, and the store was asked %d times", rec, s.asked.Load()-asked)
		}
		time.Sleep(10 * time.Second)
		if rec := again(t, c, req); !rec.Gone {
			t.Errorf("past its ExpiresAt the cache handed out %+v", rec)
		}
		time.Sleep(time.Hour)
		if rec := again(t, c, req); rec.State != stet.Running {
			t.Errorf("past its ForgetAt the key is not free: %+v", rec)
		}
	})
}

func TestCallWhoseReplyWasLostTellsTheClockRightly(t *testing.T) {
	for name, call := range map[string]func(stet.WorkStore, stet.ClaimRequest) error{
		"Claim": func(s stet.WorkStore, req stet.ClaimRequest) error { _, err := s.Claim(t.Context(), req); return err },
		"Accept": func(s stet.WorkStore, req stet.ClaimRequest) error {
			_, err := s.Accept(t.Context(), req, []byte("work"), 0)
			return err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &counted{Store: memory.New(memory.Options{})}
			req, other := request("k"), request("other")
			settled(t, s, other, stet.Retention{Result: time.Minute, Tombstone: time.Hour})
			if err := call(s.Store, req); err != nil { // past the cache
				t.Fatal(err)
			}
			time.Sleep(30 * time.Second)
			c := wrap(t, s, cache.Options{MaxAge: time.Hour})
			if err := call(c.(stet.WorkStore), req); err != nil {
				t.Fatal(err)
			}
			again(t, c, other)
			time.Sleep(31 * time.Second)
			if rec := again(t, c, other); !rec.Gone {
				t.Errorf("after a repeated %s, the cache handed out past its ExpiresAt %+v", name, rec)
			}
		})
	}
}

func TestStoreIsAskedAgainAfterMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &counted{Store: memory.New(memory.Options{})}
		c := wrap(t, s, cache.Options{MaxAge: time.Second})
		req := request("k")
		settled(t, c, req, keep)
		again(t, c, req)
		asked := s.asked.Load()
		time.Sleep(time.Second)
		if again(t, c, req); s.asked.Load() != asked+1 {
			t.Errorf("after MaxAge the store was asked %d times; want once", s.asked.Load()-asked)
		}
	})
}

// browser is a store that can be browsed.
type browser struct{ *counted }

func (browser) Browse(context.Context, stet.Query) (stet.Page, error) {
	return stet.Page{Next: "here"}, nil
}

func (b browser) Expire(_ context.Context, c stet.Claim) error { return errExpired }

var errExpired = errors.New("expired")

func TestExpireDropsTheOutcome(t *testing.T) {
	s := &counted{Store: memory.New(memory.Options{})}
	c := wrap(t, browser{s}, cache.Options{})
	req := request("k")
	rec := settled(t, c, req, keep)
	again(t, c, req)
	asked := s.asked.Load()
	if err := c.Expire(t.Context(), rec.Claim()); !errors.Is(err, errExpired) {
		t.Errorf("Expire is not passed on: %v", err)
	}
	if again(t, c, req); s.asked.Load() != asked+1 {
		t.Error("after Expire the outcome came from the cache")
	}
	if p, err := c.Browse(t.Context(), stet.Query{}); err != nil || p.Next != "here" {
		t.Errorf("Browse is not passed on: %+v, %v", p, err)
	}
}

func TestWhatTheStoreCannotDoIsSaid(t *testing.T) {
	c := wrap(t, struct{ stet.Store }{memory.New(memory.Options{})}, cache.Options{})
	if err := c.Watch(t.Context(), stet.ID{}, 1); err == nil {
		t.Error("Watch of a store that cannot tell returned nil")
	}
	if swept, err := c.Sweep(t.Context(), 1); err != nil || swept != (stet.Swept{}) {
		t.Errorf("Sweep: %+v, %v", swept, err)
	}
	if _, err := c.Browse(t.Context(), stet.Query{}); !errors.Is(err, stet.ErrInvalid) {
		t.Errorf("Browse: %v", err)
	}
	if err := c.Expire(t.Context(), stet.Claim{}); !errors.Is(err, stet.ErrInvalid) {
		t.Errorf("Expire: %v", err)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	const limit, each, n = 1 << 20, 10 << 10, 1000
	s := &counted{Store: memory.New(memory.Options{})}
	c := wrap(t, s, cache.Options{MaxBytes: limit})
	var reqs []stet.ClaimRequest
	for i := range n {
		req := request(fmt.Sprint(i))
		reqs = append(reqs, req)
		rec, err := c.Claim(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Settle(t.Context(), rec.Claim(), stet.Outcome{State: stet.Completed, Result: make([]byte, each)}, keep); err != nil {
			t.Fatal(err)
		}
		again(t, c, req)
	}
	for range 100 {
		runtime.Gosched() // the cache evicts in the background
	}
	asked := s.asked.Load()
	for _, req := range reqs {
		if _, err := c.Read(t.Context(), req.ID); err != nil {
			t.Fatal(err)
		}
	}
	if hits := n - (s.asked.Load() - asked); hits == 0 || hits*each > 2*limit {
		t.Errorf("%d results of %d bytes were at hand; the limit is %d bytes", hits, each, limit)
	}
}

func TestWrongOptionsAreRefused(t *testing.T) {
	if _, err := cache.New(nil, cache.Options{}); err == nil {
		t.Error("New took no store")
	}
	if _, err := cache.New(memory.New(memory.Options{}), cache.Options{MaxBytes: -1}); err == nil {
		t.Error("New took a negative MaxBytes")
	}
}
