package storetest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// racers is how many goroutines meet on one key.
const racers = 32

var raceChecks = []check{
	{"of many claims of one free key exactly one is granted", "two grants are two executions.",
		raceToClaim},
	{"of many claims of one retryable key exactly one is granted", "two grants are two executions.",
		raceToRetry},
	{"of many claims with different fingerprints one is granted, the rest are mismatches", "the check for a mismatch belongs to the same atomic step as the claim.",
		raceOfFingerprints},
	{"of many different outcomes under one fence exactly one is written", "all callers must get the same outcome.",
		raceToSettle},
	{"of a settle and a release under one fence exactly one comes through", "the key cannot be settled and free at once.",
		raceSettleRelease},
	{"a settle succeeds while others mark its claim unknown", "whichever comes first, no other run has begun.",
		raceSettlePark},
	{"many keys are claimed and settled side by side", "load is no reason for an error.",
		manyKeys},
}

// race calls f in n goroutines that start together.
func race(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}

// raceClaims claims concurrently and returns the winner's record. Everyone else
// must have seen it.
func (f *fixture) raceClaims(req store.ClaimRequest) store.Record {
	f.Helper()
	reqs := make([]store.ClaimRequest, racers)
	recs := make([]store.Record, racers)
	errs := make([]error, racers)
	for i := range reqs {
		reqs[i] = byAnother(req)
	}
	race(racers, func(i int) { recs[i], errs[i] = f.store.Claim(f.ctx, reqs[i]) })
	var winner store.Record
	wins := 0
	for i, rec := range recs {
		if errs[i] != nil {
			f.Fatalf("Claim: %v", errs[i])
		}
		if granted(rec, reqs[i]) {
			winner = rec
			wins++
		}
	}
	if wins != 1 {
		f.Fatalf("of %d concurrent claims of one key %d were granted; want 1", racers, wins)
	}
	for _, rec := range recs {
		if d := diff(winner, rec); d != "" {
			f.Errorf("one of the claims that were refused saw another record than the winner: %s", d)
		}
	}
	f.unchanged("the race", winner)
	return winner
}

func raceToClaim(f *fixture) {
	for range 10 {
		f.raceClaims(f.request(f.long))
	}
}

func raceToRetry(f *fixture) {
	req := f.request(f.long)
	rec := f.grant(req)
	for range 10 {
		f.release(rec.Claim(), f.keep)
		next := f.raceClaims(req)
		if next.Fence <= rec.Fence || next.Attempt != rec.Attempt+1 {
			f.Errorf("after %s came %s", show(rec), show(next))
		}
		rec = next
	}
}

func raceOfFingerprints(f *fixture) {
	req := f.request(f.long)
	reqs := make([]store.ClaimRequest, racers)
	recs := make([]store.Record, racers)
	errs := make([]error, racers)
	for i := range reqs {
		reqs[i] = byAnother(req)
		reqs[i].Fingerprint = stet.NewFingerprint([]byte{byte(i)})
	}
	race(racers, func(i int) { recs[i], errs[i] = f.store.Claim(f.ctx, reqs[i]) })
	wins, mismatches := 0, 0
	for i, rec := range recs {
		switch {
		case errs[i] == nil && granted(rec, reqs[i]):
			wins++
		case errors.Is(errs[i], store.ErrMismatch):
			mismatches++
		default:
			f.Errorf("a claim with another fingerprint got %s, %v; want ErrMismatch", show(rec), errs[i])
		}
	}
	if wins != 1 || mismatches != racers-1 {
		f.Errorf("of %d claims with different fingerprints %d were granted and %d refused as mismatches; want 1 and %d", racers, wins, mismatches, racers-1)
	}
}

func raceToSettle(f *fixture) {
	for range 5 {
		req := f.request(f.long)
		c := f.grant(req).Claim()
		errs := make([]error, racers)
		seen := make([]store.Record, racers)
		out := func(i int) store.Settlement {
			return store.Settlement{State: []store.State{store.Completed, store.Failed}[i%2], Result: result(fmt.Sprint("outcome ", i))}
		}
		race(racers, func(i int) {
			errs[i] = f.store.Settle(f.ctx, c, out(i), f.keep)
			seen[i], _ = f.store.Read(f.ctx, c.ID)
		})
		winner := -1
		for i, err := range errs {
			if err == nil && winner >= 0 {
				f.Errorf("two different outcomes were both accepted: %s and %s", shown(out(winner).Result), shown(out(i).Result))
			}
			if err == nil {
				winner = i
			} else {
				f.fenced("an outcome that came second", err)
			}
		}
		if winner < 0 {
			f.Fatalf("of %d outcomes none was accepted", racers)
		}
		for _, rec := range append(seen, f.read(c.ID), f.claim(byAnother(req))) {
			if rec.State != out(winner).State || !rec.Result.Equal(out(winner).Result) {
				f.Errorf("after %s was accepted, a reader saw %s", shown(out(winner).Result), show(rec))
			}
		}
	}
}

func raceSettleRelease(f *fixture) {
	for round := range 20 {
		c := f.grant(f.request(f.long)).Claim()
		var settled, released error
		either := func(i int) {
			if i == 0 {
				settled = f.store.Settle(f.ctx, c, completed("x"), f.keep)
			} else {
				released = f.store.Release(f.ctx, c, f.keep)
			}
		}
		if round < 2 { // each order once for certain, the rest by chance
			either(round)
			either(1 - round)
		} else {
			race(2, either)
		}
		want := store.Completed
		lost := released
		if settled != nil {
			want, lost = store.Retryable, settled
		}
		if (settled == nil) == (released == nil) {
			f.Errorf("Settle returned %v and Release %v; want exactly one to succeed", settled, released)
		}
		f.fenced("the second one", lost)
		f.is("a settle and a release at once", c.ID, want, c.Fence)
	}
}

func raceSettlePark(f *fixture) {
	reqs := make([]store.ClaimRequest, 20)
	claims := make([]store.Claim, len(reqs))
	for i := range reqs {
		reqs[i] = f.request(f.unit)
		claims[i] = f.grant(reqs[i]).Claim()
	}
	f.pass(1)
	race(3*len(reqs), func(i int) {
		req, c := reqs[i/3], claims[i/3]
		if i%3 == 0 {
			if err := f.store.Settle(f.ctx, c, completed("late"), f.keep); err != nil {
				f.Errorf("a late settle, while others claim: %v", err)
			}
			return
		}
		if rec, err := f.store.Claim(f.ctx, byAnother(req)); err != nil || rec.State != store.Unknown && rec.State != store.Completed {
			f.Errorf("a claim beside a late settle got %s, %v; want it unknown or completed", show(rec), err)
		}
	})
	for _, c := range claims {
		f.is("a late settle, while others claimed", c.ID, store.Completed, c.Fence)
	}
}

func manyKeys(f *fixture) {
	n := 200
	if testing.Short() {
		n = 50
	}
	race(n, func(i int) {
		req := f.request(f.long)
		rec, err := f.store.Claim(f.ctx, req)
		if err != nil || !granted(rec, req) {
			f.Errorf("Claim got %s, %v", show(rec), err)
			return
		}
		if err := f.store.Settle(f.ctx, rec.Claim(), completed(rec.ID.String()), f.keep); err != nil {
			f.Errorf("Settle: %v", err)
		}
		if rec, err = f.store.Read(f.ctx, req.ID); err != nil || text(rec.Result) != req.ID.String() {
			f.Errorf("Read got %s, %v", show(rec), err)
		}
	})
}
