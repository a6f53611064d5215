package postgres

import (
	"bytes"
	"fmt"
	"time"

	"github.com/stet-go/stet"
)

// row is a record as the server holds it, and what its clock said then. Times
// are in microseconds since 1970; 0 where none applies.
type row struct {
	stet.Record
	now                                        int64
	claimed, lease, settled, expires, forgotAt int64
}

// scan reads the values of columns.
func (r *row) scan(values [][]byte) error {
	f := fields{values: values}
	f.digest(r.ID[:])
	f.digest(r.Scope[:])
	f.digest(r.Fingerprint[:])
	f.digest(r.Owner[:])
	r.Fence = f.int64()
	state := f.int16()
	r.Attempt = f.int32()
	r.Gone = f.bool()
	r.claimed, r.lease, r.settled = f.time(), f.time(), f.time()
	r.expires, r.forgotAt = f.time(), f.time()
	r.Result = f.bytes()
	r.now = f.time()
	if f.bad || state < int(stet.Running) || state > int(stet.Accepted) || r.Fence <= 0 {
		return fmt.Errorf("%w: the record of %v is unreadable", errDamaged, r.ID)
	}
	r.State = stet.State(state)
	return nil
}

// forgotten reports whether the record counts as none.
func (r *row) forgotten() bool { return r.forgotAt != 0 && r.now >= r.forgotAt }

// lapsed reports whether the lease has run out.
func (r *row) lapsed() bool { return r.State == stet.Running && r.now >= r.lease }

// record returns the record as it was at r.now.
func (r *row) record() stet.Record {
	rec := r.Record
	rec.ClaimedAt, rec.SettledAt = instant(r.claimed), instant(r.settled)
	rec.ExpiresAt, rec.ForgetAt = instant(r.expires), instant(r.forgotAt)
	if rec.State == stet.Running {
		rec.LeaseLeft = time.Duration(r.lease-r.now) * time.Microsecond
	}
	if r.expires != 0 && r.now >= r.expires {
		rec.Gone = true
	}
	if rec.Gone {
		rec.Result = nil
	}
	return rec
}

func instant(t int64) time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.UnixMicro(t)
}

// step is what has to be done to a record.
type step uint8

const (
	stepNone    step = iota // the answer stands
	stepInsert              // there is no record
	stepRegrant             // there is one that is free
	stepPark                // its owner is dead
	stepWrite               // it can be settled or released
)

// onClaim decides about a claim that found r, nil for none. It is the body of
// stet.Store.Claim.
func onClaim(req *stet.ClaimRequest, r *row) (stet.Record, step, error) {
	switch {
	case r == nil:
		return stet.Record{ID: req.ID}, stepInsert, nil
	case r.forgotten():
		return stet.Record{ID: req.ID}, stepRegrant, nil
	case r.Fingerprint != req.Fingerprint:
		return r.record(), stepNone, stet.ErrMismatch
	case r.lapsed() && r.Owner != req.Owner:
		return r.record(), stepPark, nil
	case r.State == stet.Retryable && r.Owner != req.Owner:
		return r.record(), stepRegrant, nil
	}
	return r.record(), stepNone, nil
}

// ending is a settle or a release.
type ending struct {
	claim   stet.Claim
	out     stet.Outcome // its state is Retryable for a release
	keep    stet.Retention
	release bool
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
	if r == nil || r.forgotten() || r.Fence != e.claim.Fence {
		return stepNone, stet.ErrFenced
	}
	if r.State == stet.Running || r.State == stet.Unknown {
		return stepWrite, nil
	}
	// Perhaps the reply to the first time was lost.
	if e.release && (r.State == stet.Retryable || r.State == stet.Accepted) || !e.release && r.came(e.out) {
		return stepNone, nil
	}
	return stepNone, stet.ErrFenced
}

// came reports whether the record is settled with the outcome, as far as can be
// known.
func (r *row) came(out stet.Outcome) bool {
	was := r.record()
	return was.State == out.State && (was.Gone || !out.Gone && bytes.Equal(was.Result, out.Result))
}
