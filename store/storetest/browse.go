package storetest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/stet-go/stet/store"
)

var browseChecks = []check{
	{"a query shows each record that matches once", "an operator who is shown less than there is believes that nothing is stuck.",
		browseShowsWhatMatches},
	{"a query distinguishes scopes", "no caller sees a record of another scope, even of one whose IDs begin alike.",
		browseTellsScopesApart},
	{"a query knows how old a record is", "operators search for records stuck for an hour by age, on the store's clock.",
		browseKnowsAges},
	{"browsing changes nothing, and shows no result", "looking is safe, and results may hold what an operator must not see.",
		browseChangesNothing},
	{"records that stay come once while others come and go", "the service continues while an operator browses.",
		browseWhileOthersComeAndGo},
	{"a query that makes no sense is refused", "a typing error must not look like an empty store.",
		browseRefusesNonsense},
	{"a result that an operator expires is gone, and the key still does not run", "erasing a result must not make a second run possible.",
		expireLeavesATombstone},
	{"Expire compares the fence, and changes only settled records", "an operator acts on the displayed record, not on a newer one.",
		expireIsFenced},
}

// browse returns all that q shows, page by page.
func (f *fixture) browse(q store.Query) (all []store.Record) {
	f.Helper()
	for range 10_000 {
		p, err := f.can.browser.Browse(f.ctx, q)
		if err != nil {
			f.Fatalf("Browse %+v: %v", q, err)
		}
		if most := max(q.Limit, 1); len(p.Records) > most && q.Limit != 0 || len(p.Records) > store.DefaultBrowse && q.Limit == 0 {
			f.Fatalf("Browse with a limit of %d returned %d records", q.Limit, len(p.Records))
		}
		if all = append(all, p.Records...); p.Next == "" {
			return all
		}
		q.After = p.Next
	}
	f.Fatalf("after 10,000 pages there is still more to look at")
	return nil
}

// shows requires that q show exactly these records, once each.
func (f *fixture) shows(what string, q store.Query, want ...store.Record) {
	f.Helper()
	missing := make(map[store.ID]store.Record)
	for _, rec := range want {
		missing[rec.ID] = rec
	}
	for _, got := range f.browse(q) {
		was, ok := missing[got.ID]
		if !ok {
			f.Errorf("%s shows a record twice, or a record that does not match: %s", what, show(got))
			continue
		}
		delete(missing, got.ID)
		was.Result = store.Result{}
		if d := diff(was, got); d != "" {
			f.Errorf("%s shows a wrong record: %s", what, d)
		}
	}
	for _, rec := range missing {
		f.Errorf("%s does not show a record that is %s", what, show(rec))
	}
}

func browseShowsWhatMatches(f *fixture) {
	var all []store.Record
	by := make(map[store.State][]store.Record)
	for range 3 {
		for _, s := range f.situations() {
			if s.state != store.None {
				all = append(all, s.rec)
				by[s.state] = append(by[s.state], s.rec)
			}
		}
	}
	for _, limit := range []int{0, 1, 2, 5, len(all), store.MaxBrowse} {
		f.shows("a query for all", store.Query{Limit: limit}, all...)
	}
	for state, want := range by {
		f.shows("a query for "+state.String(), store.Query{States: []store.State{state}}, want...)
		f.shows("a query for "+state.String()+", one by one", store.Query{States: []store.State{state}, Limit: 1}, want...)
		f.shows("a query for "+state.String()+" of the scope", store.Query{States: []store.State{state}, Scope: testScope}, want...)
	}
	stuck := []store.State{store.Running, store.Unknown}
	f.shows("a query for two states", store.Query{States: stuck, Limit: 2}, slices.Concat(by[store.Running], by[store.Unknown])...)
	mixed := []store.State{store.Unknown, store.Completed}
	f.shows("a query for an open state and a settled one", store.Query{States: mixed, Limit: 2}, slices.Concat(by[store.Unknown], by[store.Completed])...)
}

func browseTellsScopesApart(f *fixture) {
	by := make(map[store.ID][]store.Record)
	like := testScope
	like[len(like)-1] ^= 1 // begins like testScope
	scopes := []store.ID{testScope, like, store.DigestScope("storetest", "another")}
	for i := range 30 {
		scope := scopes[i%len(scopes)]
		req := f.request(f.long)
		copy(req.ID[:8], scope[:])
		req.Scope = scope
		rec := f.grant(req)
		if i%2 == 0 {
			f.settle(rec.Claim(), completed("x"), f.keep)
		}
		by[scope] = append(by[scope], f.read(rec.ID))
	}
	for scope, want := range by {
		f.shows("a query for a scope", store.Query{Scope: scope, Limit: 4}, want...)
		running := slices.DeleteFunc(slices.Clone(want), func(r store.Record) bool { return r.State != store.Running })
		f.shows("a query for what runs in a scope", store.Query{Scope: scope, States: []store.State{store.Running}, Limit: 2}, running...)
	}
	f.shows("a query for a scope without records", store.Query{Scope: store.DigestScope("storetest", "unused")})
}

func browseKnowsAges(f *fixture) {
	var old, young []store.Record
	claimed := func(state store.State) store.Record {
		rec := f.grant(f.request(f.long))
		switch state {
		case store.Completed:
			f.settle(rec.Claim(), completed("x"), f.keep)
		case store.Retryable:
			f.release(rec.Claim(), f.keep)
		}
		return f.read(rec.ID)
	}
	kinds := []store.State{store.Running, store.Completed, store.Retryable}
	for _, state := range kinds {
		old = append(old, claimed(state))
	}
	f.pass(30)
	for _, state := range kinds {
		young = append(young, claimed(state))
	}
	age := 25 * f.unit // a loaded machine may take long to ask
	f.shows("a query for older records", store.Query{OlderThan: age}, old...)
	f.shows("a query for younger records", store.Query{NewerThan: age}, young...)
	f.shows("a query for records older than young and younger than old", store.Query{OlderThan: age, NewerThan: age})
	f.shows("a query for records younger than a day", store.Query{NewerThan: 1000 * f.unit, Limit: 2}, slices.Concat(old, young)...)
	for i, state := range kinds {
		f.shows("a query for older records that are "+state.String(), store.Query{OlderThan: age, States: []store.State{state}}, old[i])
		f.shows("a query for younger records that are "+state.String(), store.Query{NewerThan: age, States: []store.State{state}, Scope: testScope}, young[i])
	}
}

func browseChangesNothing(f *fixture) {
	all := f.situations()
	for _, q := range []store.Query{{}, {Scope: testScope}, {States: []store.State{store.Running, store.Completed}}, {OlderThan: 1}} {
		for _, rec := range f.browse(q) {
			if !rec.Result.IsZero() {
				f.Errorf("Browse shows the result of a record that is %s", show(rec))
			}
		}
	}
	for _, s := range all {
		f.unchanged("Browse of a key that is "+s.name, s.rec)
	}
}

func browseWhileOthersComeAndGo(f *fixture) {
	var stay []store.Record
	var leave []store.Claim
	for i := range 60 {
		c := f.grant(f.request(f.long)).Claim()
		if i%2 == 0 {
			f.settle(c, completed("x"), f.keep)
			stay = append(stay, f.read(c.ID))
		} else {
			leave = append(leave, c)
		}
	}
	seen := make(map[store.ID]int)
	q := store.Query{States: []store.State{store.Completed, store.Running}, Limit: 3}
	for pages := 0; ; pages++ {
		if pages == 10_000 {
			f.Fatal("after 10,000 pages there is still more to look at")
		}
		p, err := f.can.browser.Browse(f.ctx, q)
		if err != nil {
			f.Fatalf("Browse: %v", err)
		}
		for _, rec := range p.Records {
			seen[rec.ID]++
		}
		if len(leave) > 0 {
			f.release(leave[0], f.keep) // no longer matches
			leave = leave[1:]
			f.grant(f.request(f.long))
		}
		if q.After = p.Next; q.After == "" {
			break
		}
	}
	for _, rec := range stay {
		if seen[rec.ID] != 1 {
			f.Errorf("a record that was there all the while came %d times", seen[rec.ID])
		}
	}
}

func browseRefusesNonsense(f *fixture) {
	f.grant(f.request(f.long))
	for _, q := range []store.Query{
		{Limit: -1}, {Limit: store.MaxBrowse + 1}, {OlderThan: -1}, {NewerThan: -time.Hour},
		{States: []store.State{store.None}}, {States: []store.State{store.Running, 99}},
		{After: "nonsense"}, {After: "'; DROP TABLE records; --"}, {After: "zz"}, {After: "\x00"},
	} {
		if _, err := f.can.browser.Browse(f.ctx, q); !errors.Is(err, store.ErrInvalid) {
			f.Errorf("Browse %+v: %v; want ErrInvalid", q, err)
		}
	}
	ended, cancel := context.WithCancel(f.ctx)
	cancel()
	if _, err := f.can.browser.Browse(ended, store.Query{}); err == nil {
		f.Error("Browse with a context that has ended returned no error")
	}
}

func expireLeavesATombstone(f *fixture) {
	b := f.can.browser
	for _, out := range []store.Settlement{completed("secret"), failed("secret")} {
		req := f.request(f.long)
		c := f.grant(req).Claim()
		f.settle(c, out, f.keep)
		was := f.read(c.ID)
		for range 2 { // a repetition is a success
			if err := b.Expire(f.ctx, c); err != nil {
				f.Fatalf("Expire of a record that is %v: %v", out.State, err)
			}
		}
		now := f.read(c.ID)
		if !now.Gone || !now.Result.IsZero() || now.State != out.State || now.Fence != c.Fence || !sameTime(now.ForgetAt, was.ForgetAt) {
			f.Errorf("after Expire the record that was %s is %s, forgotten at %v instead of %v", show(was), show(now), now.ForgetAt, was.ForgetAt)
		}
		if rec := f.claim(byAnother(req)); granted(rec, req) || rec.State != out.State || !rec.Gone {
			f.Errorf("a claim of a key whose result was expired by hand returned %s", show(rec))
		}
		f.fenced("Settle with a result that was expired by hand", f.store.Settle(f.ctx, c, out, f.keep))
		f.fenced("Settle without a result, after that was expired by hand,", f.store.Settle(f.ctx, c, store.Settlement{State: out.State, Gone: true}, f.keep))
		if now := f.read(c.ID); !now.Gone {
			f.Error("a repeated settle brought back a result that was expired by hand")
		}
	}
}

func expireIsFenced(f *fixture) {
	b := f.can.browser
	for _, s := range f.situations() {
		if err := b.Expire(f.ctx, s.stale); !errors.Is(err, store.ErrFenced) {
			f.Errorf("Expire with a stale fence of a key that is %s: %v; want ErrFenced", s.name, err)
		}
		if !s.state.Settled() {
			if err := b.Expire(f.ctx, s.claim); !errors.Is(err, store.ErrFenced) {
				f.Errorf("Expire of a key that is %s: %v; want ErrFenced", s.name, err)
			}
		}
		f.unchanged("an Expire that was refused of a key that is "+s.name, s.rec)
	}
	if err := b.Expire(f.ctx, store.Claim{ID: f.request(0).ID, Fence: 1}); !errors.Is(err, store.ErrFenced) {
		f.Errorf("Expire of a key that was never claimed: %v; want ErrFenced", err)
	}
}
