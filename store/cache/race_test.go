package cache_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/cache"
	"github.com/stet-go/stet/store/memory"
)

// delayed is a store whose replies can be delayed after the call took effect.
type delayed struct {
	*memory.Store
	reply  atomic.Int64 // nanoseconds by which the next reply of Claim is delayed
	onRead func()       // after the record was read; once
}

func (d *delayed) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	rec, err := d.Store.Claim(ctx, req)
	time.Sleep(time.Duration(d.reply.Swap(0)))
	return rec, err
}

func (d *delayed) Read(ctx context.Context, id store.ID) (store.Record, error) {
	rec, err := d.Store.Read(ctx, id)
	if f := d.onRead; f != nil {
		d.onRead = nil
		f()
	}
	return rec, err
}

// After a slow reply the clock is known only roughly, and an old time passes for a new one.
func TestOutcomeIsNotReturnedPastItsExpiry_ReadingAfterASlowReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &delayed{Store: memory.New(memory.Options{})}
		c := wrap(t, s, cache.Options{MaxAge: time.Hour})
		slow, repeated, other := request("slow"), request("repeated"), request("other")
		settled(t, s, other, store.Retention{Result: time.Minute, Tombstone: time.Hour})
		s.reply.Store(int64(20 * time.Second))
		go func() {
			if _, err := c.Claim(t.Context(), slow); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(5 * time.Second)
		rec, err := s.Store.Claim(t.Context(), repeated)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(17 * time.Second)
		if lost, err := s.Extend(t.Context(), []store.Claim{rec.Claim()}, repeated.Lease); err != nil || len(lost) > 0 {
			t.Fatalf("Extend: lost %v, %v", lost, err)
		}
		if _, err := c.Claim(t.Context(), repeated); err != nil {
			t.Fatal(err)
		}
		again(t, c, other)
		time.Sleep(39 * time.Second)
		if rec := again(t, c, other); !rec.Gone {
			t.Errorf("past its ExpiresAt the cache returned %+v", rec)
		}
	})
}

func TestExpireDropsTheOutcome_ReadInProgress(t *testing.T) {
	s := &delayed{Store: memory.New(memory.Options{})}
	c := wrap(t, s, cache.Options{})
	req := request("k")
	claim := settled(t, c, req, keep).Claim()
	s.onRead = func() {
		if err := as[store.Browser](t, c).Expire(t.Context(), claim); err != nil {
			t.Error(err)
		}
	}
	if rec, err := c.Read(t.Context(), req.ID); err != nil || rec.Gone {
		t.Fatalf("the read in progress: %+v, %v", rec, err)
	}
	if rec, err := c.Read(t.Context(), req.ID); err != nil || !rec.Gone {
		t.Errorf("after Expire: %+v, %v; want the result discarded", rec, err)
	}
}
