package postgres

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
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
		state, status                 zeronull.Int2
		attempt                       zeronull.Int4
	}
}

// forgotten reports whether the record counts as none.
func (r *row) forgotten() bool { return !r.ForgetAt.IsZero() && !r.now.Before(r.ForgetAt) }

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

// known is the record as the rules see it: without a state if it does not exist or is forgotten.
func (r *row) known() store.Record {
	if r == nil || r.forgotten() {
		return store.Record{}
	}
	return r.record()
}

// onClaim decides about a claim that found r, nil for none.
func onClaim(req *store.ClaimRequest, r *row) (store.Record, rules.Change, error) {
	if r != nil && r.damage != nil {
		return store.Record{ID: req.ID}, rules.None, r.damage
	}
	rec := r.known()
	change, err := rules.OnClaim(rec, *req)
	rec.ID = req.ID
	return rec, change, err
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
func onEnding(e *ending, r *row) (rules.Change, error) {
	switch {
	case r != nil && r.damage != nil:
		return rules.None, r.damage
	case e.release:
		return rules.OnRelease(r.known(), e.claim)
	case r == nil:
		return rules.None, store.ErrFenced
	}
	return rules.OnSettle(r.known(), e.claim, e.out, r.now)
}
