package storetest

import (
	"bytes"
	"time"

	"github.com/stet-go/stet/store"
)

var takeChecks = []check{
	{"a take in each state follows the state machine", "a worker may run accepted operations only; and it must get their work.",
		takeInEachState},
	{"a repeated take by the owner succeeds", "the reply to a take may be lost; its repetition must not conflict with itself.",
		ownTake},
	{"an owner takes once", "a take that was delayed on its way must not be granted after its owner has given the operation back and gone.",
		ownerTakesOnce},
	{"an accepted operation is taken with the next attempt", "the handler tells a first try from a repetition by the attempt, and others tell a zombie by the fence.",
		takesGrow},
	{"of many takes of one operation exactly one is granted", "queues deliver twice; two grants are two executions.",
		raceToTake},
	{"work that is to wait cannot be taken before its time", "queues deliver twice and early; backoff that only the queue knows of is none.",
		earlyTake},
	{"an expired taken operation becomes unknown, and keeps its work", "the expired run may have had its effect; after a release, the work must be runnable.",
		lapsedTakeIsParked},
}

func takeInEachState(f *fixture) {
	for _, s := range f.situations() {
		req := byAnother(s.req)
		req.Lease = f.long
		rec := f.take(req.ID, req.Owner, req.Lease)
		what := "Take of a key that is " + s.name
		switch {
		case s.state == store.Accepted:
			if !granted(rec, req) || rec.Fence <= s.claim.Fence || rec.Attempt != s.rec.Attempt+1 {
				f.Errorf("%s: want it granted with a fence above %d, and attempt %d; got %s", what, s.claim.Fence, s.rec.Attempt+1, show(rec))
			}
			if rec.LeaseLeft <= 0 || rec.LeaseLeft > f.long || rec.Fingerprint != s.req.Fingerprint || rec.Scope != s.req.Scope || !rec.SettledAt.IsZero() {
				f.Errorf("%s: LeaseLeft is %v of %v, SettledAt %v, or the scope or fingerprint is lost", what, rec.LeaseLeft, f.long, rec.SettledAt)
			}
		case s.lapsed:
			if rec.State != store.Unknown || rec.Fence != s.claim.Fence || rec.Owner != s.claim.Owner || rec.Attempt != s.rec.Attempt || rec.Label != s.rec.Label {
				f.Errorf("%s: want unknown under its fence %d, owner, attempt and label; got %s", what, s.claim.Fence, show(rec))
			}
		default:
			if d := diff(s.rec, rec); d != "" || rec.ID != s.req.ID {
				f.Errorf("%s: want the record unchanged; %s", what, d)
			}
		}
		if !bytes.Equal(rec.Work, s.whole.Work) || !sameNotes(rec.Notes, s.whole.Notes) || rec.Cancelling != s.whole.Cancelling {
			f.Errorf("%s returned the work %s, the notes %s and Cancelling %v; want its own: %s, %s and %v", what,
				brief(rec.Work), noted(rec.Notes), rec.Cancelling, brief(s.whole.Work), noted(s.whole.Notes), s.whole.Cancelling)
		}
		f.untouched("after "+what+", Look", rec)
	}
	if rec := f.take(f.request(0).ID, store.NewOwner(), f.long); rec.State != store.None {
		f.Errorf("Take of a key that was never accepted returned %s", show(rec))
	}
}

func ownTake(f *fixture) {
	for _, lease := range []time.Duration{f.unit, f.long} {
		req, first := f.taken(lease)
		f.pass(1) // also when its lease has run out
		before := f.look(req.ID)
		rec := f.take(req.ID, req.Owner, 10*f.long)
		if d := workDiff(before, rec); d != "" || !granted(rec, req) || rec.Fence != first.Fence {
			f.Errorf("the same take again returned %s; want its own record, %s", show(rec), show(first))
		}
		if rec.LeaseLeft > before.LeaseLeft {
			f.Errorf("the same take again prolonged the lease from %v to %v", before.LeaseLeft, rec.LeaseLeft)
		}
		f.untouched("the same take again", before)
	}
}

func ownerTakesOnce(f *fixture) {
	req := f.request(f.long)
	f.accepts(req, 0)
	refused := func(what string, owner store.Owner) {
		f.Helper()
		before := f.look(req.ID)
		if d := workDiff(before, f.take(req.ID, owner, f.long)); d != "" {
			f.Errorf("%s: want the record unchanged; %s", what, d)
		}
		f.untouched(what, before)
	}
	refused("a take by who has accepted it", req.Owner)
	for what, end := range map[string]func(store.Claim){
		"Return":  func(c store.Claim) { f.giveBack(c, 0) },
		"Release": func(c store.Claim) { f.release(c, f.keep) },
	} {
		req = byAnother(req)
		end(f.takes(req).Claim())
		refused("the same take again, after its "+what, req.Owner)
	}
	f.isDue("after takes were refused", req.ID)
}

func takesGrow(f *fixture) {
	req := f.request(f.long)
	last := f.accepts(req, 0).Fence
	for attempt := 1; attempt <= 4; attempt++ {
		req = byAnother(req)
		rec := f.takes(req)
		if rec.Attempt != attempt || rec.Fence <= last {
			f.Errorf("take %d: want attempt %d and a fence above %d; got %s", attempt, attempt, last, show(rec))
		}
		last = rec.Fence
		f.giveBack(rec.Claim(), 0)
		if now := f.read(req.ID); now.Fence != rec.Fence || now.Attempt != attempt || now.Owner != req.Owner {
			f.Errorf("Return lost the fence, the attempt or the owner: %s", show(now))
		}
	}
	rec := f.takes(byAnother(req))
	f.settle(rec.Claim(), completed("x"), store.Retention{Result: f.unit / 2, Tombstone: f.unit})
	f.pass(1)
	if again := f.accepts(byAnother(req), 0); again.Fence <= rec.Fence || again.Attempt != 0 {
		f.Errorf("accepted again, after it was forgotten: %s; want a fence above %d and no attempt", show(again), rec.Fence)
	}
}

func raceToTake(f *fixture) {
	for range 3 {
		req := f.request(f.long)
		f.accepts(req, 0)
		reqs, recs, errs := make([]store.ClaimRequest, racers), make([]store.Record, racers), make([]error, racers)
		race(racers, func(i int) {
			reqs[i] = byAnother(req)
			recs[i], errs[i] = f.can.works.Take(f.ctx, store.TakeRequest{ID: req.ID, Owner: reqs[i].Owner, Lease: f.long})
		})
		stands := f.look(req.ID)
		wins := 0
		for i, rec := range recs {
			if errs[i] != nil {
				f.Fatalf("Take beside others: %v", errs[i])
			}
			if granted(rec, reqs[i]) {
				wins++
			}
			if d := workDiff(stands, rec); d != "" {
				f.Errorf("a take beside others saw another record than stands: %s", d)
			}
		}
		if wins != 1 || stands.Attempt != 1 {
			f.Fatalf("of %d concurrent takes of one operation %d were granted; want 1: %s", racers, wins, show(stands))
		}
	}
}

func lapsedTakeIsParked(f *fixture) {
	markings := map[string]func(store.ClaimRequest) store.Record{
		"a take":        func(req store.ClaimRequest) store.Record { return f.take(req.ID, req.Owner, f.long) },
		"an acceptance": func(req store.ClaimRequest) store.Record { return f.accept(req, 0) },
		"a claim":       f.claim,
	}
	if sweeper := f.can.sweeper; sweeper != nil {
		markings["a sweep"] = func(req store.ClaimRequest) store.Record {
			f.sweepAll(sweeper)
			return f.read(req.ID)
		}
	}
	for by, mark := range markings {
		req, rec := f.taken(f.unit)
		f.save(rec.Claim(), version(1, "half way"))
		f.pass(1)
		f.isDue("past its lease")
		if now := mark(byAnother(req)); now.State != store.Unknown || now.Fence != rec.Fence {
			f.Errorf("past its lease, %s should mark it unknown under fence %d; it is %s", by, rec.Fence, show(now))
		}
		f.isDue("marked unknown by " + by)
		if now := f.look(req.ID); !bytes.Equal(now.Work, workOf(req.ID)) || !sameNotes(now.Notes, version(1, "half way")) {
			f.Errorf("marked unknown by %s, it has the work %s and the notes %s", by, brief(now.Work), noted(now.Notes))
		}
		f.release(rec.Claim(), f.keep)
		f.isDue("marked unknown by "+by+" and released", req.ID)
		if next := f.takes(byAnother(req)); !bytes.Equal(next.Work, workOf(req.ID)) || !sameNotes(next.Notes, version(1, "half way")) || next.Attempt != 2 {
			f.Errorf("taken again, it is %s, with the work %s and the notes %s", show(next), brief(next.Work), noted(next.Notes))
		}
	}
}

var returnChecks = []check{
	{"a return in each state follows the state machine", "a run returns its work if nothing happened; a record that was never accepted cannot wait for a worker.",
		returnInEachState},
	{"returned work waits for its delay", "backoff is what keeps a failing service from being hammered.",
		returnedWaits},
	{"a release of an accepted operation makes it due at once", "the way out of an expired run is a release; the work must be run then, not lost as retryable.",
		releasedIsDue},
}

func returnInEachState(f *fixture) {
	for _, s := range f.situations() {
		err := f.can.works.Return(f.ctx, s.claim, 0)
		what := "Return of a key that is " + s.name
		_, arrow := s.state.Next(store.VerbReturn)
		switch {
		case s.work && arrow:
			if err != nil {
				f.Errorf("%s: %v; want success", what, err)
			}
			rec := f.look(s.req.ID)
			if rec.State != store.Accepted || rec.Fence != s.claim.Fence || rec.Owner != s.claim.Owner || rec.Attempt != s.rec.Attempt || !rec.ForgetAt.IsZero() {
				f.Errorf("%s: want it accepted, under its fence, owner and attempt; it is %s, forgotten at %v", what, show(rec), rec.ForgetAt)
			}
			if !bytes.Equal(rec.Work, s.whole.Work) || !sameNotes(rec.Notes, s.whole.Notes) || rec.Cancelling != s.whole.Cancelling {
				f.Errorf("%s lost its work, its notes or its cancellation: %s, %s, %v", what, brief(rec.Work), noted(rec.Notes), rec.Cancelling)
			}
		case s.state == store.Accepted:
			if err != nil {
				f.Errorf("%s is a repetition and should succeed: %v", what, err)
			}
			f.untouched(what, s.whole)
		default:
			f.fenced(what, err)
			f.untouched(what, s.whole)
		}
	}
}

func returnedWaits(f *fixture) {
	back := func(after time.Duration) store.ID {
		_, rec := f.taken(f.long)
		f.giveBack(rec.Claim(), after)
		f.giveBack(rec.Claim(), after) // the reply to the first time may have been lost
		return rec.ID
	}
	late, now := back(f.long), back(0)
	f.isDue("returned without a delay", now)
	soon := back(f.unit)
	f.pass(1)
	f.isDue("when its time has come", soon)
	if rec := f.takes(store.ClaimRequest{ID: soon, Owner: store.NewOwner(), Lease: f.long}); rec.Attempt != 2 {
		f.Errorf("taken when its time had come: %s", show(rec))
	}
	f.cannotBeTaken("returned, with a delay", late)
}

func earlyTake(f *fixture) {
	req := f.request(f.long)
	f.accepts(req, f.long)
	f.cannotBeTaken("accepted, to wait", req.ID)
	again := f.request(f.long)
	f.release(f.grant(again).Claim(), f.keep)
	f.accepts(byAnother(again), f.long)
	f.cannotBeTaken("accepted anew, to wait", again.ID)
	soon := f.request(f.long)
	f.accepts(soon, f.unit)
	f.pass(1)
	f.isDue("when its time has come", soon.ID)
	// That it was returned, and is not due to others for a while, holds up no caller.
	if rec := f.takes(byAnother(soon)); rec.Attempt != 1 {
		f.Errorf("taken when Due had returned it: %s", show(rec))
	}
}

// cannotBeTaken requires that a take leaves an accepted record unchanged.
func (f *fixture) cannotBeTaken(what string, id store.ID) {
	f.Helper()
	before := f.look(id)
	rec := f.take(id, store.NewOwner(), f.long)
	if d := workDiff(before, rec); d != "" || rec.State != store.Accepted {
		f.Errorf("Take of an operation that was %s should not change it; %s", what, d)
	}
	f.untouched("Take of an operation that was "+what, before)
}

func releasedIsDue(f *fixture) {
	_, live := f.taken(f.long)
	_, lapsed := f.taken(f.unit)
	dead, unknown := f.taken(f.unit)
	f.pass(1)
	f.claim(byAnother(dead))
	f.isDue("while they run, or are unknown")
	for what, rec := range map[string]store.Record{"running": live, "past its lease": lapsed, "unknown": unknown} {
		for range 2 { // the reply to the first time may have been lost
			f.release(rec.Claim(), store.Retention{Result: f.unit, Tombstone: f.unit})
		}
		now := f.is("Release of taken work that is "+what, rec.ID, store.Accepted, rec.Fence)
		if now.Owner != rec.Owner || now.Attempt != 1 || !now.ForgetAt.IsZero() {
			f.Errorf("Release of taken work that is %s: %s, forgotten at %v", what, show(now), now.ForgetAt)
		}
		f.isDue("released when "+what, rec.ID)
	}
}

// workWrites are the writes of a store.WorkStore that compare a fence; none if the store is no store.WorkStore.
func (f *fixture) workWrites(c store.Claim) map[string]func() error {
	w := f.can.works
	if w == nil {
		return nil
	}
	return map[string]func() error{
		"Return": func() error { return w.Return(f.ctx, c, 0) },
		"Cancel": func() error { _, err := w.Cancel(f.ctx, c, failed("zombie"), f.keep); return err },
		"Save":   func() error { return f.saveOnce(f.ctx, c, version(255, "zombie")) },
		"Amend":  func() error { return w.Amend(f.ctx, c, version(255, "zombie")) },
	}
}
