// Package rules has the rules that stores in Go share: what a call changes in the record that it finds.
// Its functions are pure. A store reads a record, asks the rule, and makes the change, without another
// write of that record in between.
package rules

import (
	"time"

	"github.com/stet-go/stet/store"
)

// Change is what a call does to a record.
type Change uint8

const (
	None          Change = iota // the record stays unchanged
	Grant                       // the caller becomes its owner, with the next fence
	MarkUnknown                 // its run has lost the lease
	Settle                      // it gets the outcome
	Release                     // it becomes retryable
	Return                      // it waits for a worker again
	RequestCancel               // its run is asked to stop
	Write                       // its notes, messages or result change
)

// OnClaim is the rule of store.Store.Claim and store.WorkStore.Accept. As in all rules, a record
// that does not exist, or is forgotten, has the state None.
func OnClaim(rec store.Record, req store.ClaimRequest) (Change, error) {
	switch {
	case rec.State == store.None:
		return Grant, nil
	case rec.Fingerprint != req.Fingerprint:
		return None, store.ErrMismatch
	case rec.Owner == req.Owner:
		return None, nil // the reply to the first call was lost
	case lapsed(rec):
		return MarkUnknown, nil
	case rec.State == store.Retryable:
		return Grant, nil
	}
	return None, nil
}

// OnTake is the rule of store.WorkStore.Take. due says that the record need not wait any longer.
func OnTake(rec store.Record, req store.TakeRequest, due bool) Change {
	switch {
	case rec.State == store.None || rec.Owner == req.Owner:
		return None
	case lapsed(rec):
		return MarkUnknown
	case rec.State == store.Accepted && due:
		return Grant
	}
	return None
}

// lapsed reports whether the record's run has lost its lease.
func lapsed(rec store.Record) bool { return rec.State == store.Running && rec.LeaseLeft <= 0 }

// current reports whether the claim has the newest fence of the record.
func current(rec store.Record, c store.Claim) bool {
	return rec.State != store.None && rec.Fence == c.Fence
}

// unsettled reports whether a run of the record can still end.
func unsettled(rec store.Record) bool {
	return rec.State == store.Running || rec.State == store.Unknown
}

// OnSettle is the rule of store.Store.Settle.
func OnSettle(rec store.Record, c store.Claim, out store.Settlement, now time.Time) (Change, error) {
	switch {
	case !current(rec, c):
		return None, store.ErrFenced
	case unsettled(rec):
		return Settle, nil
	case rec.State == out.State && sameOutcome(rec, out, now):
		return None, nil // the reply to the first call was lost
	}
	return None, store.ErrFenced
}

// sameOutcome reports whether the settled record has that outcome. A result that has expired may
// have been another one.
func sameOutcome(rec store.Record, out store.Settlement, now time.Time) bool {
	return now.Before(rec.ExpiresAt) && rec.Gone == out.Gone && (rec.Gone || rec.Result.Equal(out.Result))
}

// OnRelease is the rule of store.Store.Release. As in the rules below, rec has its Work, unless it
// was not accepted.
func OnRelease(rec store.Record, c store.Claim) (Change, error) {
	switch {
	case !current(rec, c):
		return None, store.ErrFenced
	case unsettled(rec) && rec.Work != nil:
		return Return, nil
	case unsettled(rec):
		return Release, nil
	case rec.State == store.Retryable || rec.State == store.Accepted:
		return None, nil // the reply to the first call was lost
	}
	return None, store.ErrFenced
}

// OnReturn is the rule of store.WorkStore.Return.
func OnReturn(rec store.Record, c store.Claim) (Change, error) {
	switch {
	case !current(rec, c) || rec.Work == nil:
		return None, store.ErrFenced
	case unsettled(rec):
		return Return, nil
	case rec.State == store.Accepted:
		return None, nil // the reply to the first call was lost
	}
	return None, store.ErrFenced
}

// OnCancel is the rule of store.WorkStore.Cancel.
func OnCancel(rec store.Record, c store.Claim, out store.Settlement, now time.Time) (Change, error) {
	switch {
	case !current(rec, c):
		return None, store.ErrFenced
	case rec.State == store.Accepted:
		return Settle, nil
	case rec.State == store.Running && rec.Work != nil:
		return RequestCancel, nil
	case rec.State == store.Failed && sameOutcome(rec, out, now):
		return None, nil // the reply to the first call was lost
	}
	return None, store.ErrFenced
}

// OnSave is the rule of store.WorkStore.Save and Amend, which write notes of a record in that state.
func OnSave(rec store.Record, c store.Claim, notes store.Notes, in store.State) (Change, error) {
	switch {
	case !current(rec, c) || rec.State != in || notes.Version < rec.Notes.Version:
		return None, store.ErrFenced
	case notes.Version == rec.Notes.Version:
		return None, nil // the reply to the first call was lost
	}
	return Write, nil
}

// OnRelayed is the rule of store.OutboxStore.Relayed.
func OnRelayed(rec store.Record, c store.Claim) (Change, error) {
	switch {
	case !current(rec, c) || !rec.State.Settled():
		return None, store.ErrFenced
	case rec.Outbox == nil:
		return None, nil // the reply to the first call was lost
	}
	return Write, nil
}

// OnExpire is the rule of store.Browser.Expire.
func OnExpire(rec store.Record, c store.Claim) (Change, error) {
	if !current(rec, c) || !rec.State.Settled() {
		return None, store.ErrFenced
	}
	return Write, nil
}
