package stet

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/stet-go/stet/store"
)

// Progress is Run.Progress for a run of Take that another process holds, by its
// Lease.Claim: what does the work tells any engine how far it is. repeatable is whether
// that run was taken as Item.Repeatable. It reports whether the operation's cancellation
// was asked for; it is for the worker to heed. Of what comes within a second after
// another progress, nothing is kept, and what the run itself notes down (steps, its own
// progress) takes the place of what was reported.
//
// The error is an *Error of kind KindFenced (the run has ended, or there is a newer one),
// KindDamaged, KindInvalid or KindStore.
func (e *Engine) Progress(ctx context.Context, c store.Claim, repeatable bool, fraction float64, message string) (cancelling bool, err error) {
	ws, err := e.workStore()
	if err != nil {
		return false, err
	}
	for range enterRounds {
		cancelling, err = e.progress(ctx, ws, c, repeatable, newProgress(fraction, message))
		if !errors.Is(err, store.ErrFenced) { // else the run has noted something down meanwhile, or has ended: look again
			break
		}
	}
	return cancelling, err
}

// reports is what the version of notes grows by when their run writes them. Those in
// between are for reports of progress by others: they give way to what the run writes, and
// can never be taken for it.
const reports = 1 << 16

// progress notes a progress down, once.
func (e *Engine) progress(ctx context.Context, ws store.WorkStore, c store.Claim, repeatable bool, p store.Progress) (cancelling bool, err error) {
	var rec store.Record
	err = e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
		rec, err = ws.Look(ctx, c.ID)
		return err
	})
	if err != nil {
		return false, storeFailed(NotExecuted, err)
	}
	if rec.Claim() != c || rec.State != store.Running || rec.Work == nil {
		return false, &Error{Kind: KindFenced, Execution: MayHaveExecuted, Cause: errors.New("the run has ended, or a newer one has begun")}
	}
	n, err := e.notes(rec)
	if err != nil {
		return rec.Cancelling, err
	}
	next := rec.Notes.Version + 1
	if since := p.At.Sub(n.Progress.At); since >= 0 && since < progressEvery || next%reports == 0 {
		return rec.Cancelling, nil
	}
	n.Progress = p
	packed, err := e.packNotes(c.ID, next, n)
	if err != nil {
		return rec.Cancelling, err
	}
	err = e.retry(ctx, claimTries, func(ctx context.Context) error { return ws.Save(ctx, c, packed, repeatable && n.doubt() == "") })
	switch {
	case errors.Is(err, store.ErrFenced):
		return rec.Cancelling, &Error{Kind: KindFenced, Execution: MayHaveExecuted, Cause: err}
	case err != nil:
		return rec.Cancelling, storeFailed(MayHaveExecuted, err)
	}
	return rec.Cancelling, nil
}

// newProgress is a progress of now, within its bounds.
func newProgress(fraction float64, message string) store.Progress {
	if !(fraction > 0) { // also what is not a number, as of 0 in 0 items
		fraction = 0
	}
	if len(message) > maxProgress {
		message = message[:maxProgress]
	}
	return store.Progress{Fraction: min(fraction, 1), Message: strings.ToValidUTF8(message, ""), At: time.Now().UTC()}
}
