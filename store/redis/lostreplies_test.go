package redis_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
)

// together has many callers at once, each with operations of its own.
func together(t *testing.T, callers, each int, call func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for i := range each {
				if err := call(i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestLostRepliesOfCallersTogetherAreHarmless(t *testing.T) {
	eachLossy(t, func(t *testing.T, p *lossy, s *redis.Store) {
		mustSettle(t, s, mustClaim(t, s, request("warm up")).Claim(), "x") // the scripts are known to the server
		// patiently makes a call again until it is answered.
		patiently := func(call func() error) (err error) {
			for range 1000 {
				if err = call(); err == nil || errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrMismatch) {
					return err
				}
				time.Sleep(time.Millisecond) // the client reconnects
			}
			return err
		}
		together(t, 64, 10, func(i int) error {
			if i%2 == 0 {
				p.armed.Add(1) // the next pipeline or command is executed, and not answered
			}
			req := request(stet.NewKey())
			var rec store.Record
			err := patiently(func() (err error) {
				rec, err = s.Claim(t.Context(), req)
				return err
			})
			if err != nil || rec.State != store.Running || rec.Owner != req.Owner || rec.Attempt != 1 {
				return fmt.Errorf("the claim is not what its caller has asked for: %+v, %w", rec, err)
			}
			return patiently(func() error { return s.Settle(t.Context(), rec.Claim(), completed("x"), keep) })
		})
		if p.lost.Load() == 0 {
			t.Error("no reply was lost")
		}
	})
}
