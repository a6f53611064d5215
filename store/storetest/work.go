package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stet-go/stet/store"
)

// workChecks hold a store to what store.WorkStore asks for beyond store.Store.
var workChecks = slices.Concat(acceptChecks, takeChecks, repeatChecks, returnChecks, cancelChecks, noteChecks, lookChecks, dueChecks)

// workMakings are the situations that only a store.WorkStore knows.
var workMakings = []making{
	{name: "accepted", state: store.Accepted, work: true, begin: accepting},
	{name: "taken", state: store.Running, work: true, begin: taking},
	{name: "taken, and asked to end", state: store.Running, work: true, begin: taking, now: func(f *fixture, rec store.Record) {
		f.cancel(rec.Claim(), failed("cancelled"))
	}},
	{name: "taken, past its lease", state: store.Running, short: true, work: true, begin: taking},
	{name: "taken, and unknown", state: store.Unknown, short: true, work: true, begin: taking, later: func(f *fixture, req store.ClaimRequest) {
		f.claim(byAnother(req))
	}},
	{name: "returned", state: store.Accepted, work: true, begin: taking, now: func(f *fixture, rec store.Record) {
		f.giveBack(rec.Claim(), 0)
	}},
	{name: "cancelled", state: store.Failed, begin: accepting, now: func(f *fixture, rec store.Record) {
		f.cancel(rec.Claim(), failed("result"))
	}},
	{name: "taken and completed", state: store.Completed, begin: taking, now: func(f *fixture, rec store.Record) {
		f.settle(rec.Claim(), completed("result"), f.keep)
	}},
}

func accepting(f *fixture, s *situation) store.Record { return f.accepts(s.req, 0) }

func taking(f *fixture, s *situation) store.Record {
	f.accepts(s.req, 0)
	s.req = byAnother(s.req)
	rec := f.takes(s.req)
	f.save(rec.Claim(), version(1, "noted"))
	return rec
}

// workOf is the work of an operation: another one for each.
func workOf(id store.ID) []byte { return fmt.Appendf(nil, "work\x00of %v", id) }

// version makes notes of a version.
func version(v uint64, text string) store.Notes { return store.Notes{Version: v, Data: []byte(text)} }

func sameNotes(a, b store.Notes) bool { return a.Version == b.Version && bytes.Equal(a.Data, b.Data) }

// noted is notes for a person.
func noted(n store.Notes) string { return fmt.Sprintf("%s of version %d", brief(n.Data), n.Version) }

func (f *fixture) accept(req store.ClaimRequest, after time.Duration) store.Record {
	f.Helper()
	rec, err := f.can.works.Accept(f.ctx, req, workOf(req.ID), after)
	if err != nil {
		f.Fatalf("Accept: %v", err)
	}
	return rec
}

func accepted(rec store.Record, req store.ClaimRequest) bool {
	return rec.State == store.Accepted && rec.Owner == req.Owner
}

// accepts requires that the operation be accepted.
func (f *fixture) accepts(req store.ClaimRequest, after time.Duration) store.Record {
	f.Helper()
	rec := f.accept(req, after)
	if !accepted(rec, req) || rec.Fence <= 0 {
		f.Fatalf("Accept did not accept: it returned %s", show(rec))
	}
	return rec
}

func (f *fixture) take(id store.ID, owner store.Owner, lease time.Duration) store.Record {
	f.Helper()
	return f.takeAs(store.TakeRequest{ID: id, Owner: owner, Lease: lease})
}

func (f *fixture) takeAs(req store.TakeRequest) store.Record {
	f.Helper()
	rec, err := f.can.works.Take(f.ctx, req)
	if err != nil {
		f.Fatalf("Take: %v", err)
	}
	return rec
}

// takes requires that the operation be given to req.Owner.
func (f *fixture) takes(req store.ClaimRequest) store.Record {
	f.Helper()
	rec := f.take(req.ID, req.Owner, req.Lease)
	if !granted(rec, req) {
		f.Fatalf("Take was not granted: it returned %s", show(rec))
	}
	return rec
}

// taken accepts a new operation and takes it.
func (f *fixture) taken(lease time.Duration) (store.ClaimRequest, store.Record) {
	f.Helper()
	req := f.request(lease)
	f.accepts(req, 0)
	req = byAnother(req)
	return req, f.takes(req)
}

func (f *fixture) giveBack(c store.Claim, after time.Duration) {
	f.Helper()
	if err := f.can.works.Return(f.ctx, c, after); err != nil {
		f.Fatalf("Return: %v", err)
	}
}

func (f *fixture) cancel(c store.Claim, out store.Settlement) store.Record {
	f.Helper()
	rec, err := f.can.works.Cancel(f.ctx, c, out, f.keep)
	if err != nil {
		f.Fatalf("Cancel: %v", err)
	}
	return rec
}

func (f *fixture) save(c store.Claim, notes store.Notes) {
	f.Helper()
	if err := f.saveOnce(f.ctx, c, notes); err != nil {
		f.Fatalf("Save: %v", err)
	}
}

// saveOnce is Save of a run that is not repeatable.
func (f *fixture) saveOnce(ctx context.Context, c store.Claim, notes store.Notes) error {
	return f.can.works.Save(ctx, c, notes, false)
}

func (f *fixture) look(id store.ID) store.Record {
	f.Helper()
	rec, err := f.can.works.Look(f.ctx, id)
	if err != nil {
		f.Fatalf("Look: %v", err)
	}
	return rec
}

// due returns all that is due, and makes it due again much later. Nothing may
// come twice.
func (f *fixture) due() map[store.ID]store.Record {
	f.Helper()
	return f.all("Due", func() ([]store.Record, error) { return f.can.works.Due(f.ctx, 100, f.long) })
}

// all calls Due until nothing is due.
func (f *fixture) all(method string, ask func() ([]store.Record, error)) map[store.ID]store.Record {
	f.Helper()
	all := make(map[store.ID]store.Record)
	for range 1000 {
		recs, err := ask()
		if err != nil {
			f.Fatalf("%s: %v", method, err)
		}
		if len(recs) == 0 {
			return all
		}
		for _, rec := range recs {
			if _, ok := all[rec.ID]; ok {
				f.Fatalf("%s returned a record twice within the time until it is due again: %s", method, show(rec))
			}
			all[rec.ID] = rec
		}
	}
	f.Fatalf("after 1,000 calls of %s there is still more", method)
	return all
}

// isDue requires that, of all records, these be due to run, with their work.
func (f *fixture) isDue(when string, want ...store.ID) {
	f.Helper()
	all := f.due()
	for _, id := range want {
		rec, ok := all[id]
		if !ok {
			f.Errorf("%s: a record is not due to run", when)
		} else if rec.State != store.Accepted || !bytes.Equal(rec.Work, workOf(id)) {
			f.Errorf("%s: Due returned %s, with the work %s", when, show(rec), brief(rec.Work))
		}
		delete(all, id)
	}
	for _, rec := range all {
		f.Errorf("%s: a record is due to run that should not be: %s", when, show(rec))
	}
}

// workDiff is diff for records that Look and Take return.
func workDiff(before, is store.Record) string {
	d := diff(before, is)
	for name, v := range map[string][2][]byte{"Work": {before.Work, is.Work}, "Outbox": {before.Outbox, is.Outbox}} {
		if !bytes.Equal(v[0], v[1]) {
			d += fmt.Sprintf("; %s was %s, is %s", name, brief(v[0]), brief(v[1]))
		}
	}
	if !sameNotes(before.Notes, is.Notes) {
		d += fmt.Sprintf("; Notes were %s, are %s", noted(before.Notes), noted(is.Notes))
	}
	if before.Cancelling != is.Cancelling {
		d += fmt.Sprintf("; Cancelling was %v, is %v", before.Cancelling, is.Cancelling)
	}
	return d
}

// untouched is unchanged, with the work as well, where work is kept.
func (f *fixture) untouched(what string, before store.Record) {
	f.Helper()
	if f.can.works == nil {
		f.unchanged(what, before)
		return
	}
	if d := workDiff(before, f.look(before.ID)); d != "" {
		f.Errorf("%s changed the record: %s", what, d)
	}
}

// bare requires that a record come without what only a store.WorkStore and a
// store.OutboxStore keep.
func (f *fixture) bare(what string, rec store.Record) {
	f.Helper()
	if rec.Work != nil || rec.Notes.Version != 0 || rec.Outbox != nil {
		f.Errorf("%s returned a record with work %s, notes %s and outbox %s; want none", what, brief(rec.Work), noted(rec.Notes), brief(rec.Outbox))
	}
}

var acceptChecks = []check{
	{"a free key is accepted", "the acceptance is what makes the work durable; it has not run yet.",
		freeKeyIsAccepted},
	{"an acceptance in each state follows the state machine", "what Claim must not grant must not be queued either: it would run a second time.",
		acceptInEachState},
	{"an acceptance with another fingerprint is refused in every state", "the same key for another request is a caller's mistake, and is reported first.",
		acceptMismatch},
	{"an unacknowledged acceptance recognises itself", "the caller gets one acceptance, whichever try succeeded.",
		ownAcceptance},
	{"accepted work waits as long as it was asked to, on the store's clock", "a job for tonight must not run now, and not next week either.",
		acceptedWaits},
	{"an accepted key cannot be claimed", "a claim beside the worker's would be a second execution.",
		acceptedIsNotClaimed},
	{"of many acceptances and claims of one key exactly one comes through", "both lead to an execution.",
		raceToAccept},
	{"accepted work is never forgotten", "a caller relies on an acknowledged acceptance.",
		acceptedIsKept},
}

func freeKeyIsAccepted(f *fixture) {
	req := f.request(f.long)
	req.Scope = store.DigestScope("storetest", "another account")
	rec := f.accepts(req, 0)
	if rec.ID != req.ID || rec.Fingerprint != req.Fingerprint || rec.Scope != req.Scope || rec.Attempt != 0 {
		f.Errorf("the record has another ID, Fingerprint or Scope than was accepted, or an attempt: %s", show(rec))
	}
	if rec.LeaseLeft != 0 || rec.ClaimedAt.IsZero() || !rec.SettledAt.IsZero() || !rec.ForgetAt.IsZero() || rec.Gone || !rec.Result.IsZero() {
		f.Errorf("an accepted record has LeaseLeft %v, ClaimedAt %v, SettledAt %v, ForgetAt %v, result %s; want only ClaimedAt",
			rec.LeaseLeft, rec.ClaimedAt, rec.SettledAt, rec.ForgetAt, shown(rec.Result))
	}
	f.bare("Accept", rec)
	f.bare("Read", f.read(req.ID))
	f.unchanged("Read after Accept", rec)
	if got := f.look(req.ID); !bytes.Equal(got.Work, workOf(req.ID)) || got.Notes.Version != 0 || got.Cancelling {
		f.Errorf("Look returned work %s and notes %s", brief(got.Work), noted(got.Notes))
	}
	f.isDue("accepted", req.ID)
	if other := f.accepts(f.request(0), 0); other.Fence == rec.Fence {
		f.Logf("two keys have the fence %d, which is their own affair", rec.Fence)
	}
}

func acceptInEachState(f *fixture) {
	for _, s := range f.situations() {
		req := byAnother(s.req)
		rec := f.accept(req, 0)
		_, free := s.state.Next(store.VerbAccept)
		what := "Accept of a key that is " + s.name
		switch {
		case free:
			if !accepted(rec, req) || rec.Fence <= s.claim.Fence || rec.Attempt != s.rec.Attempt || !rec.ForgetAt.IsZero() || !rec.SettledAt.IsZero() {
				f.Errorf("%s: want it accepted with a fence above %d, and attempt %d still; got %s, SettledAt %v, ForgetAt %v",
					what, s.claim.Fence, s.rec.Attempt, show(rec), rec.SettledAt, rec.ForgetAt)
			}
			if got := f.look(req.ID); !bytes.Equal(got.Work, workOf(req.ID)) {
				f.Errorf("%s kept the work %s", what, brief(got.Work))
			}
			f.fenced("after "+what+", Settle by its predecessor", f.store.Settle(f.ctx, s.claim, completed("zombie"), f.keep))
		case s.lapsed:
			if rec.State != store.Unknown || rec.Fence != s.claim.Fence || rec.Owner != s.claim.Owner {
				f.Errorf("%s: want unknown under its fence %d and owner; got %s", what, s.claim.Fence, show(rec))
			}
			if got := f.look(req.ID); !bytes.Equal(got.Work, s.whole.Work) || !sameNotes(got.Notes, s.whole.Notes) {
				f.Errorf("%s changed its work or notes to %s and %s", what, brief(got.Work), noted(got.Notes))
			}
		default:
			if d := diff(s.rec, rec); d != "" {
				f.Errorf("%s: want the record unchanged; %s", what, d)
			}
			f.untouched(what, s.whole)
		}
		f.bare(what, rec)
		f.unchanged("Read after "+what, rec)
	}
}

func acceptMismatch(f *fixture) {
	for _, s := range f.situations() {
		for _, req := range []store.ClaimRequest{byAnother(s.req), s.req} {
			if s.state == store.None {
				continue
			}
			req.Fingerprint = fingerprintB
			rec, err := f.can.works.Accept(f.ctx, req, workOf(req.ID), 0)
			what := "Accept with another fingerprint, of a key that is " + s.name
			if !errors.Is(err, store.ErrMismatch) {
				f.Errorf("%s: want ErrMismatch; got %s, %v", what, show(rec), err)
			} else if d := diff(s.rec, rec); d != "" {
				f.Errorf("%s: ErrMismatch comes with the record unchanged; %s", what, d)
			}
			f.untouched(what, s.whole)
		}
	}
}

func ownAcceptance(f *fixture) {
	for _, s := range f.situations() {
		if s.state == store.None {
			continue // a new operation, whatever caller asks
		}
		rec := f.accept(s.req, 0)
		what := "Accept by the last owner of a key that is " + s.name
		if d := diff(s.rec, rec); d != "" {
			f.Errorf("%s: want the record unchanged; %s", what, d)
		}
		f.untouched(what, s.whole)
	}
	f.due() // away with those
	req := f.request(0)
	first := f.accepts(req, f.long)
	for range 2 {
		if rec := f.accepts(req, f.long); rec.Fence != first.Fence {
			f.Errorf("the same acceptance again has fence %d; want its own, %d", rec.Fence, first.Fence)
		}
		f.unchanged("the same acceptance again", first)
	}
	f.isDue("accepted twice, for later")
}

func acceptedWaits(f *fixture) {
	now, soon, late := f.request(0), f.request(0), f.request(0)
	f.accepts(late, f.long)
	f.accepts(now, 0)
	f.isDue("at once", now.ID)
	f.accepts(soon, f.unit)
	f.pass(1)
	f.isDue("when its time has come", soon.ID)
	if f.h.Advance != nil {
		f.h.Advance(f, f.long)
		f.isDue("when the time of all has come", now.ID, soon.ID, late.ID)
	}
}

func acceptedIsNotClaimed(f *fixture) {
	req := f.request(f.long)
	rec := f.accepts(req, 0)
	was := f.look(req.ID)
	for _, by := range []store.ClaimRequest{req, byAnother(req)} {
		if d := diff(rec, f.claim(by)); d != "" {
			f.Errorf("a claim of an accepted key: want the record unchanged; %s", d)
		}
		f.untouched("a claim of an accepted key", was)
	}
	if lost := f.extend(f.long, rec.Claim()); len(lost) != 1 {
		f.Error("Extend of an accepted record should report its claim as lost: it has no lease")
	}
	f.fenced("Settle of an accepted record under its own fence", f.store.Settle(f.ctx, rec.Claim(), completed("x"), f.keep))
	f.untouched("Extend or Settle of an accepted record", was)
	f.isDue("after claims were refused", req.ID)
}

func raceToAccept(f *fixture) {
	for range 3 {
		req := f.request(f.long)
		reqs, recs, errs := make([]store.ClaimRequest, racers), make([]store.Record, racers), make([]error, racers)
		race(racers, func(i int) {
			if reqs[i] = byAnother(req); i%4 == 0 {
				recs[i], errs[i] = f.store.Claim(f.ctx, reqs[i])
			} else {
				recs[i], errs[i] = f.can.works.Accept(f.ctx, reqs[i], workOf(req.ID), 0)
			}
		})
		wins := 0
		stands := f.read(req.ID)
		for i, rec := range recs {
			if errs[i] != nil {
				f.Fatalf("Accept or Claim beside others: %v", errs[i])
			}
			if rec.Owner == reqs[i].Owner {
				wins++
			}
			if d := diff(stands, rec); d != "" {
				f.Errorf("an acceptance or a claim beside others saw another record than stands: %s", d)
			}
		}
		if wins != 1 {
			f.Fatalf("of %d concurrent acceptances and claims of one key %d came through; want 1", racers, wins)
		}
	}
}

func acceptedIsKept(f *fixture) {
	fresh, again := f.request(0), f.request(f.long)
	short := store.Retention{Result: f.unit, Tombstone: f.unit}
	f.accepts(fresh, f.long)
	f.release(f.grant(again).Claim(), short)
	again = byAnother(again)
	f.accepts(again, f.long)
	taken, rec := f.taken(f.long)
	f.release(rec.Claim(), short)
	units := 3
	if f.h.Advance != nil {
		units = int(3 * 365 * 24 * time.Hour / f.unit)
	}
	f.pass(units)
	if sweeper := f.can.sweeper; sweeper != nil {
		f.sweepAll(sweeper)
	}
	for name, req := range map[string]store.ClaimRequest{"accepted": fresh, "accepted after a release": again, "taken and released": taken} {
		now := f.look(req.ID)
		if now.State != store.Accepted || !bytes.Equal(now.Work, workOf(req.ID)) {
			f.Errorf("much later, a record that was %s is %s, with the work %s", name, show(now), brief(now.Work))
		}
	}
}
