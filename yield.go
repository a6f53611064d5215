package stet

import (
	"context"
	"time"

	"github.com/stet-go/stet/store"
)

// interruption is what the version of notes grows by for each attempt that does not
// count: its upper 16 bits say how many there were. They can be read, and written, also
// where the notes themselves cannot.
const interruption = 1 << 48

const maxInterruptions = 1<<16 - 1 // those beyond count

func interruptions(rec store.Record) int { return int(rec.Notes.Version / interruption) }

// spare notes down that the attempt of a record does not count, and reports whether it
// has. rec has its notes as they are now. If it cannot be noted down, the attempt counts.
func (e *Engine) spare(ctx context.Context, ws store.WorkStore, rec store.Record, repeatable bool) bool {
	if interruptions(rec) >= min(rec.Attempt, maxInterruptions) { // the last is noted down already
		return false
	}
	notes := rec.Notes // no others: who cannot read the work must not encrypt
	notes.Version += interruption
	return nil == e.retry(ctx, claimTries, func(ctx context.Context) error {
		if rec.State == store.Unknown { // its lease has run out meanwhile
			return ws.Strike(ctx, rec.Claim(), notes)
		}
		return ws.Save(ctx, rec.Claim(), notes, repeatable)
	})
}

// unseen gives back a record of Take that reached no worker.
func (e *Engine) unseen(ctx context.Context, ws store.WorkStore, rec store.Record, repeatable bool, after time.Duration) error {
	e.spare(ctx, ws, rec, repeatable)
	return ws.Return(e.storeContext(ctx), rec.Claim(), after)
}

// uncount has the attempt of a run that is to be released not count, as far as it can be
// noted down.
func (r *Run) uncount(ctx context.Context, again Again) {
	switch {
	case r.taken:
		r.spare(ctx, r.e.works)
	case r.e.works == nil, r.forgets(again): // no record, no attempt
	default:
		r.book.mu.Lock()
		err := r.load(ctx, r.e.works) // what earlier runs have noted down
		r.book.mu.Unlock()
		if err == nil {
			r.spare(ctx, r.e.works)
		}
	}
}

// spare is Engine.spare for a run that ends.
func (r *Run) spare(ctx context.Context, ws store.WorkStore) {
	b := &r.book
	b.mu.Lock()
	defer b.mu.Unlock()
	rec := r.rec
	if b.torn != nil {
		return
	}
	if b.version > 0 {
		packed, err := r.e.packNotes(rec.ID, b.version, b.notes)
		if err != nil {
			return
		}
		rec.Notes = packed
	}
	r.e.spare(ctx, ws, rec, r.repeatable)
	b.version = rec.Notes.Version + interruption
}
