package storetest

import (
	"errors"
	"slices"
	"time"

	"github.com/stet-go/stet/store"
)

// damageChecks are about a record that cannot be read. They need Harness.Damage.
func damageChecks(can abilities) []check {
	all := []check{
		{"a record that cannot be read is an error of its own, and hides no other", "stores answer many callers with one round trip: one row that is broken must not keep all of them from their keys.",
			damagedAmongOthers},
		{"Extend renews readable records, and names the others", "all heartbeats of a process go in one call; one broken record must not end its other runs.",
			damagedHeartbeat},
	}
	if can.sweeper != nil {
		all = append(all, check{"a sweep skips damaged records, and does not change them", "promise 9 holds for all the others, however many are broken.",
			damagedSweep})
	}
	if can.browser != nil {
		all = append(all, check{"an operator sees damaged records, and can expire them", "only an operator can help, and one who is not shown it does not know.",
			damagedPage})
	}
	if can.works != nil {
		all = append(all, check{"work that cannot be read is named, and holds up no other", "it comes first in the queue, every time, and would be all that ever comes.",
			damagedWork})
	}
	if can.outbox != nil {
		all = append(all, check{"messages that cannot be read are named, and hold up no others", "they come first, every time, and would be all that ever comes.",
			damagedMessages})
	}
	return all
}

// damage makes the record unreadable.
func (f *fixture) damage(id store.ID) {
	f.Helper()
	f.h.Damage(f, f.store, id)
}

// unreadable requires that a call about one record say that it cannot be read.
func (f *fixture) unreadable(what string, err error) {
	f.Helper()
	if !errors.Is(err, store.ErrDamaged) {
		f.Errorf("%s of a record that cannot be read should have failed with ErrDamaged; it returned: %v", what, err)
	}
}

// names requires that a call about many records, if it failed, say so of none but
// one of these.
func (f *fixture) names(what string, err error, ids ...store.ID) {
	f.Helper()
	if err == nil {
		return
	}
	partial, ok := errors.AsType[*store.PartialError](err)
	if !ok {
		f.Fatalf("%s beside an unreadable record: want a *PartialError; got %v", what, err)
	}
	for _, c := range partial.Claims {
		if (c.ID != store.ID{}) && !slices.Contains(ids, c.ID) {
			f.Errorf("%s names a record that can be read", what)
		}
	}
}

func damagedAmongOthers(f *fixture) {
	const n, bad = 32, 7
	reqs, claims := make([]store.ClaimRequest, n), make([]store.Claim, n)
	for i := range reqs {
		reqs[i] = f.request(f.long)
		if claims[i] = f.grant(reqs[i]).Claim(); i%2 == 0 {
			f.settle(claims[i], completed("result"), f.keep)
		}
	}
	f.damage(reqs[bad].ID)
	works := f.can.works
	race(4*n, func(k int) {
		i := k % n
		calls := map[string]func() error{
			"Read":  func() error { _, err := f.store.Read(f.ctx, reqs[i].ID); return err },
			"Claim": func() error { _, err := f.store.Claim(f.ctx, byAnother(reqs[i])); return err },
		}
		if works != nil {
			calls["Look"] = func() error { _, err := works.Look(f.ctx, reqs[i].ID); return err }
			calls["Take"] = func() error {
				_, err := works.Take(f.ctx, store.TakeRequest{ID: reqs[i].ID, Owner: store.NewOwner(), Lease: f.long})
				return err
			}
			calls["Accept"] = func() error {
				_, err := works.Accept(f.ctx, byAnother(reqs[i]), workOf(reqs[i].ID), 0)
				return err
			}
		}
		for name, call := range calls {
			if err := call(); i == bad {
				f.unreadable(name, err)
			} else if err != nil {
				f.Errorf("%s beside a record that cannot be read: %v", name, err)
			}
		}
	})
	for i, c := range claims {
		if i == bad {
			continue
		}
		f.settle(c, completed("result"), f.keep)
		if rec := f.is("beside a record that cannot be read, a settled one", c.ID, store.Completed, c.Fence); text(rec.Result) != "result" {
			f.Errorf("beside a record that cannot be read, another is %s", show(rec))
		}
	}
}

func damagedHeartbeat(f *fixture) {
	var claims []store.Claim
	for range 12 {
		claims = append(claims, f.grant(f.request(f.unit)).Claim())
	}
	gone := f.grant(f.request(f.unit)).Claim()
	f.settle(gone, completed("x"), f.keep)
	bad := claims[5]
	f.damage(bad.ID)
	lost, err := f.store.Extend(f.ctx, append(claims, gone), f.long)
	f.names("Extend", err, bad.ID)
	if len(lost) != 1 || lost[0] != gone {
		f.Errorf("Extend beside an unreadable record reported %d claims as lost; want the settled one", len(lost))
	}
	for _, c := range claims {
		if c == bad {
			continue
		}
		if rec := f.read(c.ID); rec.State != store.Running || rec.LeaseLeft < f.long/2 {
			f.Errorf("beside a record that cannot be read, a claim was not renewed: %s", show(rec))
		}
	}
}

func damagedSweep(f *fixture) {
	s := f.can.sweeper
	var bad []store.ID
	var good []store.Record
	for i := range 24 {
		rec := f.grant(f.request(f.unit))
		if i%2 == 0 {
			bad = append(bad, rec.ID)
		} else {
			good = append(good, rec)
		}
	}
	for _, id := range bad {
		f.damage(id)
	}
	f.pass(1)
	marked, idle := 0, 0
	for range 1000 {
		got, err := s.Sweep(f.ctx, 4)
		f.names("Sweep", err, bad...)
		if marked += got.MarkedUnknown; got.More {
			continue
		}
		if idle++; idle == 2 {
			break
		}
	}
	if idle < 2 {
		f.Error("after 1,000 sweeps of records that cannot be read there is still more to look at")
	}
	for _, rec := range good {
		f.is("a lapsed record, swept beside others that cannot be read", rec.ID, store.Unknown, rec.Fence)
	}
	if marked != len(good) {
		f.Errorf("swept: %d marked unknown; want %d", marked, len(good))
	}
	for _, id := range bad {
		_, err := f.store.Read(f.ctx, id)
		f.unreadable("after a sweep, Read", err)
	}
}

func damagedPage(f *fixture) {
	b := f.can.browser
	var all []store.Record
	for range 7 {
		c := f.grant(f.request(f.long)).Claim()
		f.settle(c, completed("secret"), f.keep)
		all = append(all, f.read(c.ID))
	}
	bad := all[3]
	f.damage(bad.ID)
	var shown []store.Record
	for _, limit := range []int{0, 1, 3} {
		seen := make(map[store.ID]int)
		shown = nil
		for _, rec := range f.browse(store.Query{Limit: limit, Scope: testScope}) {
			if seen[rec.ID]++; rec.Damage != "" {
				shown = append(shown, rec)
			}
		}
		if len(shown) != 1 || len(seen) != len(all) {
			f.Fatalf("a query with a limit of %d shows %d records, %d as damaged; want %d, and one", limit, len(seen), len(shown), len(all))
		}
	}
	for _, q := range []store.Query{{States: []store.State{store.Completed}}, {NewerThan: 1000 * f.unit}} {
		for _, rec := range f.browse(q) {
			if rec.Damage != "" {
				f.Error("a query for states or ages shows a record of which neither is known")
			}
		}
	}
	if err := b.Expire(f.ctx, shown[0].Claim()); err != nil {
		f.Fatalf("Expire of a record that cannot be read, as it was shown: %v", err)
	}
	for _, rec := range f.browse(store.Query{}) {
		if rec.Damage != "" {
			f.Errorf("after Expire, a record is shown as damaged still: %s", rec.Damage)
		}
	}
	if (shown[0].ID == store.ID{}) {
		return // it had no ID any more that anybody could ask for
	}
	now := f.read(bad.ID)
	if now.State != store.Failed || !now.Gone || !now.Result.IsZero() || now.Fence != shown[0].Fence || now.Owner != shown[0].Owner ||
		!near(now.ForgetAt.Sub(now.SettledAt), 30*24*time.Hour) {
		f.Errorf("Expire left %s, forgotten %v after it was settled; want a tombstone, failed, kept for 30 days", show(now), now.ForgetAt.Sub(now.SettledAt))
	}
	req := store.ClaimRequest{ID: bad.ID, Scope: testScope, Fingerprint: fingerprintA, Owner: store.NewOwner(), Lease: f.long}
	if rec, err := f.store.Claim(f.ctx, req); granted(rec, req) || err != nil && !errors.Is(err, store.ErrMismatch) {
		f.Errorf("a claim of a key whose record was unreadable, and was expired, returned %s, %v", show(rec), err)
	}
}

func damagedWork(f *fixture) {
	f.damagedFirst("Due", func() store.ID {
		req := f.request(0)
		f.accepts(req, 0)
		return req.ID
	}, func() ([]store.Record, error) { return f.can.works.Due(f.ctx, 100, f.unit) })
}

func damagedMessages(f *fixture) {
	f.damagedFirst("DueMessages", func() store.ID { return f.emits(f.keep).ID },
		func() ([]store.Record, error) { return f.can.outbox.DueMessages(f.ctx, 100, f.unit) })
}

// damagedFirst is about a queue in which the first that waits cannot be read.
func (f *fixture) damagedFirst(method string, wait func() store.ID, ask func() ([]store.Record, error)) {
	const n = 6
	bad := wait()
	for range n - 1 {
		wait()
	}
	f.damage(bad)
	for round := range 2 {
		got, named := 0, 0
		for range 20 { // in as many answers as it likes
			recs, err := ask()
			f.names(method, err, bad)
			if partial, ok := errors.AsType[*store.PartialError](err); ok {
				named += len(partial.Claims)
			}
			for _, rec := range recs {
				if got++; rec.ID == bad {
					f.Errorf("%s returned a record that cannot be read", method)
				}
			}
			if len(recs) == 0 && err == nil {
				break
			}
			if f.h.Advance == nil && got >= n-1 && named > 0 {
				break // before they are due again
			}
		}
		if got != n-1 || named != 1 {
			f.Errorf("round %d: %s returned %d records and named %d; want %d, and the unreadable one", round+1, method, got, named, n-1)
		}
		f.pass(1)
	}
}
