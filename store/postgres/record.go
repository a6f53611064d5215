package postgres

import (
	"time"

	"github.com/stet-go/stet/store"
)

// row is a record as the server holds it, and what its clock said then.
type row struct {
	store.Record
	now        time.Time
	lease      time.Time // when it ends
	notes      []byte    // packed
	replicated bool      // commits wait for standbys there
	damage     error     // why it cannot be read; ID, Scope, Owner and Fence are set if they can be

	read struct { // values that valid converts
		id, scope, fingerprint, owner []byte
		state                         int
	}
}

// forgotten reports whether the record counts as none.
func (r *row) forgotten() bool { return !r.ForgetAt.IsZero() && !r.now.Before(r.ForgetAt) }

// lapsed reports whether the lease has run out.
func (r *row) lapsed() bool { return r.State == store.Running && !r.now.Before(r.lease) }

// record returns the record as it was at r.now.
func (r *row) record() store.Record {
	rec := r.Record
	rec.Notes = store.UnmarshalNotes(r.notes)
	if rec.State.Settled() {
		rec.Work, rec.Outbox = nil, r.Work
	}
	if rec.State == store.Running {
		rec.LeaseLeft = r.lease.Sub(r.now)
	}
	if !r.ExpiresAt.IsZero() && !r.now.Before(r.ExpiresAt) {
		rec.Gone = true
	}
	if rec.Gone {
		rec.Result = store.Result{}
	}
	return rec
}

// step is the work to do to a record.
type step uint8

const (
	stepNone    step = iota // the answer stands
	stepInsert              // there is no record
	stepRegrant             // a free record exists
	stepPark                // its owner is dead
	stepWrite               // it can be settled or released
)

// onClaim decides about a claim that found r, nil for none. It is the body of
// store.Store.Claim.
func onClaim(req *store.ClaimRequest, r *row) (store.Record, step, error) {
	switch {
	case r == nil:
		return store.Record{ID: req.ID}, stepInsert, nil
	case r.damage != nil:
		return store.Record{ID: req.ID}, stepNone, r.damage
	case r.forgotten():
		return store.Record{ID: req.ID}, stepRegrant, nil
	case r.Fingerprint != req.Fingerprint:
		return r.record(), stepNone, store.ErrMismatch
	case r.lapsed() && r.Owner != req.Owner:
		return r.record(), stepPark, nil
	case r.State == store.Retryable && r.Owner != req.Owner:
		return r.record(), stepRegrant, nil
	}
	return r.record(), stepNone, nil
}

// ending is a settle or a release.
type ending struct {
	claim   store.Claim
	out     store.Settlement // its state is Retryable for a release
	keep    store.Retention
	release bool
}

// result is the stored result, if there is one.
func (e *ending) result() store.Result {
	if e.release || e.out.Gone {
		return store.Result{}
	}
	return e.out.Result
}

// due is when the sweep has to look at the record next, if ever.
func (e *ending) due() (d time.Duration, ever bool) {
	if !e.out.Gone && (e.release || e.out.Outbox != nil || e.keep.Result < e.keep.Tombstone) {
		return e.keep.Result, true
	}
	return e.forget()
}

// forget is when the record is forgotten, if ever: not before its messages have
// left.
func (e *ending) forget() (d time.Duration, ever bool) {
	if e.release {
		return e.keep.Result, true
	}
	return e.keep.Tombstone, e.out.Outbox == nil
}

// onEnding decides about a settle or release that found r, nil for none.
func onEnding(e *ending, r *row) (step, error) {
	if r != nil && r.damage != nil {
		return stepNone, r.damage
	}
	if r == nil || r.forgotten() || r.Fence != e.claim.Fence {
		return stepNone, store.ErrFenced
	}
	if r.State == store.Running || r.State == store.Unknown {
		return stepWrite, nil
	}
	// Perhaps the reply to the first time was lost.
	if e.release && (r.State == store.Retryable || r.State == store.Accepted) || !e.release && r.came(e.out) {
		return stepNone, nil
	}
	return stepNone, store.ErrFenced
}

// came reports whether the record is settled with the outcome. A result that has
// expired, by itself or by hand, may have been another.
func (r *row) came(out store.Settlement) bool {
	return r.State == out.State && r.now.Before(r.ExpiresAt) && r.Gone == out.Gone && (r.Gone || r.Result.Equal(out.Result))
}
