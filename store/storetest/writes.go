package storetest

import (
	"errors"
	"fmt"
	"maps"

	"github.com/stet-go/stet/store"
)

// endedContext makes every call in every situation with a context that has ended.
func endedContext(f *fixture) {
	alive := f.ctx
	for _, s := range f.situations() {
		for name, call := range f.calls(s) {
			f.ctx = ended(alive)
			err := call()
			f.ctx = alive
			what := fmt.Sprintf("%s of a key that is %s, with a context that has ended,", name, s.name)
			if err == nil || errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrMismatch) {
				f.Errorf("%s should fail for that reason; it returned: %v", what, err)
			}
			f.untouched(what, s.whole)
		}
	}
	if f.can.works != nil && len(f.due()) == 0 {
		f.Error("Due with a context that has ended delayed due work")
	}
	if f.can.outbox != nil && len(f.messages()) == 0 {
		f.Error("DueMessages with a context that has ended delayed due messages")
	}
}

// calls are the store's calls with f.ctx, for a situation.
func (f *fixture) calls(s situation) map[string]func() error {
	calls := map[string]func() error{
		"Claim":   func() error { _, err := f.store.Claim(f.ctx, byAnother(s.req)); return err },
		"Extend":  func() error { _, err := f.store.Extend(f.ctx, []store.Claim{s.claim}, f.long); return err },
		"Settle":  func() error { return f.store.Settle(f.ctx, s.claim, completed("late"), f.keep) },
		"Release": func() error { return f.store.Release(f.ctx, s.claim, f.keep) },
		"Read":    func() error { _, err := f.store.Read(f.ctx, s.req.ID); return err },
	}
	if w := f.can.works; w != nil {
		maps.Copy(calls, f.workWrites(s.claim))
		calls["Accept"] = func() error { _, err := w.Accept(f.ctx, byAnother(s.req), workOf(s.req.ID), 0); return err }
		calls["Take"] = func() error {
			_, err := w.Take(f.ctx, store.TakeRequest{ID: s.req.ID, Owner: store.NewOwner(), Lease: f.long})
			return err
		}
		calls["Look"] = func() error { _, err := w.Look(f.ctx, s.req.ID); return err }
		calls["Due"] = func() error { _, err := w.Due(f.ctx, 100, f.long); return err }
	}
	if o := f.can.outbox; o != nil {
		calls["Relayed"] = func() error { return o.Relayed(f.ctx, s.claim, f.keep) }
		calls["DueMessages"] = func() error { _, err := o.DueMessages(f.ctx, 100, f.long); return err }
	}
	return calls
}

var settleChecks = []check{
	{"a settle in each state follows the state machine", "an outcome is written once, while the claim runs or is unknown; a late settle under the newest fence is correct, because no other run began.",
		settleInEachState},
	{"a stale fence can write nothing", "a run that lost the claim must not end, renew or release its successor's claim.",
		staleFenceWritesNothing},
	{"a settle that is repeated succeeds, with another outcome it is refused", "its first reply may have been lost; but a returned outcome must never change.",
		settleRepeated},
	{"a settle after the result has expired is refused", "a resolution may have stored another outcome that callers got and that has expired since: a late run must not get success for its own.",
		settleWhenGone},
}

// outcomes are what the settle table tries in every situation.
var outcomes = []store.Settlement{
	completed("result"), completed("another result"), failed("result"), {State: store.Completed, Gone: true},
}

func settleInEachState(f *fixture) {
	for _, out := range outcomes {
		for _, s := range f.situations() {
			err := f.store.Settle(f.ctx, s.claim, out, f.keep)
			what := fmt.Sprintf("Settle as %v (gone: %v) of a key that is %s", out.State, out.Gone, s.name)
			to, arrow := s.state.Next(verbOf(out))
			switch {
			case arrow && s.state != store.None:
				if err != nil {
					f.Errorf("%s: %v; want success", what, err)
				}
				rec := f.is(what, s.req.ID, to, s.claim.Fence)
				if !rec.Result.Equal(out.Result) || rec.Gone != out.Gone {
					f.Errorf("%s: the record is %s", what, show(rec))
				}
				if d := diff(rec, f.claim(byAnother(s.req))); d != "" {
					f.Errorf("%s: a claim afterwards should return the outcome; %s", what, d)
				}
			case s.sameOutcome(out):
				if err != nil {
					f.Errorf("%s is a repetition and should succeed: %v", what, err)
				}
				f.unchanged(what, s.rec)
			default:
				f.fenced(what, err)
				f.unchanged(what, s.rec)
			}
		}
	}
}

func staleFenceWritesNothing(f *fixture) {
	for _, s := range f.situations() {
		future := s.claim
		future.Fence += 1_000_000
		for name, c := range map[string]store.Claim{"an older fence": s.stale, "a fence never given": future} {
			what := func(verb string) string {
				return fmt.Sprintf("%s with %s, of a key that is %s,", verb, name, s.name)
			}
			f.fenced(what("Settle as completed"), f.store.Settle(f.ctx, c, completed("zombie"), f.keep))
			f.unchanged(what("Settle as completed"), s.rec)
			f.fenced(what("Settle with the same outcome"), f.store.Settle(f.ctx, c, completed("result"), f.keep))
			f.fenced(what("Settle as failed"), f.store.Settle(f.ctx, c, failed("zombie"), f.keep))
			f.unchanged(what("Settle as failed"), s.rec)
			f.fenced(what("Release"), f.store.Release(f.ctx, c, f.keep))
			f.unchanged(what("Release"), s.rec)
			if lost := f.extend(10*f.long, c); len(lost) != 1 || lost[0] != c {
				f.Errorf("%s should report that claim as lost; it returned %v", what("Extend"), lost)
			}
			f.unchanged(what("Extend"), s.rec)
			if now := f.read(s.req.ID); s.state == store.Running && now.LeaseLeft > s.rec.LeaseLeft {
				f.Errorf("%s prolonged the lease", what("Extend"))
			}
			for verb, call := range f.workWrites(c) {
				f.fenced(what(verb), call())
				f.untouched(what(verb), s.whole)
			}
		}
	}
	for verb, call := range f.workWrites(store.Claim{ID: f.request(0).ID, Owner: store.NewOwner(), Fence: 1}) {
		f.fenced(verb+" of a key that was never claimed", call())
	}
}

func settleRepeated(f *fixture) {
	for _, first := range []store.Settlement{completed("result"), failed("result"), completed(""), {State: store.Completed}, {State: store.Completed, Gone: true}} {
		c := f.grant(f.request(f.long)).Claim()
		f.settle(c, first, f.keep)
		before := f.read(c.ID)
		others := []store.Settlement{
			first, completed("result"), failed("result"), completed("resul"), completed("result\x00"), completed(""), failed(""),
			{State: store.Completed}, {State: store.Completed, Gone: true}, {State: store.Failed, Gone: true},
		}
		for _, r := range variants(first.Result) {
			others = append(others, store.Settlement{State: first.State, Result: r})
		}
		for _, again := range others {
			same := again.State == first.State && again.Gone == first.Gone && again.Result.Equal(first.Result)
			err := f.store.Settle(f.ctx, c, again, store.Retention{Result: 2 * f.keep.Result, Tombstone: 2 * f.keep.Tombstone})
			what := fmt.Sprintf("settled as %v %s (gone: %v), then as %v %s (gone: %v):",
				first.State, shown(first.Result), first.Gone, again.State, shown(again.Result), again.Gone)
			if same && err != nil {
				f.Errorf("%s want success, got %v", what, err)
			}
			if !same {
				f.fenced(what, err)
			}
			f.unchanged(what, before)
		}
	}
}

func settleWhenGone(f *fixture) {
	c := f.grant(f.request(f.long)).Claim()
	short := store.Retention{Result: f.unit, Tombstone: f.keep.Tombstone}
	f.settle(c, completed("result"), short)
	f.pass(1)
	for i := range 2 {
		f.fenced("Settle after the result has expired", f.store.Settle(f.ctx, c, completed("result"), f.keep))
		f.fenced("Settle with another outcome, after the result has expired,", f.store.Settle(f.ctx, c, failed("no"), f.keep))
		f.fenced("Settle without a result, after that has expired,", f.store.Settle(f.ctx, c, store.Settlement{State: store.Completed, Gone: true}, f.keep))
		if rec := f.is("a repeated settle", c.ID, store.Completed, c.Fence); !rec.Gone || !rec.Result.IsZero() {
			f.Errorf("repetition %d brought an expired result back: %s", i+1, show(rec))
		}
		if sweeper := f.can.sweeper; sweeper != nil {
			f.sweepAll(sweeper)
		}
	}
}

var releaseChecks = []check{
	{"a release in each state follows the state machine", "a run releases a key if nothing happened, and only before there is an outcome.",
		releaseInEachState},
}

func releaseInEachState(f *fixture) {
	for _, s := range f.situations() {
		err := f.store.Release(f.ctx, s.claim, f.keep)
		what := "Release of a key that is " + s.name
		verb := store.VerbRelease
		if s.work {
			verb = store.VerbReturn
		}
		to, arrow := s.state.Next(verb)
		switch {
		case arrow:
			if err != nil {
				f.Errorf("%s: %v; want success", what, err)
			}
			rec := f.is(what, s.req.ID, to, s.claim.Fence)
			if rec.Owner != s.claim.Owner || rec.Fingerprint != s.req.Fingerprint || rec.Attempt != s.rec.Attempt {
				f.Errorf("%s lost its owner, fingerprint or attempt: %s", what, show(rec))
			}
		case s.state == store.Retryable || s.state == store.Accepted:
			if err != nil {
				f.Errorf("%s is a repetition and should succeed: %v", what, err)
			}
			f.unchanged(what, s.rec)
		default:
			f.fenced(what, err)
			f.unchanged(what, s.rec)
		}
	}
}

var extendChecks = []check{
	{"an extension in each state follows the state machine", "only a running claim has a lease; a run that does not learn of the loss continues to work.",
		extendInEachState},
	{"extending renews many leases at once and names the lost", "all heartbeats of a process go in one call; one lost claim must not take the others with it.",
		extendMany},
	{"an extension counts from now", "a lease that was stacked up would keep an expired run's key locked for long.",
		extendFromNow},
}

func extendInEachState(f *fixture) {
	for _, s := range f.situations() {
		lost := f.extend(f.long, s.claim)
		what := "Extend of a key that is " + s.name
		f.unchanged(what, s.rec)
		if s.state != store.Running {
			if len(lost) != 1 || lost[0] != s.claim {
				f.Errorf("%s should report the claim as lost; it returned %v", what, lost)
			}
			continue
		}
		if len(lost) != 0 {
			f.Errorf("%s: no other run began, it should be renewed; it was reported lost", what)
		}
		if rec := f.read(s.req.ID); rec.LeaseLeft <= 0 {
			f.Errorf("%s left %v of the lease", what, rec.LeaseLeft)
		}
		if rec := f.claim(byAnother(s.req)); rec.State != store.Running || rec.Owner != s.req.Owner {
			f.Errorf("%s did not keep others out: they got %s", what, show(rec))
		}
	}
}

func extendMany(f *fixture) {
	var claims []store.Claim
	want := make(map[store.Claim]bool)
	for i := range 120 {
		rec := f.grant(f.request(f.unit))
		claims = append(claims, rec.Claim())
		if i%10 == 3 {
			f.settle(rec.Claim(), completed("x"), f.keep)
			want[rec.Claim()] = true
		}
	}
	never := store.Claim{ID: f.request(0).ID, Owner: store.NewOwner(), Fence: 1}
	claims = append(claims, never)
	want[never] = true
	for _, c := range f.extend(f.long, claims...) {
		if !want[c] {
			f.Errorf("Extend reported a claim as lost that it was not asked about, that runs, or twice: fence %d", c.Fence)
		}
		delete(want, c)
	}
	if len(want) != 0 {
		f.Errorf("Extend did not report %d claims that are lost", len(want))
	}
	f.pass(1)
	for i, c := range claims[:len(claims)-1] {
		if rec := f.read(c.ID); i%10 != 3 && (rec.State != store.Running || rec.LeaseLeft <= 0) {
			f.Errorf("claim %d of many was not renewed: %s", i, show(rec))
		}
	}
	if lost := f.extend(f.long); len(lost) != 0 {
		f.Errorf("Extend of nothing reported %d lost claims", len(lost))
	}
}

func extendFromNow(f *fixture) {
	req := f.request(f.long)
	c := f.grant(req).Claim()
	if lost := f.extend(f.unit, c); len(lost) != 0 {
		f.Fatal("Extend reported a running claim as lost")
	}
	if rec := f.read(req.ID); rec.LeaseLeft > f.unit {
		f.Errorf("extended to %v from now, the lease has %v left", f.unit, rec.LeaseLeft)
	}
	f.pass(1)
	if rec := f.claim(byAnother(req)); rec.State != store.Unknown {
		f.Errorf("extended to %v, the lease did not run out after that: %s", f.unit, show(rec))
	}
}
