package storetest

import (
	"slices"

	"github.com/stet-go/stet/store"
)

// situation is a key that something has happened to.
type situation struct {
	name    string
	state   store.State
	lapsed  bool               // Running, with a lease that has run out
	expired bool               // settled, with a result that has gone since
	req     store.ClaimRequest // the last claim that was sent
	claim   store.Claim        // the last claim that was granted
	stale   store.Claim        // an earlier one
	rec     store.Record       // the record now
	work    bool               // of an accepted operation that has not ended
	whole   store.Record       // rec as Look returns it, if the store keeps work
}

// making says how a situation comes about: a claim with a short lease or a long
// one, something that is done at once, and something that is done after a unit
// of time.
type making struct {
	name    string
	state   store.State
	short   bool
	expired bool
	now     func(*fixture, store.Record)
	later   func(*fixture, store.ClaimRequest)
	begin   func(*fixture, *situation) store.Record // in place of a claim
	work    bool
}

// makings are the situations of any store.
var makings = []making{
	{name: "running", state: store.Running},
	{name: "running past its lease", state: store.Running, short: true},
	{name: "completed", state: store.Completed, now: func(f *fixture, rec store.Record) {
		f.settle(rec.Claim(), completed("result"), f.keep)
	}},
	{name: "failed", state: store.Failed, now: func(f *fixture, rec store.Record) {
		f.settle(rec.Claim(), failed("result"), f.keep)
	}},
	{name: "completed, its result expired", state: store.Completed, expired: true, now: func(f *fixture, rec store.Record) {
		f.settle(rec.Claim(), completed("result"), store.Retention{Result: f.unit, Tombstone: f.keep.Tombstone})
	}},
	{name: "failed, its result too large to be kept", state: store.Failed, now: func(f *fixture, rec store.Record) {
		f.settle(rec.Claim(), store.Settlement{State: store.Failed, Gone: true}, f.keep)
	}},
	{name: "retryable", state: store.Retryable, now: func(f *fixture, rec store.Record) {
		f.release(rec.Claim(), f.keep)
	}},
	{name: "unknown", state: store.Unknown, short: true, later: func(f *fixture, req store.ClaimRequest) {
		f.claim(byAnother(req))
	}},
	{name: "settled and forgotten", state: store.None, now: func(f *fixture, rec store.Record) {
		f.settle(rec.Claim(), completed("result"), store.Retention{Result: f.unit / 2, Tombstone: f.unit})
	}},
	{name: "released and forgotten", state: store.None, now: func(f *fixture, rec store.Record) {
		f.release(rec.Claim(), store.Retention{Result: f.unit, Tombstone: f.keep.Tombstone})
	}},
}

// situations brings about every situation that a key can be in, each after an
// earlier claim that was released. It checks nothing but that it has succeeded.
func (f *fixture) situations() []situation {
	f.Helper()
	makings := makings
	if f.can.works != nil {
		makings = slices.Concat(makings, workMakings)
	}
	if f.can.outbox != nil {
		makings = slices.Concat(makings, outboxMakings)
	}
	if f.can.works != nil && f.can.outbox != nil {
		makings = slices.Concat(makings, bothMakings)
	}
	all := make([]situation, len(makings))
	for i, m := range makings {
		s := situation{name: m.name, state: m.state, lapsed: m.short && m.later == nil, expired: m.expired, work: m.work}
		s.req = f.request(f.long)
		s.stale = f.grant(s.req).Claim()
		f.release(s.stale, f.keep)
		s.req = byAnother(s.req)
		if m.short {
			s.req.Lease = f.unit
		}
		var rec store.Record
		if m.begin != nil {
			rec = m.begin(f, &s)
		} else {
			rec = f.grant(s.req)
		}
		s.claim = rec.Claim()
		if m.now != nil {
			m.now(f, rec)
		}
		all[i] = s
	}
	f.pass(1)
	for i, m := range makings {
		if m.later != nil {
			m.later(f, all[i].req)
		}
		all[i].rec = f.read(all[i].req.ID)
		if got := all[i].rec.State; got != m.state {
			f.Fatalf("could not bring about a record that is %s: it is %v", m.name, got)
		}
		if all[i].whole = all[i].rec; f.can.works != nil {
			all[i].whole = f.look(all[i].req.ID)
		}
	}
	return all
}

// sameOutcome reports whether settling the situation's record with out is a
// repetition.
func (s situation) sameOutcome(out store.Settlement) bool {
	if s.rec.State != out.State || !s.rec.State.Settled() {
		return false
	}
	return !s.expired && s.rec.Gone == out.Gone && s.rec.Result.Equal(out.Result)
}

func verbOf(out store.Settlement) store.Verb {
	if out.State == store.Failed {
		return store.VerbFail
	}
	return store.VerbComplete
}
