package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// patience limits waiting for something that happens soon; only failures use all of it.
var patience = time.Minute

var (
	fingerprintA = stet.NewFingerprint([]byte("charge 10"))
	fingerprintB = stet.NewFingerprint([]byte("charge 1000"))
	testScope    = store.DigestScope("storetest", "account")
)

// fixture is what a check works with: a fresh store and ways to use it that
// fail the test when they should have worked.
type fixture struct {
	testing.TB
	h     Harness
	store store.Store
	can   abilities // of the store
	ctx   context.Context
	unit  time.Duration
	long  time.Duration   // a lease that does not run out during a test
	keep  store.Retention // retention that does not run out during a test

	passed  atomic.Int64 // nanoseconds that pass has let go by
	timed   atomic.Bool  // something is to end during the test
	certain atomic.Bool  // what failed did so at whatever speed
}

func newFixture(t testing.TB, h Harness) *fixture {
	t.Helper()
	f := &fixture{TB: t, h: h, store: h.New(t), ctx: t.Context(), unit: h.Unit}
	f.can = abilitiesOf(f.store)
	f.long = max(time.Hour, 100*f.unit)
	f.keep = store.Retention{Result: 24 * f.long, Tombstone: 720 * f.long}
	return f
}

// pass advances the store's time by units, and half a unit more, so that everything set to
// end by then has ended.
func (f *fixture) pass(units int) {
	f.Helper()
	f.timed.Store(true)
	d := time.Duration(units)*f.unit + f.unit/2
	f.h.pass(f, d)
	f.passed.Add(int64(d))
}

// request returns a claim for a key that was never used, by a new owner.
func (f *fixture) request(lease time.Duration) store.ClaimRequest {
	if lease < f.long {
		f.timed.Store(true)
	}
	return store.ClaimRequest{
		ID:          store.Digest("storetest", "account", stet.NewKey()),
		Scope:       testScope,
		Fingerprint: fingerprintA,
		Owner:       store.NewOwner(),
		Lease:       lease,
		Label:       testLabel,
	}
}

// testLabel is what operations are called unless a check says otherwise.
var testLabel = store.Label{Class: "payments", Name: "POST /v1/payments", Ref: "order 1042, \u00fc"}

// byAnother returns the same claim by another owner.
func byAnother(req store.ClaimRequest) store.ClaimRequest {
	req.Owner = store.NewOwner()
	return req
}

func granted(rec store.Record, req store.ClaimRequest) bool {
	return rec.State == store.Running && rec.Owner == req.Owner
}

func (f *fixture) claim(req store.ClaimRequest) store.Record {
	f.Helper()
	rec, err := f.store.Claim(f.ctx, req)
	if err != nil {
		f.Fatalf("Claim: %v", err)
	}
	return rec
}

// grant claims, and requires that the claim be granted.
func (f *fixture) grant(req store.ClaimRequest) store.Record {
	f.Helper()
	rec := f.claim(req)
	if !granted(rec, req) {
		f.Fatalf("Claim was not granted: it returned %s", show(rec))
	}
	if rec.Fence <= 0 {
		f.Fatalf("Claim granted the fence %d; fences are positive", rec.Fence)
	}
	return rec
}

func (f *fixture) read(id store.ID) store.Record {
	f.Helper()
	rec, err := f.store.Read(f.ctx, id)
	if err != nil {
		f.Fatalf("Read: %v", err)
	}
	return rec
}

func (f *fixture) settle(c store.Claim, out store.Settlement, keep store.Retention) {
	f.Helper()
	if err := f.store.Settle(f.ctx, c, out, keep); err != nil {
		f.Fatalf("Settle as %v: %v", out.State, err)
	}
}

func (f *fixture) release(c store.Claim, keep store.Retention) {
	f.Helper()
	if err := f.store.Release(f.ctx, c, keep); err != nil {
		f.Fatalf("Release: %v", err)
	}
}

func (f *fixture) extend(lease time.Duration, claims ...store.Claim) (lost []store.Claim) {
	f.Helper()
	lost, err := f.store.Extend(f.ctx, claims, lease)
	if err != nil {
		f.Fatalf("Extend: %v", err)
	}
	return lost
}

// unchanged requires that the record has not changed.
func (f *fixture) unchanged(what string, was store.Record) {
	f.Helper()
	if d := diff(was, f.read(was.ID)); d != "" {
		f.Errorf("%s changed the record: %s", what, d)
	}
}

// is requires that the record be in the state, with the fence.
func (f *fixture) is(what string, id store.ID, state store.State, fence int64) store.Record {
	f.Helper()
	rec := f.read(id)
	if rec.State != state || rec.Fence != fence {
		f.Errorf("%s: the record should be %v with fence %d; it is %s", what, state, fence, show(rec))
	}
	return rec
}

func (f *fixture) fenced(what string, err error) {
	f.Helper()
	if !errors.Is(err, store.ErrFenced) {
		f.Errorf("%s should have been refused with ErrFenced; it returned: %v", what, err)
	}
}

func completed(body string) store.Settlement {
	return store.Settlement{State: store.Completed, Result: result(body)}
}

func failed(body string) store.Settlement {
	return store.Settlement{State: store.Failed, Result: result(body)}
}

// show prints a record for a person.
func show(r store.Record) string {
	if r.State == store.None {
		return "none"
	}
	s := fmt.Sprintf("%v with fence %d, attempt %d, owner %.8s", r.State, r.Fence, r.Attempt, r.Owner)
	switch {
	case r.State == store.Running:
		s += fmt.Sprintf(", %v of its lease left", r.LeaseLeft)
	case r.Gone:
		s += ", its result gone"
	case r.State.Settled():
		s += fmt.Sprintf(", result %s", shown(r.Result))
	}
	return s
}

// rounding is how far two readings of one moment may be apart: servers keep
// times in milliseconds.
const rounding = 2 * time.Millisecond

// diff says what differs between two readings of a record, "" for nothing. The
// lease runs on between readings and is left out.
func diff(was, is store.Record) string {
	var d []string
	add := func(same bool, name string, was, is any) {
		if !same {
			d = append(d, fmt.Sprintf("%s was %v, is %v", name, was, is))
		}
	}
	add(was.State == is.State, "State", was.State, is.State)
	if was.State == store.None && is.State == store.None {
		return ""
	}
	add(was.ID == is.ID, "ID", was.ID, is.ID)
	add(was.Scope == is.Scope, "Scope", was.Scope, is.Scope)
	add(was.Label == is.Label, "Label", was.Label, is.Label)
	add(was.Fingerprint == is.Fingerprint, "Fingerprint", was.Fingerprint, is.Fingerprint)
	add(was.Owner == is.Owner, "Owner", was.Owner, is.Owner)
	add(was.Fence == is.Fence, "Fence", was.Fence, is.Fence)
	add(was.Attempt == is.Attempt, "Attempt", was.Attempt, is.Attempt)
	add(was.InTx == is.InTx, "InTx", was.InTx, is.InTx)
	add(was.Gone == is.Gone, "Gone", was.Gone, is.Gone)
	add(was.Result.Equal(is.Result), "Result", shown(was.Result), shown(is.Result))
	add(sameTime(was.ClaimedAt, is.ClaimedAt), "ClaimedAt", was.ClaimedAt, is.ClaimedAt)
	add(sameTime(was.SettledAt, is.SettledAt), "SettledAt", was.SettledAt, is.SettledAt)
	add(sameTime(was.ForgetAt, is.ForgetAt), "ForgetAt", was.ForgetAt, is.ForgetAt)
	if was.State.Settled() {
		add(sameTime(was.ExpiresAt, is.ExpiresAt), "ExpiresAt", was.ExpiresAt, is.ExpiresAt)
	}
	return strings.Join(d, "; ")
}

func sameTime(a, b time.Time) bool {
	if a.IsZero() || b.IsZero() {
		return a.IsZero() == b.IsZero()
	}
	return a.Sub(b).Abs() <= rounding
}
