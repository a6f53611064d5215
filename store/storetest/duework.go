package storetest

import (
	"bytes"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

var dueChecks = []check{
	{"what waits longest is due first", "whatever came later must not keep old work waiting for ever.",
		longestWaitingFirst},
	{"due work is handed out in bounded numbers, all of it in the end", "a backlog must not become one long lock, or one great answer.",
		dueIsBounded},
	{"due work is handed out by name", "a process that cannot run it would keep it from those who can.",
		dueByName},
	{"names take turns", "a backlog under one name must not keep the others waiting.",
		namesTakeTurns},
	{"what was handed out and not taken is due again", "a queue or a worker may lose it; the record does not.",
		dueAgain},
	{"no two callers are handed the same work within its time", "every process asks; what is sent twice is work twice.",
		dueTogether},
	{"a place in the queue ends with the take", "an old place must not bring work back before it was given back, or is to wait.",
		placesEnd},
}

func longestWaitingFirst(f *fixture) {
	var ids []store.ID
	for range 4 {
		req := f.request(0)
		f.accepts(req, 0)
		ids = append(ids, req.ID)
		f.pass(1)
	}
	_, back := f.taken(f.long)
	f.giveBack(back.Claim(), 0)
	ids = append(ids, back.ID)
	f.pass(1)
	var got []store.ID
	for range 100 {
		recs, err := f.works().Due(f.ctx, store.DueRun, 2, f.long)
		if err != nil {
			f.Fatalf("Due: %v", err)
		}
		if len(recs) == 0 {
			break
		}
		for _, rec := range recs {
			got = append(got, rec.ID)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(ids) {
		f.Errorf("due were %v; want the longest waiting first: %v", got, ids)
	}
}

func dueIsBounded(f *fixture) {
	const n, limit = 60, 5
	want := make(map[store.ID]bool)
	for range n {
		req := f.request(0)
		f.accepts(req, 0)
		want[req.ID] = true
	}
	for range 10 * n {
		recs, err := f.works().Due(f.ctx, store.DueRun, limit, f.long)
		if err != nil {
			f.Fatalf("Due: %v", err)
		}
		if len(recs) > 2*limit {
			f.Errorf("Due with a limit of %d returned %d records", limit, len(recs))
		}
		if len(recs) == 0 {
			break
		}
		for _, rec := range recs {
			if !want[rec.ID] {
				f.Errorf("Due returned a record twice: %s", show(rec))
			}
			delete(want, rec.ID)
		}
	}
	if len(want) > 0 {
		f.Errorf("%d of %d accepted operations were never due", len(want), n)
	}
}

// acceptAs accepts n operations under a name, and returns their IDs.
func (f *fixture) acceptAs(name string, n int) (ids []store.ID) {
	f.Helper()
	for range n {
		req := f.request(0)
		req.Label.Name = name
		f.accepts(req, 0)
		ids = append(ids, req.ID)
	}
	return ids
}

// byName counts the names that Due returns.
func (f *fixture) byName(limit int, names ...string) map[string]int {
	f.Helper()
	recs, err := f.works().Due(f.ctx, store.DueRun, limit, f.long, names...)
	if err != nil {
		f.Fatalf("Due of %q: %v", names, err)
	}
	all := make(map[string]int)
	for _, rec := range recs {
		all[rec.Label.Name]++
	}
	return all
}

func dueByName(f *fixture) {
	for _, name := range []string{"a", "ab", "A", "b c", "\u00fc"} {
		f.acceptAs(name, 2)
	}
	has := func(when string, got, want map[string]int) {
		f.Helper()
		if !maps.Equal(got, want) {
			f.Errorf("%s: due are, by name, %v; want %v", when, got, want)
		}
	}
	has("of a name under which nothing waits", f.byName(100, "c"), map[string]int{})
	has("of one name", f.byName(100, "a"), map[string]int{"a": 2})
	has("of one name again", f.byName(100, "a"), map[string]int{})
	has("of names, one twice", f.byName(100, "ab", "c", "\u00fc", "ab"), map[string]int{"ab": 2, "\u00fc": 2})
	has("of all", f.byName(100), map[string]int{"A": 2, "b c": 2})

	// A name goes with what is given back, and with the last that accepted it.
	req, back := f.taken(f.long)
	f.giveBack(back.Claim(), 0)
	has("given back", f.byName(100, req.Label.Name), map[string]int{req.Label.Name: 1})
	other := f.request(f.long)
	f.release(f.grant(other).Claim(), f.keep)
	other = byAnother(other)
	other.Label.Name = "other"
	f.accepts(other, 0)
	has("accepted under another name", f.byName(100, "other"), map[string]int{"other": 1})
	f.release(f.takes(byAnother(other)).Claim(), f.keep)
	has("released, under its old name", f.byName(100, req.Label.Name), map[string]int{})
	has("released", f.byName(100, "other"), map[string]int{"other": 1})

	f.settle(f.grant(f.request(f.long)).Claim(), with("messages", completed("x")), f.keep)
	if got := f.due(store.DueRelay); len(got) != 1 {
		f.Errorf("%d records are due to be relayed, whatever their name; want 1", len(got))
	}
}

func namesTakeTurns(f *fixture) {
	f.acceptAs("backlog", 40)
	f.pass(1)
	f.acceptAs("late", 1)
	f.acceptAs("later", 2)
	for what, names := range map[string][]string{"of names": {"backlog", "late", "later"}, "of all": nil} {
		if got := f.byName(8, names...); got["late"] != 1 || got["later"] != 2 || got["backlog"] != 5 {
			f.Errorf("Due %s with a limit of 8 returned, by name, %v; want one late, two later, and 5 of the backlog", what, got)
		}
		f.acceptAs("late", 1)
		f.acceptAs("later", 2)
	}
	for range 20 { // more names than there is room
		f.acceptAs("n"+stet.NewKey()[:8], 1)
	}
	left := 30 + 3 + 20
	for range 50 {
		for _, n := range f.byName(3) {
			left -= n
		}
	}
	if left != 0 {
		f.Errorf("%d of what waits under many names was not due", left)
	}
}

func dueAgain(f *fixture) {
	req, run := f.taken(f.long)
	f.save(run.Claim(), version(1, "noted"))
	f.cancel(run.Claim(), failed("cancelled"))
	f.giveBack(run.Claim(), 0)
	for i := range 3 {
		was := f.look(req.ID)
		recs, err := f.works().Due(f.ctx, store.DueRun, 100, f.unit)
		if err != nil || len(recs) != 1 || recs[0].ID != req.ID {
			f.Fatalf("round %d: Due returned %d records, %v; want the one that waits", i+1, len(recs), err)
		}
		if d := diff(was, recs[0]); d != "" || !bytes.Equal(recs[0].Work, was.Work) {
			f.Errorf("round %d: Due returned another record than there is: %s", i+1, d)
		}
		if recs[0].Notes != nil || recs[0].Cancelling {
			f.Errorf("round %d: Due returned the notes %s, and Cancelling %v; want neither", i+1, brief(recs[0].Notes), recs[0].Cancelling)
		}
		f.untouched("Due", was)
		if again, err := f.works().Due(f.ctx, store.DueRun, 100, f.unit); f.h.Advance != nil && (err != nil || len(again) != 0) {
			f.Errorf("round %d: Due at once again returned %d records, %v; want none", i+1, len(again), err)
		}
		f.pass(1)
	}
	f.isDue("at last", req.ID)
	f.isDue("handed out a moment ago")
}

func dueTogether(f *fixture) {
	const n = 60
	for range n {
		f.accepts(f.request(0), 0)
		f.settle(f.grant(f.request(f.long)).Claim(), with("messages", completed("x")), f.keep)
	}
	for _, what := range []store.Due{store.DueRun, store.DueRelay} {
		var mu sync.Mutex
		times := make(map[store.ID]int)
		race(8, func(int) {
			for idle := 0; idle < 3; {
				recs, err := f.works().Due(f.ctx, what, 7, f.long)
				if err != nil {
					f.Errorf("Due beside others: %v", err)
					return
				}
				if len(recs) == 0 {
					idle++
				}
				mu.Lock()
				for _, rec := range recs {
					times[rec.ID]++
				}
				mu.Unlock()
			}
		})
		for id := range f.due(what) {
			times[id]++
		}
		for _, count := range times {
			if count != 1 {
				f.Errorf("a record was handed out %d times within the time until it is due again", count)
			}
		}
		if len(times) != n {
			f.Errorf("%d of %d records were handed out", len(times), n)
		}
	}
}

func placesEnd(f *fixture) {
	var ids [4]store.ID
	for i := range ids {
		req := f.request(0)
		f.accepts(req, 0)
		ids[i] = req.ID
	}
	if recs, err := f.works().Due(f.ctx, store.DueRun, 100, f.unit); err != nil || len(recs) != len(ids) {
		f.Fatalf("Due returned %d records, %v; want %d", len(recs), err, len(ids))
	}
	take := func(id store.ID) store.Claim {
		return f.takes(store.ClaimRequest{ID: id, Owner: store.NewOwner(), Lease: f.long}).Claim()
	}
	late, settled, cancelled := ids[1], ids[2], ids[3]
	take(ids[0])
	f.giveBack(take(late), f.long)
	f.settle(take(settled), completed("x"), f.keep)
	f.cancel(f.read(cancelled).Claim(), failed("cancelled"))
	f.pass(1)
	f.isDue("taken, given back for later, settled or cancelled, when the old place's time has come")

	req := f.request(0)
	f.accepts(req, 0)
	if recs, err := f.works().Due(f.ctx, store.DueRun, 100, f.long); err != nil || len(recs) != 1 {
		f.Fatalf("Due returned %d records, %v; want 1", len(recs), err)
	}
	f.giveBack(take(req.ID), 0)
	f.isDue("given back at once, having been handed out for long", req.ID)
	f.release(take(req.ID), f.keep)
	f.isDue("released at once, having been handed out for long", req.ID)
}

var outboxChecks = []check{
	{"messages are durable with the outcome, and due at once", "what is emitted leaves after its commit, and never without it.",
		outboxIsDue},
	{"messages are kept as they were first written", "a settle that is repeated must not lose them, and not bring them back.",
		outboxIsKept},
	{"nothing with messages is forgotten", "whoever relays them may be away for long.",
		outboxOutlivesRetention},
	{"relayed messages are gone, and the record is kept as long as was asked for from then on", "they are sent no more; the key still does not run.",
		relayedIsGone},
	{"relaying in each state compares the fence", "only what was settled has messages to send.",
		relayedInEachState},
}

func outboxIsDue(f *fixture) {
	_, taken := f.taken(f.long)
	late := f.grant(f.request(f.unit))
	dead := f.request(f.unit)
	unknown := f.grant(dead)
	large := f.grant(f.request(f.long))
	live := f.grant(f.request(f.long))
	f.pass(1)
	f.claim(byAnother(dead)) // parks
	for what, rec := range map[string]store.Record{"taken": taken, "claimed": live, "past its lease": late, "unknown": unknown, "too large": large} {
		out := with("messages of "+what, completed("result"))
		if what == "too large" {
			out.Result, out.Gone = store.Result{}, true
		}
		f.settle(rec.Claim(), out, f.keep)
		all := f.due(store.DueRelay)
		got, ok := all[rec.ID]
		if !ok || len(all) != 1 || got.State != store.Completed || got.Fence != rec.Fence || string(got.Work) != "messages of "+what {
			f.Errorf("settled with messages when it was %s: due are %d records, and of this one %s, with %s", what, len(all), show(got), brief(got.Work))
		}
		if now := f.look(rec.ID); string(now.Work) != "messages of "+what || now.Notes != nil || now.Gone != out.Gone || !now.Result.Equal(out.Result) {
			f.Errorf("settled with messages when it was %s, it is %s, with %s", what, show(now), brief(now.Work))
		}
		f.bare("Read of what has messages", f.read(rec.ID))
	}
	f.isDue("settled with messages")
	f.settle(f.grant(f.request(f.long)).Claim(), completed("x"), f.keep)
	c := f.accepts(f.request(f.long), f.long).Claim()
	f.fenced("Settle with messages of what has only been accepted", f.store.Settle(f.ctx, c, with("never", completed("x")), f.keep))
	if all := f.due(store.DueRelay); len(all) != 0 {
		f.Errorf("%d records without messages are due to be relayed", len(all))
	}
}

func outboxIsKept(f *fixture) {
	c := f.grant(f.request(f.long)).Claim()
	f.settle(c, with("first", completed("x")), f.keep)
	was := f.look(c.ID)
	again := func(when string) {
		f.Helper()
		was := f.look(c.ID)
		for _, outbox := range []string{"first", "second", ""} {
			out := with(outbox, completed("x"))
			if outbox == "" {
				out.Outbox = nil
			}
			f.settle(c, out, f.keep)
			f.untouched(when+", a repeated settle", was)
		}
		f.fenced(when+", Settle with another outcome", f.store.Settle(f.ctx, c, with("third", failed("no")), f.keep))
		f.untouched(when+", Settle with another outcome", was)
	}
	again("settled")
	if got := f.due(store.DueRelay); len(got) != 1 || string(got[c.ID].Work) != "first" {
		f.Errorf("after repetitions %d records are due to be relayed, with %s", len(got), brief(got[c.ID].Work))
	}
	again("handed out")
	if got := f.due(store.DueRelay); len(got) != 0 {
		f.Errorf("a repeated settle made %d records due again", len(got))
	}
	f.untouched("all that", was)
	if err := f.works().Relayed(f.ctx, c, f.keep); err != nil {
		f.Fatalf("Relayed: %v", err)
	}
	again("relayed")
	if now := f.look(c.ID); now.Work != nil {
		f.Errorf("a repeated settle brought back the messages %s", brief(now.Work))
	}
	if got := f.due(store.DueRelay); len(got) != 0 {
		f.Errorf("a repeated settle made %d records due after they were relayed", len(got))
	}
}

func outboxOutlivesRetention(f *fixture) {
	short := store.Retention{Result: f.unit / 2, Tombstone: f.unit}
	sync, async := f.request(f.long), f.request(f.long)
	f.settle(f.grant(sync).Claim(), with("messages", completed("x")), short)
	f.accepts(async, 0)
	async = byAnother(async)
	f.settle(f.takes(async).Claim(), with("messages", failed("x")), short)
	units := 3
	if f.h.Advance != nil {
		units = int(3 * 365 * 24 * time.Hour / f.unit)
	}
	f.pass(units)
	if b, ok := f.store.(store.Browser); ok {
		for _, req := range []store.ClaimRequest{sync, async} {
			if err := b.Expire(f.ctx, f.read(req.ID).Claim()); err != nil {
				f.Errorf("Expire of what has messages: %v", err)
			}
		}
	}
	for range 2 {
		if sweeper, ok := f.store.(store.Sweeper); ok {
			f.sweepAll(sweeper)
		}
		for _, req := range []store.ClaimRequest{sync, async} {
			if rec := f.claim(byAnother(req)); !rec.State.Settled() || !rec.Gone || !rec.Result.IsZero() {
				f.Errorf("much later, a record with messages is %s; want it settled, and gone", show(rec))
			}
			if now := f.look(req.ID); string(now.Work) != "messages" {
				f.Errorf("much later, the messages are %s", brief(now.Work))
			}
		}
	}
	if got := f.due(store.DueRelay); len(got) != 2 {
		f.Errorf("much later, %d records are due to be relayed; want 2", len(got))
	}
}

func relayedIsGone(f *fixture) {
	kept, leaves := f.request(f.long), f.request(f.long)
	c, left := f.grant(kept).Claim(), f.grant(leaves).Claim()
	f.settle(c, with("messages", completed("result")), store.Retention{Result: f.unit, Tombstone: f.unit})
	f.settle(left, with("messages", completed("result")), f.keep)
	f.pass(2)
	if _, err := f.works().Due(f.ctx, store.DueRelay, 100, f.unit); err != nil {
		f.Fatalf("Due: %v", err)
	}
	was := f.read(c.ID)
	if err := f.works().Relayed(f.ctx, c, f.keep); err != nil {
		f.Fatalf("Relayed: %v", err)
	}
	now := f.look(c.ID)
	if now.State != store.Completed || now.Work != nil || !now.Gone || !sameTime(now.ExpiresAt, was.ExpiresAt) {
		f.Errorf("relayed, a record that was %s is %s, with the messages %s", show(was), show(now), brief(now.Work))
	}
	if got := now.ForgetAt.Sub(now.SettledAt); got < f.keep.Tombstone+2*f.unit || got > f.keep.Tombstone+3*f.unit+patience {
		f.Errorf("relayed %v after it was settled, the record is forgotten %v after that; want %v after it was relayed", 5*f.unit/2, got, f.keep.Tombstone)
	}
	if err := f.works().Relayed(f.ctx, c, store.Retention{Result: f.unit, Tombstone: f.unit}); err != nil { // the reply to the first time may have been lost
		f.Errorf("Relayed again: %v", err)
	}
	f.untouched("Relayed again", now)

	if err := f.works().Relayed(f.ctx, left, store.Retention{Result: f.unit / 2, Tombstone: f.unit}); err != nil {
		f.Fatalf("Relayed: %v", err)
	}
	f.pass(1)
	if got := f.due(store.DueRelay); len(got) != 0 {
		f.Errorf("%d records are due after they were relayed", len(got))
	}
	if sweeper, ok := f.store.(store.Sweeper); ok {
		f.sweepAll(sweeper)
	}
	if rec := f.read(leaves.ID); rec.State != store.None {
		f.Errorf("past its ForgetAt, a record that was relayed is %s", show(rec))
	}
	if rec := f.claim(byAnother(kept)); rec.State != store.Completed || !rec.Gone {
		f.Errorf("before its ForgetAt, a record that was relayed is %s", show(rec))
	}
}

func relayedInEachState(f *fixture) {
	for _, s := range f.situations() {
		err := f.works().Relayed(f.ctx, s.claim, store.Retention{Result: f.long, Tombstone: f.long})
		what := "Relayed of a key that is " + s.name
		switch {
		case !s.state.Settled():
			f.fenced(what, err)
			f.untouched(what, s.whole)
		case err != nil:
			f.Errorf("%s: %v", what, err)
		case s.whole.Work == nil:
			f.untouched(what, s.whole)
		default:
			if now := f.look(s.req.ID); now.Work != nil || now.State != s.state || now.Fence != s.rec.Fence {
				f.Errorf("%s left %s, with the messages %s", what, show(now), brief(now.Work))
			}
		}
	}
}
