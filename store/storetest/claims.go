package storetest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/stet-go/stet/store"
)

var claimChecks = []check{
	{"a free key is granted", "the claim is what lets an operation run; its record must carry who runs what, under which fence.",
		freeKeyIsGranted},
	{"a claim in each state follows the state machine", "only a free or retryable key may run; anything else granted is a second execution.",
		claimInEachState},
	{"the owner recognises its own claim", "the reply to a claim may be lost; its repetition must not conflict with itself, and must not get a new fence either.",
		ownClaimIsRecognised},
	{"an owner claims once", "a claim that was delayed on its way must not be granted after its owner has released the key and gone.",
		ownerClaimsOnce},
	{"a retryable key is granted with the next attempt", "the handler tells a first try from a repetition by the attempt, and others tell a zombie by the fence.",
		retryableIsGranted},
	{"the next claim marks an expired claim unknown", "the expired run may have had its effect; running again would risk a second one.",
		lapsedIsParked},
	{"fences grow over release, takeover and forgetting", "a fence that restarts lets a zombie of long ago pass for the newest owner.",
		fencesGrow},
	{"fences grow over a sweep's purge", "whatever remembers the last fence must survive the record.",
		fencesGrowOverPurge},
	{"a refused claim changes nothing", "a duplicate must not prolong, shorten or take the claim of the run in flight.",
		refusedClaimChangesNothing},
	{"keys do not touch each other", "an ID is 32 bytes of anything, NUL included; records that mix give one customer another's outcome.",
		keysAreApart},
	{"the scope is stored", "operators find the records of one customer by the scope's digest.",
		scopeIsStored},
	{"a record has the label of its last claim", "operators and verifiers rely on it, also after a crash.",
		labelIsStored},
}

func freeKeyIsGranted(f *fixture) {
	req := f.request(f.long)
	if rec := f.read(req.ID); rec.State != store.None {
		f.Fatalf("Read of a key that was never claimed returned %s; want the state none", show(rec))
	}
	rec := f.grant(req)
	if rec.ID != req.ID || rec.Fingerprint != req.Fingerprint || rec.Owner != req.Owner {
		f.Errorf("the record has another ID, Fingerprint or Owner than its claim: %s", show(rec))
	}
	if rec.Attempt != 1 {
		f.Errorf("the first claim is attempt %d; want 1", rec.Attempt)
	}
	if rec.LeaseLeft <= 0 || rec.LeaseLeft > f.long {
		f.Errorf("LeaseLeft is %v; want at most the lease, %v, and something of it", rec.LeaseLeft, f.long)
	}
	if !rec.Result.IsZero() || rec.Gone {
		f.Errorf("a running record has a result: %s", show(rec))
	}
	f.unchanged("Read after Claim", rec)
}

func claimInEachState(f *fixture) {
	for _, s := range f.situations() {
		req := byAnother(s.req)
		rec := f.claim(req)
		_, free := s.state.Next(store.VerbClaim)
		switch {
		case free:
			if !granted(rec, req) || rec.Fence <= s.claim.Fence {
				f.Errorf("%s: want it granted with a fence above %d; got %s", s.name, s.claim.Fence, show(rec))
			}
		case s.lapsed:
			if rec.State != store.Unknown || rec.Fence != s.claim.Fence || rec.Owner != s.claim.Owner {
				f.Errorf("%s: want unknown under its fence %d and owner; got %s", s.name, s.claim.Fence, show(rec))
			}
		default:
			if d := diff(s.rec, rec); d != "" {
				f.Errorf("%s: want the record unchanged; %s", s.name, d)
			}
		}
		f.unchanged("Read after Claim of a key that is "+s.name, rec)
	}
}

func ownClaimIsRecognised(f *fixture) {
	for _, s := range f.situations() {
		again := s.req
		again.Lease = 10 * f.long
		switch s.state {
		case store.None: // a new operation, whatever caller asks
		case store.Running:
			rec := f.claim(again)
			if !granted(rec, again) || rec.Fence != s.claim.Fence || rec.Attempt != s.rec.Attempt {
				f.Errorf("%s: the same claim again returned %s; want its own record, %s", s.name, show(rec), show(s.rec))
			}
			if rec.LeaseLeft > s.rec.LeaseLeft {
				f.Errorf("%s: the same claim again prolonged the lease from %v to %v", s.name, s.rec.LeaseLeft, rec.LeaseLeft)
			}
			f.unchanged("the same claim again, of a key that is "+s.name+",", s.rec)
		default:
			if rec := f.claim(again); rec.State != s.state || rec.Fence != s.claim.Fence {
				f.Errorf("%s: the same claim again returned %s; want the record unchanged", s.name, show(rec))
			}
			f.unchanged("the same claim again, of a key that is "+s.name+",", s.rec)
		}
	}
}

func ownerClaimsOnce(f *fixture) {
	req := f.request(f.long)
	first := f.grant(req)
	f.release(first.Claim(), f.keep)
	if rec := f.claim(req); rec.State != store.Retryable {
		f.Errorf("after its release, the same claim came again and returned %s; want it retryable", show(rec))
	}
	f.is("after the delayed claim", req.ID, store.Retryable, first.Fence)
}

func retryableIsGranted(f *fixture) {
	req := f.request(f.long)
	rec := f.grant(req)
	for attempt := 2; attempt <= 4; attempt++ {
		f.release(rec.Claim(), f.keep)
		req = byAnother(req)
		next := f.grant(req)
		if next.Attempt != attempt || next.Fence <= rec.Fence {
			f.Errorf("claim %d: want attempt %d and a fence above %d; got %s", attempt, attempt, rec.Fence, show(next))
		}
		if next.Scope != rec.Scope || next.Fingerprint != rec.Fingerprint {
			f.Errorf("claim %d lost the scope or the fingerprint", attempt)
		}
		if !next.SettledAt.IsZero() || !next.ForgetAt.IsZero() {
			f.Errorf("claim %d: a running record has SettledAt %v and ForgetAt %v; want neither", attempt, next.SettledAt, next.ForgetAt)
		}
		rec = next
	}
}

func lapsedIsParked(f *fixture) {
	req := f.request(f.unit)
	run := f.grant(req)
	f.pass(1)
	for i := range 2 {
		rec := f.claim(byAnother(req))
		if rec.State != store.Unknown || rec.Fence != run.Fence || rec.Attempt != 1 {
			f.Errorf("claim %d after the lease ran out returned %s; want unknown, under fence %d", i+1, show(rec), run.Fence)
		}
		if rec.SettledAt.IsZero() || !rec.ForgetAt.IsZero() {
			f.Errorf("an unknown record has SettledAt %v, ForgetAt %v; want the first and not the second", rec.SettledAt, rec.ForgetAt)
		}
	}
	if rec := f.claim(req); rec.State != store.Unknown {
		f.Errorf("the dead owner claimed again and got %s; want unknown", show(rec))
	}
}

func fencesGrow(f *fixture) {
	brief := store.Retention{Result: f.unit / 2, Tombstone: f.unit}
	req := f.request(f.unit)
	var last int64
	next := func(after string) store.Claim {
		req = byAnother(req)
		rec := f.grant(req)
		if rec.Fence <= last {
			f.Errorf("after %s the fence is %d; want more than the %d before", after, rec.Fence, last)
		}
		last = rec.Fence
		for range 3 { // other keys come and go
			f.grant(f.request(f.long))
		}
		return rec.Claim()
	}
	f.release(next("nothing"), f.keep)
	c := next("a release")
	f.pass(1)
	f.claim(byAnother(req)) // marks unknown
	f.release(c, f.keep)    // a takeover
	f.settle(next("a takeover"), completed("x"), brief)
	f.pass(1)
	f.release(next("forgetting an outcome"), store.Retention{Result: f.unit, Tombstone: f.unit})
	f.pass(1)
	next("forgetting a release")
}

func fencesGrowOverPurge(f *fixture) {
	sweeper := f.can.sweeper
	req := f.request(f.long)
	var last int64
	for i := range 3 {
		req = byAnother(req)
		rec := f.grant(req)
		if rec.Fence <= last {
			f.Errorf("claim %d, after the record was forgotten, has fence %d; want more than %d", i+1, rec.Fence, last)
		}
		if rec.Attempt != 1 {
			f.Errorf("claim %d of a forgotten key is attempt %d; want 1, as of a new record", i+1, rec.Attempt)
		}
		last = rec.Fence
		f.settle(rec.Claim(), completed("x"), store.Retention{Result: f.unit / 2, Tombstone: f.unit})
		f.pass(1)
		if sweeper != nil {
			f.sweepAll(sweeper)
		}
	}
}

func refusedClaimChangesNothing(f *fixture) {
	req := f.request(f.long)
	was := f.grant(req)
	other := byAnother(req)
	other.Lease = 10 * f.long
	for range 3 {
		rec := f.claim(other)
		if d := diff(was, rec); d != "" {
			f.Errorf("a claim of a running key: %s", d)
		}
		if rec.LeaseLeft > f.long {
			f.Errorf("a refused claim prolonged the lease to %v", rec.LeaseLeft)
		}
	}
	f.unchanged("a refused claim", was)
	other.Lease = f.unit
	f.claim(other)
	f.pass(1)
	if rec := f.claim(other); rec.State != store.Running {
		f.Errorf("a refused claim shortened the lease: the record is %s", show(rec))
	}
}

func keysAreApart(f *fixture) {
	nasty := []store.ID{{}, {31: 1}, {0: 1}, {30: 1, 31: 0}}
	for i := range 4 {
		var id store.ID
		for j := range id {
			id[j] = []byte{0xff, '%', '\'', '\n'}[i]
		}
		nasty = append(nasty, id)
	}
	claims := make([]store.Claim, len(nasty))
	for i, id := range nasty {
		req := f.request(f.long)
		req.ID = id
		claims[i] = f.grant(req).Claim()
	}
	for i, c := range claims {
		f.settle(c, completed(fmt.Sprint("result ", i)), f.keep)
	}
	for i, id := range nasty {
		if rec := f.read(id); text(rec.Result) != fmt.Sprint("result ", i) {
			f.Errorf("key %x holds %s; want %q", id, show(rec), fmt.Sprint("result ", i))
		}
	}
}

func scopeIsStored(f *fixture) {
	req := f.request(f.long)
	req.Scope = store.DigestScope("storetest", "another account")
	if rec := f.grant(req); rec.Scope != req.Scope {
		f.Errorf("Claim returned the scope %v; want %v", rec.Scope, req.Scope)
	}
	other := byAnother(req)
	other.Scope = testScope
	f.claim(other)
	if rec := f.read(req.ID); rec.Scope != req.Scope {
		f.Errorf("Read returned the scope %v; want %v", rec.Scope, req.Scope)
	}
}

func labelIsStored(f *fixture) {
	longest := strings.Repeat("\u00fc", store.MaxLabel/2)
	req := f.request(f.long)
	for i, label := range []store.Label{{}, testLabel, {Class: longest, Name: longest, Ref: "sealed:" + strings.Repeat("x", store.MaxRef-7)}, {Name: "only a name"}} {
		req = byAnother(req)
		req.Label = label
		rec := f.grant(req)
		if rec.Label != label {
			f.Errorf("claim %d returned the label %+v; want %+v", i+1, rec.Label, label)
		}
		f.unchanged("Read after Claim", rec)
		for what, other := range map[string]store.ClaimRequest{"another's": byAnother(req), "its own": req} {
			other.Label = store.Label{Class: "c", Name: "n", Ref: "r"}
			f.claim(other)
			f.unchanged("a claim of "+what+" that was not granted", rec)
		}
		f.release(rec.Claim(), f.keep)
		if now := f.read(req.ID); now.Label != label {
			f.Errorf("released, the record has the label %+v; want %+v", now.Label, label)
		}
	}
	req = byAnother(req)
	req.Label = testLabel
	f.settle(f.grant(req).Claim(), completed("x"), f.keep)
	if now := f.read(req.ID); now.Label != testLabel {
		f.Errorf("settled, the record has the label %+v; want %+v", now.Label, testLabel)
	}
}

var refusalChecks = []check{
	{"another fingerprint is refused in every state", "the same key for another request is a caller's mistake. It is reported first, also while the first request runs; no outcome is returned for it.",
		mismatchInEachState},
	{"the zero fingerprint matches only itself", "a caller without a fingerprint must not match a caller with one.",
		zeroFingerprint},
	{"a call with an ended context does nothing", "its caller has gone and will not hear what happened.",
		endedContext},
}

func mismatchInEachState(f *fixture) {
	for _, s := range f.situations() {
		for _, req := range []store.ClaimRequest{byAnother(s.req), s.req} {
			req.Fingerprint = fingerprintB
			rec, err := f.store.Claim(f.ctx, req)
			if s.state == store.None {
				if err != nil || !granted(rec, req) {
					f.Errorf("%s: the key is free, for any fingerprint; Claim returned %s, %v", s.name, show(rec), err)
				}
				break
			}
			who := "another owner"
			if req.Owner == s.req.Owner {
				who = "its own owner"
			}
			if !errors.Is(err, store.ErrMismatch) {
				f.Errorf("%s: %s claimed with another fingerprint: want ErrMismatch; got %s, %v", s.name, who, show(rec), err)
			} else if d := diff(s.rec, rec); d != "" {
				f.Errorf("%s: ErrMismatch comes with the record unchanged; %s", s.name, d)
			}
			f.unchanged("a mismatch with a key that is "+s.name, s.rec)
		}
	}
}

func zeroFingerprint(f *fixture) {
	with, without := f.request(f.long), f.request(f.long)
	without.Fingerprint = store.Fingerprint{}
	f.grant(with)
	f.grant(without)
	if rec := f.claim(byAnother(without)); rec.State != store.Running {
		f.Errorf("no fingerprint, twice: got %s; want it running", show(rec))
	}
	with.Fingerprint, without.Fingerprint = without.Fingerprint, with.Fingerprint
	for _, req := range []store.ClaimRequest{with, without} {
		if rec, err := f.store.Claim(f.ctx, byAnother(req)); !errors.Is(err, store.ErrMismatch) {
			f.Errorf("a fingerprint beside none: want ErrMismatch; got %s, %v", show(rec), err)
		}
	}
}
