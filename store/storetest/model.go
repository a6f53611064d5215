package storetest

import (
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/store"
)

// moment is a time of the store's clock, as far as it can be known from
// outside: between two bounds.
type moment struct{ lo, hi time.Duration }

func (m moment) add(d time.Duration) moment { return moment{m.lo + d - rounding, m.hi + d + rounding} }

// errTooClose ends a history in which a call came so close to the end of a
// lease or a retention that their order is not known.
var errTooClose = errors.New("too close to tell")

// reached reports whether now is past m. It panics with errTooClose if that
// cannot be known.
func (now moment) reached(m moment) bool {
	switch {
	case now.lo > m.hi:
		return true
	case now.hi < m.lo:
		return false
	}
	panic(errTooClose)
}

// model is what a store should be, written for being obvious: one record, no
// concurrency, no storage.
type model struct {
	state       store.State
	fingerprint store.Fingerprint
	owner       store.Owner
	fence       int64
	attempt     int
	result      store.Result
	gone        bool

	leaseEnd moment // while running
	expires  moment // when settled
	forget   moment // when settled or retryable

	kept workModel

	highest int64 // of all fences ever; survives forgetting
}

// tick makes all due changes, except marking unknown: a lease that has
// run out is noticed by the next claim or sweep.
func (m *model) tick(now moment) {
	if (m.state.Settled() && m.kept.outbox == "" || m.state == store.Retryable) && now.reached(m.forget) {
		*m = model{highest: m.highest}
	}
	if m.state.Settled() && !m.gone && now.reached(m.expires) {
		m.result, m.gone = store.Result{}, true
	}
}

// to takes the arrow for verb, and reports whether there is one.
func (m *model) to(verb store.Verb) bool {
	next, ok := m.state.Next(verb)
	m.state = next
	return ok
}

// claim returns the error to expect. The fence of a grant is the store's
// choice: it is left 0, for the caller to learn.
func (m *model) claim(req store.ClaimRequest, now moment) error {
	switch {
	case m.state != store.None && m.fingerprint != req.Fingerprint:
		return store.ErrMismatch
	case m.state == store.Running && m.owner != req.Owner && now.reached(m.leaseEnd):
		m.markUnknown()
	case m.state == store.Retryable && m.owner == req.Owner:
	case m.to(store.VerbClaim):
		m.fingerprint, m.owner, m.fence, m.attempt = req.Fingerprint, req.Owner, 0, m.attempt+1
		m.leaseEnd = now.add(req.Lease)
	}
	return nil
}

func (m *model) extend(fence int64, lease time.Duration, now moment) (lost bool) {
	if m.state != store.Running || m.fence != fence {
		return true
	}
	m.leaseEnd = now.add(lease)
	if m.kept.repeats {
		m.renewed()
	}
	return false
}

func (m *model) settle(fence int64, out store.Settlement, keep store.Retention, now moment) error {
	if m.state == store.None || m.fence != fence {
		return store.ErrFenced
	}
	if m.state == out.State && m.gone == out.Gone && (m.gone || m.result.Equal(out.Result)) && !now.reached(m.expires) {
		return nil
	}
	if !m.to(verbOf(out)) {
		return store.ErrFenced
	}
	m.result, m.gone = out.Result, out.Gone
	m.expires, m.forget = now.add(keep.Result), now.add(keep.Tombstone)
	m.kept = workModel{outbox: string(out.Outbox), atOnce: true}
	return nil
}

func (m *model) release(fence int64, keep store.Retention, now moment) error {
	if m.state == store.None || m.fence != fence {
		return store.ErrFenced
	}
	if m.state == store.Retryable || m.state == store.Accepted {
		return nil
	}
	if m.kept.work {
		return m.giveBack(fence, 0, now)
	}
	if !m.to(store.VerbRelease) {
		return store.ErrFenced
	}
	m.forget = now.add(keep.Result)
	return nil
}

// sweep learns from rec whether the store has marked unknown the record: it may have,
// if the lease has run out.
func (m *model) sweep(rec store.Record, now moment) {
	if m.state == store.Running && (rec.State == store.Unknown || rec.State == store.Accepted) && now.reached(m.leaseEnd) {
		m.markUnknown()
	}
}

// learn takes the fence of a grant from the store, or returns the error of
// it.
func (m *model) learn(rec store.Record) error {
	if m.state != store.Running && m.state != store.Accepted || m.fence != 0 {
		return nil
	}
	if rec.Fence <= m.highest {
		return fmt.Errorf("the fence of the new claim is %d; want more than %d, the highest the key ever had", rec.Fence, m.highest)
	}
	m.fence, m.highest = rec.Fence, rec.Fence
	return nil
}

// matches says how rec differs from the model, nil if it does not.
func (m *model) matches(rec store.Record, now moment) error {
	want := store.Record{ID: rec.ID, Scope: testScope, State: m.state, Fingerprint: m.fingerprint, Owner: m.owner, Fence: m.fence,
		Attempt: m.attempt, Result: m.result, Gone: m.gone}
	if want.State != rec.State {
		return fmt.Errorf("the store says %v, the model %v", rec.State, want.State)
	}
	got := rec
	got.ClaimedAt, got.SettledAt, got.ExpiresAt, got.ForgetAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	if d := diff(want, got); d != "" {
		return fmt.Errorf("by the model and then by the store: %s", d)
	}
	if m.state != store.Running {
		return nil
	}
	if over := now.reached(m.leaseEnd); over != (rec.LeaseLeft <= 0) {
		return fmt.Errorf("LeaseLeft is %v; the lease having run out is %v", rec.LeaseLeft, over)
	}
	return nil
}
