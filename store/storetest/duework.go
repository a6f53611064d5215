package storetest

import (
	"bytes"
	"fmt"
	"maps"
	"sync"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

var dueChecks = []check{
	{"the oldest work is due first", "later work must not delay old work permanently.",
		longestWaitingFirst},
	{"Due returns work in bounded numbers, and all of it in the end", "a backlog must not become one long lock, or one great answer.",
		dueIsBounded},
	{"Due returns work by name", "a process without the handler would keep it from other processes.",
		dueByName},
	{"names take turns", "a backlog under one name must not keep the others waiting.",
		namesTakeTurns},
	{"work that was returned and not taken is due again", "a queue or a worker may lose it; the record does not.",
		dueAgain},
	{"Due leaves work to the caller's own queue", "a dispatcher would put it there a second time; its job must find it ready.",
		queuedElsewhere},
	{"no two callers get the same work within its time", "every process asks; a second delivery is double work.",
		dueTogether},
	{"a place in the queue ends with the take", "an old place must not make work due before it was returned, or before its delay has passed.",
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
		recs, err := f.can.works.Due(f.ctx, 2, f.long)
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

func queuedElsewhere(f *fixture) {
	taken, again, lost, later := f.request(f.long), f.request(f.long), f.request(f.long), f.request(f.long)
	f.release(f.grant(again).Claim(), f.keep) // what replaces a record is left to the queue too
	again = byAnother(again)
	taken.Queued, again.Queued, lost.Queued, later.Queued = f.long, f.long, 4*f.unit, f.unit
	f.accepts(taken, 0)
	f.accepts(again, 0)
	f.accepts(lost, 0)
	f.accepts(later, f.long)
	if n := len(f.due()); n != 0 {
		f.Errorf("Due returned %d records that are left to a queue", n)
	}
	f.takes(byAnother(taken))
	f.takes(byAnother(again))
	f.pass(4)
	if got := f.due(); len(got) != 1 || got[lost.ID].ID != lost.ID {
		f.Errorf("after the time that they were left to a queue, Due returned %d records; want the record that was not taken", len(got))
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
		recs, err := f.can.works.Due(f.ctx, limit, f.long)
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

// acceptAs accepts n operations under a name.
func (f *fixture) acceptAs(name string, n int) {
	f.Helper()
	for range n {
		req := f.request(0)
		req.Label.Name = name
		f.accepts(req, 0)
	}
}

// byName counts the names that Due returns.
func (f *fixture) byName(limit int, names ...string) map[string]int {
	f.Helper()
	recs, err := f.can.works.Due(f.ctx, limit, f.long, names...)
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

	// Released work keeps its name; the last acceptance sets it.
	req, back := f.taken(f.long)
	f.giveBack(back.Claim(), 0)
	has("returned", f.byName(100, req.Label.Name), map[string]int{req.Label.Name: 1})
	other := f.request(f.long)
	f.release(f.grant(other).Claim(), f.keep)
	other = byAnother(other)
	other.Label.Name = "other"
	f.accepts(other, 0)
	has("accepted under another name", f.byName(100, "other"), map[string]int{"other": 1})
	f.release(f.takes(byAnother(other)).Claim(), f.keep)
	has("released, under its old name", f.byName(100, req.Label.Name), map[string]int{})
	has("released", f.byName(100, "other"), map[string]int{"other": 1})
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
		recs, err := f.can.works.Due(f.ctx, 100, f.unit)
		if err != nil || len(recs) != 1 || recs[0].ID != req.ID {
			f.Fatalf("round %d: Due returned %d records, %v; want the waiting record", i+1, len(recs), err)
		}
		if d := diff(was, recs[0]); d != "" || !bytes.Equal(recs[0].Work, was.Work) {
			f.Errorf("round %d: Due returned another record than there is: %s", i+1, d)
		}
		if recs[0].Notes.Version != 0 || recs[0].Cancelling {
			f.Errorf("round %d: Due returned the notes %s, and Cancelling %v; want neither", i+1, noted(recs[0].Notes), recs[0].Cancelling)
		}
		f.untouched("Due", was)
		if again, err := f.can.works.Due(f.ctx, 100, f.unit); f.h.Advance != nil && (err != nil || len(again) != 0) {
			f.Errorf("round %d: Due at once again returned %d records, %v; want none", i+1, len(again), err)
		}
		f.pass(1)
	}
	f.isDue("at last", req.ID)
	f.isDue("returned by Due a moment ago")
}

func dueTogether(f *fixture) {
	const n = 60
	for range n {
		f.accepts(f.request(0), 0)
	}
	f.together(n, func() ([]store.Record, error) { return f.can.works.Due(f.ctx, 7, f.long) })
}

// together calls Due from many goroutines for n due records, until none is left.
func (f *fixture) together(n int, ask func() ([]store.Record, error)) {
	f.Helper()
	var mu sync.Mutex
	times := make(map[store.ID]int)
	count := func(recs []store.Record) {
		mu.Lock()
		defer mu.Unlock()
		for _, rec := range recs {
			times[rec.ID]++
		}
	}
	race(8, func(int) {
		for idle, tries := 0, 0; idle < 3 && tries < n; tries++ { // a record each time, at least
			recs, err := ask()
			if err != nil {
				f.Errorf("Due beside other calls: %v", err)
				return
			}
			if len(recs) == 0 {
				idle++
			}
			count(recs)
		}
	})
	for left, tries := 1, 0; left > 0 && tries < n; tries++ {
		recs, err := ask()
		if err != nil {
			f.Fatalf("Due: %v", err)
		}
		count(recs)
		left = len(recs)
	}
	for _, count := range times {
		if count != 1 {
			f.Errorf("Due returned a record %d times within the time until it is due again", count)
		}
	}
	if len(times) != n {
		f.Errorf("Due returned %d of %d records", len(times), n)
	}
}

func placesEnd(f *fixture) {
	var ids [4]store.ID
	for i := range ids {
		req := f.request(0)
		f.accepts(req, 0)
		ids[i] = req.ID
	}
	if recs, err := f.can.works.Due(f.ctx, 100, f.unit); err != nil || len(recs) != len(ids) {
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
	f.isDue("taken, returned with a delay, settled or cancelled, when the old place's time has come")

	req := f.request(0)
	f.accepts(req, 0)
	if recs, err := f.can.works.Due(f.ctx, 100, f.long); err != nil || len(recs) != 1 {
		f.Fatalf("Due returned %d records, %v; want 1", len(recs), err)
	}
	f.giveBack(take(req.ID), 0)
	f.isDue("returned without a delay, long after Due returned it", req.ID)
	f.release(take(req.ID), f.keep)
	f.isDue("released without a delay, long after Due returned it", req.ID)
}
