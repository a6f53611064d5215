package redis_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
)

// The record is settled on the master, so no answer may say that nothing was executed.
func TestRetryOfAnUnconfirmedOutcomeIsUnknown(t *testing.T) {
	t.Parallel()
	eachReplicated(t, func(t *testing.T, p pair, _, hasty *redis.Store) {
		p.pause(t)
		free := openOn(t, p)
		mustSettle(t, free, mustClaim(t, free, request("late")).Claim(), "x")
		late := request("late")
		for what, call := range map[string]func() error{
			"Claim":  func() error { _, err := hasty.Claim(t.Context(), late); return err },
			"Read":   func() error { _, err := hasty.Read(t.Context(), late.ID); return err },
			"Look":   func() error { _, err := hasty.Look(t.Context(), late.ID); return err },
			"Accept": func() error { _, err := hasty.Accept(t.Context(), late, []byte("work"), 0); return err },
			"Take": func() error {
				_, err := hasty.Take(t.Context(), store.TakeRequest{ID: late.ID, Owner: store.NewOwner(), Lease: time.Minute})
				return err
			},
		} {
			err := call()
			if lacking(t, what, err); !errors.Is(err, store.ErrUnknown) {
				t.Errorf("%s of an unconfirmed outcome: %v; want ErrUnknown", what, err)
			}
		}
		e := stettest.Engine(t, hasty, stet.Options{SweepEvery: -1, StoreTimeout: time.Second})
		if _, err := e.Status(t.Context(), "test", late.ID); stet.ExecutionOf(err) == stet.NotExecuted {
			t.Errorf("Status: %v", err)
		}
		p.resume(t)
	})
}

// openOn opens a store on the master that waits for no replica.
func openOn(t testing.TB, p pair) *redis.Store {
	t.Helper()
	return open(t, dial(t, libraries[0], p.master.Addr()), redis.Options{Prefix: "p"})
}

func TestMessageIsNotSentBeforeReplicasHaveItsOutcome(t *testing.T) {
	t.Parallel()
	eachReplicated(t, func(t *testing.T, p pair, s, hasty *redis.Store) {
		p.pause(t)
		outcome := completed("x")
		outcome.Outbox = []byte("messages")
		free := openOn(t, p)
		if err := free.Settle(t.Context(), mustClaim(t, free, request("k")).Claim(), outcome, keep); err != nil {
			t.Fatal(err)
		}
		recs, err := hasty.DueMessages(t.Context(), 10, time.Microsecond)
		if lacking(t, "DueMessages", err); len(recs) != 0 {
			t.Errorf("messages of an outcome that no replica has: %+v", recs)
		}
		p.resume(t)
		stettest.Eventually(t, "the message is sent", func() bool {
			recs, err := s.DueMessages(t.Context(), 10, time.Minute)
			return err == nil && len(recs) == 1 && string(recs[0].Outbox) == "messages"
		})
	})
}
