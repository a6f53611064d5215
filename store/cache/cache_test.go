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
	"github.com/stet-go/stet/store"
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
	away  atomic.Bool // cannot be read
}

func (c *counted) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	c.asked.Add(1)
	return c.Store.Claim(ctx, req)
}

func (c *counted) Read(ctx context.Context, id store.ID) (store.Record, error) {
	c.asked.Add(1)
	if c.away.Load() {
		return store.Record{}, errors.New("the store is away")
	}
	return c.Store.Read(ctx, id)
}

var keep = store.Retention{Result: time.Hour, Tombstone: 2 * time.Hour}

func request(key string) store.ClaimRequest {
	return store.ClaimRequest{
		ID: store.Digest("", "test", key), Scope: store.DigestScope("", "test"),
		Fingerprint: stet.NewFingerprint([]byte("body")), Owner: store.NewOwner(), Lease: time.Minute,
	}
}

func wrap(t testing.TB, s store.Store, o cache.Options) store.Store {
	t.Helper()
	c, err := cache.New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// as is what the engine finds s to be.
func as[T any](t testing.TB, s store.Store) T {
	t.Helper()
	can, ok := store.As[T](s)
	if !ok {
		t.Fatalf("%T is no %T", s, &can)
	}
	return can
}

// settled claims and settles a key.
func settled(t testing.TB, s store.Store, req store.ClaimRequest, keep store.Retention) store.Record {
	t.Helper()
	rec, err := s.Claim(t.Context(), req)
	if err != nil || rec.Owner != req.Owner {
		t.Fatalf("Claim: %+v, %v", rec, err)
	}
	if err := s.Settle(t.Context(), rec.Claim(), store.Settlement{State: store.Completed, Result: store.Result{Body: []byte("result")}}, keep); err != nil {
		t.Fatal(err)
	}
	return rec
}

// again claims a settled key.
func again(t testing.TB, s store.Store, req store.ClaimRequest) store.Record {
	t.Helper()
	req.Owner = store.NewOwner()
	rec, err := s.Claim(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func TestCacheKeepsTheContract(t *testing.T) {
	storetest.Run(t, storetest.Harness{New: func(t testing.TB) store.Store {
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
		if rec := again(t, c, req); string(rec.Result.Body) != "result" || rec.Fence != first.Fence || rec.ExpiresAt != first.ExpiresAt {
			t.Fatalf("a replay from the cache is %+v", rec)
		}
		if rec, err := c.Read(t.Context(), req.ID); err != nil || string(rec.Result.Body) != "result" {
			t.Fatalf("Read: %+v, %v", rec, err)
		}
	}
	if n := s.asked.Load() - asked; n != 0 {
		t.Errorf("the store was asked %d times for a cached outcome", n)
	}
	req.Fingerprint = stet.NewFingerprint([]byte("another"))
	if rec, err := c.Claim(t.Context(), req); !errors.Is(err, store.ErrMismatch) || rec.Fence != first.Fence {
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
	for _, req := range []store.ClaimRequest{running, gone, retryable} {
		rec, err := c.Claim(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		switch req {
		case gone:
			err = c.Settle(t.Context(), rec.Claim(), store.Settlement{State: store.Failed, Gone: true}, keep)
		case retryable:
			err = c.Release(t.Context(), rec.Claim(), keep)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	asked := s.asked.Load()
	for range 3 {
		for _, req := range []store.ClaimRequest{running, gone, retryable} {
			if _, err := c.Read(t.Context(), req.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := s.asked.Load() - asked; n != 9 {
		t.Errorf("of 9 reads of records that can change %d reached the store", n)
	}
}

func TestOutcomeIsNotReturnedPastItsExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		offset := 1000 * time.Hour // the store's clock is its own affair
		clock := func() time.Time { return time.Now().Add(offset) }
		s := &counted{Store: memory.New(memory.Options{Clock: clock})}
		c := wrap(t, s, cache.Options{MaxAge: 24 * time.Hour})
		req := request("k")
		settled(t, c, req, store.Retention{Result: time.Minute, Tombstone: time.Hour})
		again(t, c, req)
		asked := s.asked.Load()
		time.Sleep(50 * time.Second)
		if rec := again(t, c, req); string(rec.Result.Body) != "result" || s.asked.Load() != asked {
			t.Errorf("after 50 s of a minute the record is %+v, and the store was asked %d times", rec, s.asked.Load()-asked)
		}
		time.Sleep(10 * time.Second)
		if rec := again(t, c, req); !rec.Gone {
			t.Errorf("past its ExpiresAt the cache returned %+v", rec)
		}
		time.Sleep(time.Hour)
		if rec := again(t, c, req); rec.State != store.Running {
			t.Errorf("past its ForgetAt the key is not free: %+v", rec)
		}
	})
}

func TestClockIsRight_ReplyLost(t *testing.T) {
	for name, call := range map[string]func(store.WorkStore, store.ClaimRequest) error{
		"Claim": func(s store.WorkStore, req store.ClaimRequest) error { _, err := s.Claim(t.Context(), req); return err },
		"Accept": func(s store.WorkStore, req store.ClaimRequest) error {
			_, err := s.Accept(t.Context(), req, []byte("work"), 0)
			return err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &counted{Store: memory.New(memory.Options{})}
			req, other := request("k"), request("other")
			settled(t, s, other, store.Retention{Result: time.Minute, Tombstone: time.Hour})
			if err := call(s.Store, req); err != nil { // past the cache
				t.Fatal(err)
			}
			time.Sleep(30 * time.Second)
			c := wrap(t, s, cache.Options{MaxAge: time.Hour})
			if err := call(as[store.WorkStore](t, c), req); err != nil {
				t.Fatal(err)
			}
			again(t, c, other)
			time.Sleep(31 * time.Second)
			if rec := again(t, c, other); !rec.Gone {
				t.Errorf("after a repeated %s, the cache returned past its ExpiresAt %+v", name, rec)
			}
		})
	}
}

// A claim of one's own that was extended says nothing of what the store's clock shows now.
func TestRepeatedClaimThatWasExtendedIsNoReadingOfTheClock(t *testing.T) {
	for name, lease := range map[string]time.Duration{"the same lease": time.Minute, "a shorter lease": time.Second} {
		synctest.Test(t, func(t *testing.T) {
			c := wrap(t, memory.New(memory.Options{}), cache.Options{MaxAge: time.Hour})
			req, other := request("k"), request("other")
			rec, err := c.Claim(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			settled(t, c, other, store.Retention{Result: time.Minute, Tombstone: time.Hour})
			time.Sleep(30 * time.Second)
			if lost, err := c.Extend(t.Context(), []store.Claim{rec.Claim()}, time.Minute); err != nil || len(lost) > 0 {
				t.Fatalf("Extend: lost %v, %v", lost, err)
			}
			req.Lease = lease
			if again, err := c.Claim(t.Context(), req); err != nil || again.Fence != rec.Fence {
				t.Fatalf("repeated Claim: %+v, %v", again, err)
			}
			again(t, c, other)
			time.Sleep(31 * time.Second)
			if rec := again(t, c, other); !rec.Gone {
				t.Errorf("after a repeated claim for %s, the cache returned past its ExpiresAt %+v", name, rec)
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

func (browser) Browse(context.Context, store.Query) (store.Page, error) {
	return store.Page{Next: "here"}, nil
}

func (b browser) Expire(_ context.Context, c store.Claim) error { return errExpired }

var errExpired = errors.New("expired")

func TestExpireDropsTheOutcome(t *testing.T) {
	s := &counted{Store: memory.New(memory.Options{})}
	c := wrap(t, browser{s}, cache.Options{})
	req := request("k")
	rec := settled(t, c, req, keep)
	again(t, c, req)
	asked := s.asked.Load()
	if err := as[store.Browser](t, c).Expire(t.Context(), rec.Claim()); !errors.Is(err, errExpired) {
		t.Errorf("Expire is not passed on: %v", err)
	}
	if again(t, c, req); s.asked.Load() != asked+1 {
		t.Error("after Expire the outcome came from the cache")
	}
	if p, err := as[store.Browser](t, c).Browse(t.Context(), store.Query{}); err != nil || p.Next != "here" {
		t.Errorf("Browse is not passed on: %+v, %v", p, err)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	const limit, each, n = 1 << 20, 10 << 10, 1000
	s := &counted{Store: memory.New(memory.Options{})}
	c := wrap(t, s, cache.Options{MaxBytes: limit})
	var reqs []store.ClaimRequest
	for i := range n {
		req := request(fmt.Sprint(i))
		reqs = append(reqs, req)
		rec, err := c.Claim(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Settle(t.Context(), rec.Claim(), store.Settlement{State: store.Completed, Result: store.Result{Body: make([]byte, each)}}, keep); err != nil {
			t.Fatal(err)
		}
		again(t, c, req)
	}
	s.away.Store(true) // so that the counted entries evict none
	atHand := func() (hits int) {
		for _, req := range reqs {
			if _, err := c.Read(t.Context(), req.ID); err == nil {
				hits++
			}
		}
		return hits
	}
	hits := atHand()
	for end := time.Now().Add(time.Minute); hits*each > 2*limit && time.Now().Before(end); hits = atHand() {
		runtime.Gosched() // the cache evicts in the background
	}
	if hits == 0 || hits*each > 2*limit {
		t.Errorf("%d results of %d bytes were cached; the limit is %d bytes", hits, each, limit)
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

// partial is a store of which a part cannot be reached or read.
type partial struct {
	*memory.Store
	err *store.PartialError
}

func (p partial) Extend(_ context.Context, claims []store.Claim, _ time.Duration) ([]store.Claim, error) {
	return claims[:1], p.err
}

func (p partial) Sweep(context.Context, int) (store.Swept, error) {
	return store.Swept{MarkedUnknown: 2, More: true}, p.err
}

func (p partial) Due(context.Context, int, time.Duration, ...string) ([]store.Record, error) {
	return []store.Record{{ID: store.ID{1}}}, p.err
}

func (p partial) Claim(context.Context, store.ClaimRequest) (store.Record, error) {
	return store.Record{}, store.ErrDamaged
}

func TestResultsBesideAPartialErrorPass(t *testing.T) {
	claim := store.Claim{ID: store.ID{1}, Fence: 1}
	err := &store.PartialError{Claims: []store.Claim{{ID: store.ID{2}}}, Cause: store.ErrDamaged}
	c := wrap(t, partial{memory.New(memory.Options{}), err}, cache.Options{})
	lost, extended := c.Extend(t.Context(), []store.Claim{claim}, time.Minute)
	swept, sweeping := as[store.Sweeper](t, c).Sweep(t.Context(), 10)
	due, handed := as[store.WorkStore](t, c).Due(t.Context(), 10, time.Minute)
	if len(lost) != 1 || swept.MarkedUnknown != 2 || !swept.More || len(due) != 1 {
		t.Errorf("lost %v, swept %+v, due %v", lost, swept, due)
	}
	for what, got := range map[string]error{"Extend": extended, "Sweep": sweeping, "Due": handed} {
		if got != error(err) {
			t.Errorf("%s: %v", what, got)
		}
	}
	if _, got := c.Claim(t.Context(), request("k")); !errors.Is(got, store.ErrDamaged) {
		t.Errorf("Claim: %v", got)
	}
}

// unconfirmed is a store that refuses another request at once, but returns no outcome
// before it is as durable as promised.
type unconfirmed struct {
	*memory.Store
	confirmed bool
}

func (u *unconfirmed) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	rec, err := u.Store.Claim(ctx, req)
	if err == nil && rec.State.Settled() && !u.confirmed {
		return store.Record{}, store.ErrUnknown
	}
	return rec, err
}

func (u *unconfirmed) Accept(ctx context.Context, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	rec, err := u.Store.Accept(ctx, req, work, after)
	if err == nil && rec.State.Settled() && !u.confirmed {
		return store.Record{}, store.ErrUnknown
	}
	return rec, err
}

func TestOutcomeThatCameWithARefusalIsNotCached(t *testing.T) {
	s := &unconfirmed{Store: memory.New(memory.Options{})}
	c := wrap(t, s, cache.Options{})
	req := request("k")
	settled(t, c, req, keep)
	another := req
	another.Owner, another.Fingerprint = store.NewOwner(), stet.NewFingerprint([]byte("another"))
	req.Owner = store.NewOwner()
	if _, err := c.Claim(t.Context(), another); !errors.Is(err, store.ErrMismatch) {
		t.Errorf("another request: %v", err)
	}
	if _, err := as[store.WorkStore](t, c).Accept(t.Context(), another, []byte("work"), 0); !errors.Is(err, store.ErrMismatch) {
		t.Errorf("another request, to be accepted: %v", err)
	}
	if rec, err := c.Claim(t.Context(), req); !errors.Is(err, store.ErrUnknown) {
		t.Errorf("an unconfirmed outcome: %+v, %v; want ErrUnknown", rec, err)
	}
	s.confirmed = true
	if rec := again(t, c, req); rec.State != store.Completed {
		t.Errorf("a confirmed outcome: %+v", rec)
	}
}
