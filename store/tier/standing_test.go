package tier_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/tier"
)

// loseSettle settles, and restores the records that Redis had before. SQL has the outcome then,
// and Redis the claim.
func (s *stand) loseSettle(t *testing.T, c store.Claim, result string) {
	t.Helper()
	before := make(map[string]string)
	for _, key := range s.redis(t, "KEYS", "*").([]any) {
		if dump, ok := s.redis(t, "DUMP", key.(string)).(string); ok {
			before[key.(string)] = dump
		}
	}
	mustSettle(t, s, c, result)
	s.flush()
	for key, dump := range before {
		s.redis(t, "RESTORE", key, "0", dump)
	}
	if rec := mustRead(t, s.front, c.ID); rec.State == store.Completed {
		t.Fatal("Redis has the outcome; this test needs a loss")
	}
}

func TestRedisThatLostASettleHasNoOtherOutcome(t *testing.T) {
	s := newStand(t, tier.Options{})
	req := request("twice resolved")
	c := mustClaim(t, s, req).Claim()
	s.loseSettle(t, c, "first")
	if err := s.Settle(t.Context(), c, completed("second"), keep); !errors.Is(err, store.ErrFenced) {
		t.Errorf("Settle with another outcome: %v; want ErrFenced", err)
	}
	s.mustReplay(t, "after the second settle", req, "first")
	mustSettle(t, s, c, "first") // a repetition
	s.mustReplay(t, "after the repetition", req, "first")
}

func TestPendingOutcomeIsNotReturnedIfSQLHasAnother(t *testing.T) {
	for name, read := range map[string]func(*stand, store.ClaimRequest) (store.Record, error){
		"Claim": func(s *stand, req store.ClaimRequest) (store.Record, error) {
			return s.Claim(t.Context(), byAnother(req))
		},
		"Read": func(s *stand, req store.ClaimRequest) (store.Record, error) { return s.Read(t.Context(), req.ID) },
	} {
		s := newStand(t, tier.Options{})
		req := request("pending")
		c := mustClaim(t, s, req).Claim()
		s.loseSettle(t, c, "first")
		s.back.insert = down
		if err := s.Settle(t.Context(), c, completed("second"), keep); !errors.Is(err, errDown) {
			t.Errorf("Settle while SQL is down: %v", err)
		}
		s.back.insert = nil
		if rec, err := read(s, req); err != nil || string(rec.Result.Body) != "first" {
			t.Errorf("%s returned the result %q, %v; want the first", name, rec.Result.Body, err)
		}
	}
}

// Redis loses a pending outcome after a claim has received it, and before SQL has it. The record that
// is returned then has no fingerprint, which must not become a mismatch.
func TestClaimIsGrantedIfRedisLosesAPendingOutcome(t *testing.T) {
	s := newStand(t, tier.Options{})
	req := request("lost while claimed")
	c := mustClaim(t, s, req).Claim()
	s.back.insert = down
	if err := s.Settle(t.Context(), c, completed("first"), keep); !errors.Is(err, errDown) {
		t.Fatalf("Settle while SQL is down: %v", err)
	}
	s.back.insert, s.front.look = nil, s.flush
	next := byAnother(req)
	rec, err := s.Claim(t.Context(), next)
	if err != nil || rec.State != store.Running || rec.Owner != next.Owner || rec.Fence <= c.Fence {
		t.Errorf("Claim returned %v with the fence %d after %d, %v; want a grant", rec.State, rec.Fence, c.Fence, err)
	}
}

func TestRedisThatLostASettleRepeatsIt(t *testing.T) {
	s := newStand(t, tier.Options{})
	req := request("repeated")
	c := mustClaim(t, s, req).Claim()
	s.loseSettle(t, c, "first")
	mustSettle(t, s, c, "first")
	s.mustReplay(t, "after the repetition", req, "first")
}

func TestReleaseDoesNotHideAnOutcomeInSQL(t *testing.T) {
	s := newStand(t, tier.Options{})
	req := request("released")
	c := mustClaim(t, s, req).Claim()
	s.loseSettle(t, c, "first")
	if err := s.Release(t.Context(), c, keep); !errors.Is(err, store.ErrFenced) {
		t.Errorf("Release of a settled operation: %v; want ErrFenced", err)
	}
	s.back.read = down
	if err := s.Release(t.Context(), c, keep); err != nil {
		t.Errorf("Release while SQL is down: %v", err)
	}
	s.back.read = nil
	if rec := mustRead(t, s, req.ID); rec.State != store.Completed {
		t.Errorf("after a release, Read returns %v; want the outcome in SQL", rec.State)
	}
	s.mustReplay(t, "after the release", req, "first")
}

// A caller with another request claims the key in Redis, and its process ends before it reads SQL.
func TestAbandonedClaimOfAnotherRequestHidesNoOutcome(t *testing.T) {
	s := newStand(t, tier.Options{Hot: time.Millisecond})
	req := request("hidden")
	mustSettle(t, s, mustClaim(t, s, req).Claim(), "first")
	stettest.Eventually(t, "the outcome to leave Redis", func() bool { return mustRead(t, s.front, req.ID).State == store.None })
	other := byAnother(req)
	other.Fingerprint[1]++
	mustClaim(t, s.front, other)
	s.mustReplay(t, "while the claim is in flight", req, "first")
	if _, err := s.Claim(t.Context(), byAnother(other)); err != nil && !errors.Is(err, store.ErrMismatch) {
		t.Errorf("the other request again: %v", err)
	}
	s.back.read = down
	if rec, err := s.Claim(t.Context(), byAnother(req)); !errors.Is(err, errDown) || errors.Is(err, store.ErrMismatch) {
		t.Errorf("Claim while SQL is down: %v, %v; want the error of SQL", rec.State, err)
	}
}

// The claim is in Redis then. An error that says otherwise would leave it there.
func TestClaimThatSQLDidNotConfirmIsNotCalledUndone(t *testing.T) {
	s := newStand(t, tier.Options{})
	req := request("undone")
	s.back.read = func() error { return errors.Join(errDown, store.ErrNotDone) }
	if _, err := s.Claim(t.Context(), req); !errors.Is(err, errDown) || errors.Is(err, store.ErrNotDone) {
		t.Errorf("Claim while SQL refuses reads: %v; want an error without ErrNotDone", err)
	}
	s.back.read = nil
	c := mustClaim(t, s, req).Claim()
	s.back.insert = func() error { return errors.Join(errDown, store.ErrNotDone) }
	if err := s.Settle(t.Context(), c, completed("first"), keep); !errors.Is(err, errDown) || errors.Is(err, store.ErrNotDone) {
		t.Errorf("Settle while SQL refuses writes: %v; want an error without ErrNotDone", err)
	}
	s.back.insert = nil
	req = request("damaged")
	s.back.read = func() error { return store.ErrDamaged }
	if _, err := s.Claim(t.Context(), req); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("Claim of a record that SQL cannot read: %v; want ErrDamaged", err)
	}
	if rec := mustRead(t, s.front, req.ID); rec.State != store.None {
		t.Errorf("that claim left a record in Redis that is %v", rec.State)
	}
}

func TestExpireReplacesARecordThatCannotBeRead(t *testing.T) {
	for name, hot := range map[string]time.Duration{"in SQL": time.Millisecond, "in both stores": time.Minute} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t, tier.Options{Hot: hot})
			req := request("damaged")
			mustSettle(t, s, mustClaim(t, s, req).Claim(), "first")
			if hot == time.Millisecond {
				stettest.Eventually(t, "the outcome to leave Redis", func() bool { return mustRead(t, s.front, req.ID).State == store.None })
			}
			rec := mustRead(t, s.back, req.ID)
			if _, err := s.back.DB().Exec("UPDATE stet_records SET fingerprint = x'' WHERE id = ?", req.ID[:]); err != nil {
				t.Fatal(err)
			}
			if err := s.Expire(t.Context(), rec.Claim()); err != nil {
				t.Errorf("Expire: %v", err)
			}
			if rec := mustRead(t, s, req.ID); rec.State != store.Failed || !rec.Gone {
				t.Errorf("the damaged record is now %v; want failed, without a result", rec.State)
			}
		})
	}
}

// redis sends a command to the server of the claims.
func (s *stand) redis(t *testing.T, args ...string) any {
	t.Helper()
	reply, err := s.client.Do(context.Background(), "", args...)
	if err != nil {
		t.Fatalf("%s: %v", args[0], err)
	}
	return reply
}
