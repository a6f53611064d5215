package storetest

import (
	"bytes"
	"errors"
	"strings"
	"time"

	"github.com/stet-go/stet/store"
)

var readChecks = []check{
	{"reading changes nothing", "waiters and operators read records; Read must not mark unknown, renew or take anything.",
		readChangesNothing},
	{"reading a key that was never claimed leaves nothing behind", "otherwise looking would use up attempts and space.",
		readLeavesNothing},
}

func readChangesNothing(f *fixture) {
	for _, s := range f.situations() {
		for range 3 {
			f.unchanged("Read of a key that is "+s.name, s.rec)
		}
		if s.state == store.Running && (s.rec.LeaseLeft <= 0) != s.lapsed {
			f.Errorf("%s: Read says that %v of the lease is left", s.name, s.rec.LeaseLeft)
		}
		if s.lapsed { // had Read marked unknown it, its own owner could not find it running
			if rec := f.claim(s.req); rec.State != store.Running || rec.Fence != s.claim.Fence {
				f.Errorf("%s: after Read, its owner found %s", s.name, show(rec))
			}
		}
	}
}

func readLeavesNothing(f *fixture) {
	req := f.request(f.long)
	for range 3 {
		if rec := f.read(req.ID); rec.State != store.None {
			f.Errorf("Read of a key that was never claimed returned %s", show(rec))
		}
	}
	if rec := f.grant(req); rec.Attempt != 1 {
		f.Errorf("after Read alone, the first claim is attempt %d", rec.Attempt)
	}
}

var timeChecks = []check{
	{"only the store's clock decides that a lease has run out", "callers' clocks differ; a fast clock must not take a live claim, a slow clock must not keep an expired one.",
		storeClockDecides},
	{"an outcome is kept as long as it was asked for", "retention counts from settling; a replay tells callers how long the result is good for.",
		retentionIsExact},
	{"an expired result is gone, and the key still does not run", "a tombstone refuses to run again; returning an expired result would break the documented retention.",
		expiredIsGone},
	{"a settled record is forgotten after its tombstone, and not before", "retention ends, and then the key is free; a day early would be a second execution.",
		forgottenInTime},
	{"a released record is forgotten after its result's retention", "keys that never ran must not pile up.",
		releasedIsForgotten},
	{"a running or unknown record is never forgotten", "forgetting it would let the operation run a second time.",
		neverForgotten},
	{"a claim clears the fields of its predecessor's release", "the time to forget a released key must not come while its successor runs.",
		claimClearsRetention},
	{"times are in order", "operators and verifiers look at them.",
		timesInOrder},
}

func storeClockDecides(f *fixture) {
	short, long := f.request(f.unit), f.request(f.long)
	f.grant(short)
	run := f.grant(long)
	if rec := f.claim(byAnother(long)); rec.State != store.Running || rec.Fence != run.Fence {
		f.Errorf("a live claim was not respected: another claim got %s", show(rec))
	}
	f.pass(1)
	if rec := f.read(short.ID); rec.LeaseLeft > 0 {
		f.Errorf("%v after a claim with a lease of %v, on the store's clock, %v of the lease is left", 3*f.unit/2, f.unit, rec.LeaseLeft)
	}
	if rec := f.claim(byAnother(short)); rec.State != store.Unknown {
		f.Errorf("the lease has run out on the store's clock; another claim got %s, want unknown", show(rec))
	}
	if rec := f.claim(byAnother(long)); rec.State != store.Running {
		f.Errorf("the lease has not run out on the store's clock; another claim got %s", show(rec))
	}
}

func near(a, b time.Duration) bool { return (a - b).Abs() <= time.Second }

func retentionIsExact(f *fixture) {
	const day = 24 * time.Hour
	for _, keep := range []store.Retention{f.keep, {Result: day, Tombstone: 30 * day}, {Result: day, Tombstone: day}, {Result: 3650 * day, Tombstone: 7300 * day}} {
		for _, out := range []store.Settlement{completed("x"), failed("x")} {
			c := f.grant(f.request(f.long)).Claim()
			f.settle(c, out, keep)
			rec := f.read(c.ID)
			if got := rec.ExpiresAt.Sub(rec.SettledAt); !near(got, keep.Result) {
				f.Errorf("%v: the result expires %v after settling; want %v", out.State, got, keep.Result)
			}
			if got := rec.ForgetAt.Sub(rec.SettledAt); !near(got, keep.Tombstone) {
				f.Errorf("%v: the record is forgotten %v after settling; want %v", out.State, got, keep.Tombstone)
			}
		}
		c := f.grant(f.request(f.long)).Claim()
		f.release(c, keep)
		rec := f.read(c.ID)
		if got := rec.ForgetAt.Sub(rec.SettledAt); !near(got, keep.Result) {
			f.Errorf("a released record is forgotten %v after its release; want %v", got, keep.Result)
		}
	}
}

func expiredIsGone(f *fixture) {
	brief := store.Retention{Result: f.unit, Tombstone: f.keep.Tombstone}
	for _, read := range []bool{true, false} {
		a, b := f.request(f.long), f.request(f.long)
		f.settle(f.grant(a).Claim(), completed("result"), brief)
		f.settle(f.grant(b).Claim(), failed("result"), brief)
		f.pass(1)
		for _, req := range []store.ClaimRequest{a, b} {
			rec, by := store.Record{}, "Read"
			if read {
				rec = f.read(req.ID)
			} else {
				rec, by = f.claim(byAnother(req)), "Claim"
			}
			if !rec.State.Settled() || !rec.Gone || !rec.Result.IsZero() {
				f.Errorf("past its ExpiresAt, %s returned %s; want it settled, and gone", by, show(rec))
			}
			f.unchanged(by, rec)
		}
	}
}

func forgottenInTime(f *fixture) {
	req, kept := f.request(f.long), f.request(f.long)
	c := f.grant(req).Claim()
	f.settle(c, completed("x"), store.Retention{Result: f.unit / 2, Tombstone: f.unit})
	f.settle(f.grant(kept).Claim(), completed("x"), store.Retention{Result: f.unit / 2, Tombstone: f.keep.Tombstone})
	f.pass(1)
	if rec := f.claim(byAnother(kept)); rec.State != store.Completed {
		f.Errorf("a tombstone with time left did not hold: another claim got %s", show(rec))
	}
	if rec := f.read(req.ID); rec.State != store.None {
		f.Errorf("past its ForgetAt, Read returned %s; want none", show(rec))
	}
	f.fenced("Settle of a forgotten record", f.store.Settle(f.ctx, c, completed("x"), f.keep))
	f.fenced("Release of a forgotten record", f.store.Release(f.ctx, c, f.keep))
	other := byAnother(req)
	other.Fingerprint = fingerprintB
	rec := f.grant(other)
	f.fenced("Settle by the owner of a forgotten record", f.store.Settle(f.ctx, c, completed("x"), f.keep))
	f.unchanged("Settle by the owner of a forgotten record", rec)
}

func releasedIsForgotten(f *fixture) {
	req, kept := f.request(f.long), f.request(f.long)
	f.release(f.grant(req).Claim(), store.Retention{Result: f.unit, Tombstone: f.keep.Tombstone})
	f.release(f.grant(kept).Claim(), f.keep)
	gone := f.request(f.long)
	rec := f.grant(gone)
	f.release(rec.Claim(), store.Retention{})
	if now := f.read(gone.ID); now.State != store.None {
		f.Errorf("released without any retention, a record is %s; want none at once", show(now))
	}
	gone.Fingerprint = fingerprintB
	if again := f.grant(byAnother(gone)); again.Attempt != 1 || again.Fence <= rec.Fence {
		f.Errorf("a key whose record was forgotten at its release got %s, after the fence %d; want a first attempt, with a greater fence", show(again), rec.Fence)
	}
	f.pass(1)
	if rec := f.read(req.ID); rec.State != store.None {
		f.Errorf("past its ForgetAt, a released record is %s; want none", show(rec))
	}
	if rec := f.read(kept.ID); rec.State != store.Retryable {
		f.Errorf("before its ForgetAt, a released record is %s; want retryable", show(rec))
	}
}

func neverForgotten(f *fixture) {
	running, unknown := f.request(f.unit), f.request(f.unit)
	a, b := f.grant(running), f.grant(unknown)
	f.pass(1)
	f.claim(byAnother(unknown))
	units := 3
	if f.h.Advance != nil {
		units = int(3 * 365 * 24 * time.Hour / f.unit)
	}
	f.pass(units)
	f.is("much later, a running record", running.ID, store.Running, a.Fence)
	f.is("much later, an unknown record", unknown.ID, store.Unknown, b.Fence)
	if sweeper := f.can.sweeper; sweeper != nil {
		f.sweepAll(sweeper)
		f.is("much later, a running record that was swept", running.ID, store.Unknown, a.Fence)
		f.is("much later, an unknown record that was swept", unknown.ID, store.Unknown, b.Fence)
	}
	if rec := f.claim(byAnother(running)); rec.State != store.Unknown {
		f.Errorf("a run that died long ago is not unknown but %s", show(rec))
	}
}

func claimClearsRetention(f *fixture) {
	req := f.request(f.long)
	f.release(f.grant(req).Claim(), store.Retention{Result: f.unit, Tombstone: 2 * f.unit})
	next := byAnother(req)
	rec := f.grant(next)
	f.pass(2)
	f.is("past the ForgetAt of an earlier release, the claim after it", req.ID, store.Running, rec.Fence)
	if got := f.claim(byAnother(req)); got.State != store.Running || got.Fence != rec.Fence {
		f.Errorf("past the ForgetAt of an earlier release, a running key was given to another: %s", show(got))
	}
}

func timesInOrder(f *fixture) {
	req := f.request(f.long)
	rec := f.grant(req)
	if rec.ClaimedAt.IsZero() || !rec.SettledAt.IsZero() || !rec.ForgetAt.IsZero() {
		f.Errorf("a running record has ClaimedAt %v, SettledAt %v, ForgetAt %v; want only the first", rec.ClaimedAt, rec.SettledAt, rec.ForgetAt)
	}
	f.pass(1)
	f.settle(rec.Claim(), completed("x"), f.keep)
	got := f.read(req.ID)
	if !sameTime(got.ClaimedAt, rec.ClaimedAt) {
		f.Errorf("settling moved ClaimedAt from %v to %v", rec.ClaimedAt, got.ClaimedAt)
	}
	if took := got.SettledAt.Sub(got.ClaimedAt); took < f.unit {
		f.Errorf("settled %v after the claim, by the record's times; more than %v went by on the store's clock", took, f.unit)
	}
	if got.LeaseLeft != 0 {
		f.Errorf("a settled record has LeaseLeft %v; it is only for running ones", got.LeaseLeft)
	}
}

var resultChecks = []check{
	{"results come back byte for byte", "a replay is the first answer, not something like it.",
		resultsAreExact},
	{"a result that a caller passed or received is never modified", "the engine shares it with callers that are still reading it.",
		resultsAreNotModified},
	{"an outcome without its result is kept as such", "a result too large to be kept still means that the operation was executed.",
		goneIsKept},
}

var limitChecks = []check{
	{"results up to the limit are kept, and no greater ones", "the engine settles what the store has said that it keeps; an outcome that is refused or cut then is lost.",
		limitHolds},
}

// mostResult is the greatest result that the store keeps; 0 for no limit.
func mostResult(s store.Store) int {
	if l, ok := store.As[store.Limiter](s); ok {
		return l.MaxResult()
	}
	return 0
}

func limitHolds(f *fixture) {
	most := mostResult(f.store)
	if most > store.MaxResultLimit {
		f.Fatalf("MaxResult is %d; want 0 or at most store.MaxResultLimit, %d", most, store.MaxResultLimit)
	}
	for _, state := range []store.State{store.Completed, store.Failed} {
		req := f.request(f.long)
		rec := f.grant(req)
		result := sized(most + 1)
		if err := f.store.Settle(f.ctx, rec.Claim(), store.Settlement{State: state, Result: result}, f.keep); !errors.Is(err, store.ErrInvalid) {
			f.Errorf("Settle as %v with %d bytes, one more than MaxResult, returned: %v; want ErrInvalid", state, most+1, err)
		}
		f.unchanged("Settle with a result above MaxResult", rec)
		result = sized(most)
		f.settle(rec.Claim(), store.Settlement{State: state, Result: result}, f.keep)
		if now := f.read(req.ID); now.State != state || now.Gone || !now.Result.Equal(result) {
			f.Errorf("settled as %v with %d bytes, which is MaxResult, the record is %s", state, most, show(now))
		}
	}
}

func resultsAreExact(f *fixture) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	of := func(body []byte) store.Result {
		return store.Result{Status: 201, Type: "text/plain", Head: every, Body: body}
	}
	results := map[string]store.Result{
		"without a body":     of(nil),
		"with an empty body": of([]byte{}),
		"one NUL":            of([]byte{0}),
		"every byte":         of(every),
		"invalid UTF-8":      of([]byte("\xff\xfe\xc0\xaf")),
		"quotes":             of([]byte(`'"\%s${x}` + "`\r\n")),
		"1 MiB":              of(bytes.Repeat(every, 4096)),
		"1 MiB of NUL":       of(make([]byte, 1<<20)),
		"nothing":            {},
		"a status alone":     {Status: store.MaxStatus},
		"a type alone":       {Type: `application/problem+json; x="ü"`},
		"the longest type":   {Type: strings.Repeat("x", store.MaxLabel), Head: every},
		"an empty head":      {Status: 200, Head: []byte{}},
		"a head alone":       {Head: every},
		"a body alone":       {Body: every},
		"no head":            {Status: 402, Type: "application/json", Body: []byte("{}")},
		"a head of 1 MiB":    {Head: bytes.Repeat(every, 4096)},
		"no status, no type": {Head: every, Body: every},
		"a status of 1":      {Status: 1, Head: every},
	}
	most := mostResult(f.store)
	for name, result := range results {
		if most > 0 && result.Size() > most {
			result = sized(most)
		}
		for _, state := range []store.State{store.Completed, store.Failed} {
			req := f.request(f.long)
			f.settle(f.grant(req).Claim(), store.Settlement{State: state, Result: result}, f.keep)
			for by, rec := range map[string]store.Record{"Read": f.read(req.ID), "Claim": f.claim(byAnother(req))} {
				if rec.State != state || rec.Gone || !rec.Result.Equal(result) {
					f.Errorf("%s of a record settled as %v with the result %q (%s) returned %s", by, state, name, shown(result), show(rec))
				}
			}
		}
	}
}

func resultsAreNotModified(f *fixture) {
	want := strings.Repeat("result", 100)
	in := completed(want)
	req := f.request(f.long)
	c := f.grant(req).Claim()
	f.settle(c, in, store.Retention{Result: f.unit, Tombstone: 3 * f.unit})
	out := f.read(req.ID).Result
	out2 := f.claim(byAnother(req)).Result
	early := text(out) == want && text(out2) == want // a slow server's result may be gone by now
	for range 20 {
		f.settle(f.grant(f.request(f.long)).Claim(), completed(strings.Repeat("RESULT", 100)), f.keep)
	}
	f.pass(1)
	f.read(req.ID)
	if sweeper := f.can.sweeper; sweeper != nil {
		f.sweepAll(sweeper)
	}
	f.pass(3)
	f.grant(byAnother(req))
	if text(in.Result) != want || early && (text(out) != want || text(out2) != want) {
		f.Errorf("a result was modified after the call: in %s, out %s and %s", shown(in.Result), shown(out), shown(out2))
	}
}

func goneIsKept(f *fixture) {
	for _, state := range []store.State{store.Completed, store.Failed} {
		req := f.request(f.long)
		f.settle(f.grant(req).Claim(), store.Settlement{State: state, Gone: true}, f.keep)
		for by, rec := range map[string]store.Record{"Read": f.read(req.ID), "Claim": f.claim(byAnother(req))} {
			if rec.State != state || !rec.Gone || !rec.Result.IsZero() {
				f.Errorf("%s of a record settled as %v without its result returned %s", by, state, show(rec))
			}
		}
	}
}
