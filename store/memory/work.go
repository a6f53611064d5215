package memory

import (
	"context"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

// work is the job, the messages and the checkpoints of a record.
type work struct {
	what       []byte // the job, or after the settlement the messages
	notes      store.Notes
	cancelling bool
	due        instant // when Due returns it next; never while it runs, unless the run is repeatable
}

// accepted reports whether e is of an accepted operation that has not ended.
func (e *entry) accepted() bool {
	return e.work != nil && e.work.what != nil && !e.state.Settled()
}

// repeatable reports whether e's run is due again when its lease expires.
func (e *entry) repeatable() bool {
	return e.state == store.Running && e.work != nil && e.work.due != never
}

// Accept implements store.WorkStore.
func (s *Store) Accept(ctx context.Context, req store.ClaimRequest, what []byte, later time.Duration) (store.Record, error) {
	return s.acquire(ctx, req, func(e *entry, now instant) { s.accept(e, req, what, now, later) })
}

// accept makes e wait for a worker. The caller holds its shard's mu.
func (s *Store) accept(e *entry, req store.ClaimRequest, what []byte, now instant, later time.Duration) {
	e.to(store.VerbAccept)
	e.label = req.Label
	s.assign(e, req.Owner, now)
	if what == nil {
		what = []byte{} // nil means that it was not accepted
	}
	e.works().what = what
	e.leaseEnd = after(now, later)
	s.wait(e, after(now, max(later, req.Queued)))
}

// postpone makes e, which is accepted, due at that instant. It cannot be taken before. The
// caller holds its shard's mu.
func (s *Store) postpone(e *entry, due instant) {
	e.leaseEnd = due
	s.wait(e, due)
}

// works returns e's work and creates it if there is none. The caller holds its shard's mu.
func (e *entry) works() *work {
	if e.work == nil {
		e.work = &work{due: never}
	}
	return e.work
}

// Take implements store.WorkStore.
func (s *Store) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	return s.view(ctx, req.ID, func(e *entry, now instant) store.Record {
		change := rules.OnTake(s.record(e, now), req, now >= e.leaseEnd)
		if change == rules.MarkUnknown {
			s.markUnknown(e, now)
			change = rules.OnTake(s.record(e, now), req, now >= e.leaseEnd) // a repeatable run waits already
		}
		if change == rules.Grant {
			e.to(store.VerbTake)
			e.attempt++
			e.leaseEnd = after(now, req.Lease)
			s.assign(e, req.Owner, now)
			s.setRepeatable(e, req.Repeatable)
		}
		return s.whole(e, now)
	})
}

// setRepeatable sets whether the run of an accepted operation is due again when its lease
// expires. The caller holds its shard's mu.
func (s *Store) setRepeatable(e *entry, repeatable bool) {
	if repeatable {
		s.wait(e, e.leaseEnd)
	} else {
		e.work.due = never
	}
}

// whole is record with job, checkpoints and messages. The caller holds its shard's mu.
func (s *Store) whole(e *entry, now instant) store.Record {
	r := s.record(e, now)
	if e.work != nil {
		r.Work, r.Notes, r.Cancelling = e.work.what, e.work.notes, e.work.cancelling
	}
	if e.state.Settled() {
		r.Work, r.Outbox = nil, r.Work
	}
	return r
}

// Return implements store.WorkStore.
func (s *Store) Return(ctx context.Context, c store.Claim, later time.Duration) error {
	rule := func(rec store.Record, _ time.Time) (rules.Change, error) { return rules.OnReturn(rec, c) }
	_, err := s.change(ctx, c, rule, func(e *entry, _ rules.Change, now instant) { s.requeue(e, now, later) })
	return err
}

// requeue makes e wait for a worker again. The caller holds its shard's mu.
func (s *Store) requeue(e *entry, now instant, later time.Duration) {
	e.to(store.VerbReturn)
	e.ended, e.settled = true, now
	s.postpone(e, after(now, later))
}

// Cancel implements store.WorkStore.
func (s *Store) Cancel(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) (store.Record, error) {
	rule := func(rec store.Record, now time.Time) (rules.Change, error) { return rules.OnCancel(rec, c, out, now) }
	return s.change(ctx, c, rule, func(e *entry, change rules.Change, now instant) {
		if change == rules.RequestCancel {
			e.work.cancelling = true
			return
		}
		s.settle(e, store.VerbCancel, store.Settlement{Result: out.Result, Gone: out.Gone}, keep, now)
	})
}

// Save implements store.WorkStore.
func (s *Store) Save(ctx context.Context, c store.Claim, notes store.Notes, repeatable bool) error {
	return s.save(ctx, c, notes, store.Running, repeatable)
}

// Amend implements store.WorkStore.
func (s *Store) Amend(ctx context.Context, c store.Claim, notes store.Notes) error {
	return s.save(ctx, c, notes, store.Unknown, false)
}

// save is Save for a record in that state.
func (s *Store) save(ctx context.Context, c store.Claim, notes store.Notes, in store.State, repeatable bool) error {
	rule := func(rec store.Record, _ time.Time) (rules.Change, error) { return rules.OnSave(rec, c, notes, in) }
	_, err := s.change(ctx, c, rule, func(e *entry, _ rules.Change, _ instant) {
		e.works().notes = notes
		if repeatable = repeatable && e.accepted(); repeatable != e.repeatable() {
			s.setRepeatable(e, repeatable)
		}
	})
	return err
}

// Look implements store.WorkStore.
func (s *Store) Look(ctx context.Context, id store.ID) (store.Record, error) {
	return s.view(ctx, id, s.whole)
}

// Relayed implements store.OutboxStore.
func (s *Store) Relayed(ctx context.Context, c store.Claim, keep store.Retention) error {
	rule := func(rec store.Record, _ time.Time) (rules.Change, error) { return rules.OnRelayed(rec, c) }
	_, err := s.change(ctx, c, rule, func(e *entry, _ rules.Change, now instant) { e.work, e.forget = nil, after(now, keep.Tombstone) })
	return err
}
