package storetest

import (
	"math"
	"time"

	"github.com/stet-go/stet/store"
)

// edgeChecks test the limits of allowed values.
var edgeChecks = []check{
	{"the longest durations do not wrap around", "a permanent lease or retention that ends before it began causes a second execution.",
		longDurations},
	{"a time that has come has ended", "two stores, or two calls, that disagree about a moment let both sides continue.",
		endsAreReached},
}

// edgeWorkChecks are the same for a store.WorkStore.
var edgeWorkChecks = []check{
	{"the longest delays do not wrap around", "delayed work must not run now.",
		longDelays},
	{"work is due at the time that was asked for, and not after it", "a clock that stands still there must not keep it waiting.",
		dueWhenReached},
	{"empty work is kept like any other", "empty work is work: the operation must run.",
		emptyIsKept},
	{"a requested cancellation stays until the outcome, and no longer", "the next run must see it; the outcome must not report it as pending.",
		cancellingStays},
}

// greatest are durations that have no greater ones, rounded in any unit.
var greatest = []time.Duration{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 - math.MaxInt64%time.Second}

func longDurations(f *fixture) {
	for _, d := range greatest {
		req := f.request(d)
		rec := f.grant(req)
		holds := func(what string) {
			f.Helper()
			if now := f.read(req.ID); now.LeaseLeft < f.long {
				f.Errorf("%s for %v, the lease has %v left", what, d, now.LeaseLeft)
			}
			if got := f.claim(byAnother(req)); got.State != store.Running || got.Fence != rec.Fence {
				f.Errorf("%s for %v, and claimed by another at once: %s", what, d, show(got))
			}
		}
		holds("claimed")
		if lost := f.extend(d, rec.Claim()); len(lost) != 0 {
			f.Errorf("extended by %v, a claim is lost", d)
		}
		holds("extended")
		keep := store.Retention{Result: d, Tombstone: d}
		f.settle(rec.Claim(), completed("result"), keep)
		back := f.grant(f.request(f.long))
		f.release(back.Claim(), keep)
		if sweeper := f.can.sweeper; sweeper != nil {
			f.sweepAll(sweeper)
		}
		now := f.is("settled, to be kept for very long", req.ID, store.Completed, rec.Fence)
		if now.Gone || text(now.Result) != "result" || now.ExpiresAt.Before(now.SettledAt.Add(f.long)) || now.ForgetAt.Before(now.SettledAt.Add(f.long)) {
			f.Errorf("settled, to be kept for %v: %s, which expires at %v and is forgotten at %v", d, show(now), now.ExpiresAt, now.ForgetAt)
		}
		if now := f.is("released, to be kept for very long", back.ID, store.Retryable, back.Fence); now.ForgetAt.Before(now.SettledAt.Add(f.long)) {
			f.Errorf("released, to be kept for %v: it is forgotten at %v", d, now.ForgetAt)
		}
	}
}

func endsAreReached(f *fixture) {
	if f.h.Advance == nil {
		return // a clock that runs cannot be met at a moment
	}
	var lapsed []store.ClaimRequest
	for range 3 {
		lapsed = append(lapsed, f.request(f.unit))
		f.grant(lapsed[len(lapsed)-1])
	}
	expires, forgets, released := f.request(f.long), f.request(f.long), f.request(f.long)
	f.settle(f.grant(expires).Claim(), completed("result"), store.Retention{Result: f.unit, Tombstone: f.keep.Tombstone})
	f.settle(f.grant(forgets).Claim(), completed("result"), store.Retention{Result: f.unit, Tombstone: f.unit})
	f.release(f.grant(released).Claim(), store.Retention{Result: f.unit, Tombstone: f.unit})
	f.h.Advance(f, f.unit)
	if rec := f.read(lapsed[0].ID); rec.LeaseLeft > 0 {
		f.Errorf("at the end of a lease %v of it are left", rec.LeaseLeft)
	}
	if rec := f.claim(byAnother(lapsed[0])); rec.State != store.Unknown {
		f.Errorf("at the end of its lease, a claim by another got %s; want unknown", show(rec))
	}
	if rec := f.read(expires.ID); !rec.Gone || !rec.Result.IsZero() {
		f.Errorf("at its ExpiresAt a record is %s; want it gone", show(rec))
	}
	if rec := f.claim(byAnother(expires)); rec.State != store.Completed || !rec.Gone {
		f.Errorf("at its ExpiresAt, a claim by another got %s; want it gone", show(rec))
	}
	for what, req := range map[string]store.ClaimRequest{"settled": forgets, "released": released} {
		if rec := f.read(req.ID); rec.State != store.None {
			f.Errorf("at its ForgetAt, a record that was %s is %s; want none", what, show(rec))
		}
	}
	if sweeper := f.can.sweeper; sweeper != nil {
		f.sweepAll(sweeper)
		f.is("at the end of a lease, a record that was swept", lapsed[1].ID, store.Unknown, f.read(lapsed[1].ID).Fence)
	}
	for _, req := range []store.ClaimRequest{forgets, released} {
		if rec := f.grant(byAnother(req)); rec.Attempt != 1 {
			f.Errorf("at its ForgetAt, a key was granted with attempt %d; want 1, as of a new record", rec.Attempt)
		}
	}
}

func longDelays(f *fixture) {
	for _, d := range greatest {
		f.accepts(f.request(0), d)
		_, back := f.taken(d)
		f.giveBack(back.Claim(), d)
		f.isDue("accepted and returned with a very long delay")
		again := f.request(0)
		f.accepts(again, 0)
		for i, want := range []int{1, 0} {
			recs, err := f.can.works.Due(f.ctx, 100, d)
			if err != nil || len(recs) != want {
				f.Errorf("due again after %v: answer %d has %d records, %v; want %d", d, i+1, len(recs), err, want)
			}
		}
	}
}

func dueWhenReached(f *fixture) {
	if f.h.Advance == nil {
		return // as above
	}
	req := f.request(0)
	f.accepts(req, f.unit)
	f.isDue("before its time")
	f.h.Advance(f, f.unit)
	if recs, err := f.can.works.Due(f.ctx, 100, f.unit); err != nil || len(recs) != 1 {
		f.Errorf("at its time %d records are due, %v; want one", len(recs), err)
	}
	f.h.Advance(f, f.unit)
	f.isDue("at the time that it is due again", req.ID)
}

func emptyIsKept(f *fixture) {
	for name, work := range map[string][]byte{"none": nil, "empty": {}} {
		req := f.request(f.long)
		if rec, err := f.can.works.Accept(f.ctx, req, work, 0); err != nil || !accepted(rec, req) {
			f.Fatalf("Accept of %s work returned %s, %v", name, show(rec), err)
		}
		if got := f.due(); len(got) != 1 || got[req.ID].State != store.Accepted || len(got[req.ID].Work) != 0 {
			f.Errorf("accepted with %s work, %d records are due", name, len(got))
		}
		req = byAnother(req)
		rec := f.takes(req)
		f.release(rec.Claim(), f.keep)
		f.is("taken with "+name+" work and released", req.ID, store.Accepted, rec.Fence)
		rec = f.takes(byAnother(req))
		f.giveBack(rec.Claim(), 0)
		f.is("taken with "+name+" work and returned", req.ID, store.Accepted, rec.Fence)
		f.cancel(rec.Claim(), failed("x"))
	}
}

func cancellingStays(f *fixture) {
	asked := func(what string, id store.ID, want bool) {
		f.Helper()
		if now := f.look(id); now.Cancelling != want {
			f.Errorf("%s: Cancelling is %v, of %s; want %v", what, now.Cancelling, show(now), want)
		}
	}
	ends := map[string]func(store.ClaimRequest, store.Claim){
		"returned": func(_ store.ClaimRequest, c store.Claim) { f.giveBack(c, 0) },
		"released": func(_ store.ClaimRequest, c store.Claim) { f.release(c, f.keep) },
		"marked unknown by a claim": func(req store.ClaimRequest, _ store.Claim) {
			f.claim(byAnother(req))
		},
		"marked unknown by an acceptance": func(req store.ClaimRequest, _ store.Claim) { f.accept(byAnother(req), 0) },
		"marked unknown by a take":        func(req store.ClaimRequest, _ store.Claim) { f.take(req.ID, store.NewOwner(), f.long) },
	}
	if sweeper := f.can.sweeper; sweeper != nil {
		ends["marked unknown by a sweep"] = func(store.ClaimRequest, store.Claim) { f.sweepAll(sweeper) }
	}
	for name, end := range ends {
		for _, out := range []store.Settlement{completed("x"), with("messages", failed("x"))} {
			req, rec := f.taken(f.unit)
			f.save(rec.Claim(), version(1, "noted"))
			f.cancel(rec.Claim(), failed("cancelled"))
			f.extend(f.unit, rec.Claim())
			asked("asked to end", req.ID, true)
			f.pass(1)
			end(req, rec.Claim())
			asked(name, req.ID, true)
			if f.read(req.ID).State == store.Unknown {
				f.release(rec.Claim(), f.keep)
				asked(name+" and released", req.ID, true)
			}
			req = byAnother(req)
			req.Lease = f.long
			next := f.takes(req)
			if !next.Cancelling || !sameNotes(next.Notes, version(1, "noted")) {
				f.Errorf("%s and taken again: Cancelling is %v, the notes are %s", name, next.Cancelling, noted(next.Notes))
			}
			asked(name+" and taken again", req.ID, true)
			f.settle(next.Claim(), out, f.keep)
			asked(name+", taken again and settled", req.ID, false)
		}
	}
	back, rec := f.taken(f.long)
	f.cancel(rec.Claim(), failed("cancelled"))
	f.giveBack(rec.Claim(), 0)
	if now := f.cancel(rec.Claim(), failed("cancelled")); now.State != store.Failed || now.Cancelling {
		f.Errorf("cancelled while it waits: %s, Cancelling is %v", show(now), now.Cancelling)
	}
	asked("cancelled while it waits", back.ID, false)
}
