package sqlite

import (
	"context"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

// Accept implements store.WorkStore.
func (s *Store) Accept(ctx context.Context, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	return s.claim(ctx, claiming{&req, notNil(work), after})
}

// writeRecord has do executed in a batch, and returns the record that it returns.
func (s *Store) writeRecord(ctx context.Context, do func(*session) (store.Record, error)) (store.Record, error) {
	var rec store.Record
	err := s.write(ctx, func(w *session) (err error) {
		rec, err = do(w)
		return err
	})
	if err != nil {
		return store.Record{}, err // the batch may still be writing rec
	}
	return rec, nil
}

// Take implements store.WorkStore.
func (s *Store) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	return s.writeRecord(ctx, func(w *session) (store.Record, error) {
		r, err := load(w, req.ID)
		if err != nil {
			return store.Record{}, err
		}
		change := rules.OnTake(r.whole(w.now), req, w.now >= r.lease)
		if change == rules.MarkUnknown {
			if err := r.markUnknown(w); err != nil {
				return store.Record{}, err
			}
			change = rules.OnTake(r.whole(w.now), req, true) // a repeatable run waits already
		}
		if change == rules.Grant {
			err = r.take(w, req)
		}
		return r.whole(w.now), err
	})
}

// take gives an accepted record to a worker.
func (r *row) take(s *session, req store.TakeRequest) error {
	was := r.Fence
	if err := r.own(s, store.VerbTake, req.Owner); err != nil {
		return err
	}
	r.Attempt++
	r.lease = s.now + span(req.Lease)
	var due any
	if req.Repeatable {
		due = r.lease
	}
	_, err := s.exec(qTake, req.Owner[:], int64(r.State), r.Fence, int64(r.Attempt), r.claimed, r.lease, r.lease, due, was)
	return err
}

// Return implements store.WorkStore.
func (s *Store) Return(ctx context.Context, c store.Claim, after time.Duration) error {
	rule := func(rec store.Record) (rules.Change, error) { return rules.OnReturn(rec, c) }
	return s.write(ctx, func(w *session) error {
		return change(w, c, rule, func(r *row, _ rules.Change) error { return r.requeue(w, after) })
	})
}

// Cancel implements store.WorkStore.
func (s *Store) Cancel(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) (store.Record, error) {
	return s.writeRecord(ctx, func(w *session) (store.Record, error) {
		rule := func(rec store.Record) (rules.Change, error) { return rules.OnCancel(rec, c, out, instant(w.now)) }
		err := change(w, c, rule, func(r *row, change rules.Change) error {
			if change == rules.Settle {
				return r.settle(w, store.Settlement{State: store.Failed, Result: out.Result, Gone: out.Gone}, keep)
			}
			_, err := w.exec(qCancelRun, r.Fence)
			return err
		})
		if err != nil {
			return store.Record{}, err
		}
		r, err := load(w, c.ID)
		return r.whole(w.now), err
	})
}

// Save implements store.WorkStore.
func (s *Store) Save(ctx context.Context, c store.Claim, notes store.Notes, repeatable bool) error {
	return s.write(ctx, func(w *session) error { return save(w, c, notes, store.Running, repeatable) })
}

// Amend implements store.WorkStore.
func (s *Store) Amend(ctx context.Context, c store.Claim, notes store.Notes) error {
	return s.write(ctx, func(w *session) error { return save(w, c, notes, store.Unknown, false) })
}

// save is the body of Save for a record in that state, in a write transaction.
func save(s *session, c store.Claim, notes store.Notes, in store.State, repeatable bool) error {
	rule := func(rec store.Record) (rules.Change, error) { return rules.OnSave(rec, c, notes, in) }
	return change(s, c, rule, func(r *row, _ rules.Change) error {
		_, err := s.exec(qSave, notNil(notes.Marshal()), repeatable, r.Fence)
		return err
	})
}

// Relayed implements store.OutboxStore.
func (s *Store) Relayed(ctx context.Context, c store.Claim, keep store.Retention) error {
	rule := func(rec store.Record) (rules.Change, error) { return rules.OnRelayed(rec, c) }
	return s.write(ctx, func(w *session) error {
		return change(w, c, rule, func(r *row, _ rules.Change) error {
			forget := w.now + span(keep.Tombstone)
			_, err := w.exec(qRelayed, forget, forget, forget, r.Fence)
			return err
		})
	})
}
