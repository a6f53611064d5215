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
	return s.write(ctx, func(w *session) error {
		r, err := load(w, c.ID)
		if err != nil {
			return err
		}
		change, err := rules.OnReturn(r.whole(w.now), c)
		if err != nil || change == rules.None {
			return err
		}
		return r.requeue(w, after)
	})
}

// Cancel implements store.WorkStore.
func (s *Store) Cancel(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) (store.Record, error) {
	return s.writeRecord(ctx, func(w *session) (store.Record, error) {
		r, err := load(w, c.ID)
		if err != nil {
			return store.Record{}, err
		}
		switch change, err := rules.OnCancel(r.whole(w.now), c, out, instant(w.now)); {
		case err != nil:
			return store.Record{}, err
		case change == rules.Settle:
			err = r.settle(w, store.Settlement{State: store.Failed, Result: out.Result, Gone: out.Gone}, keep)
			if err != nil {
				return store.Record{}, err
			}
		case change == rules.RequestCancel:
			if _, err := w.exec(qCancelRun, r.Fence); err != nil {
				return store.Record{}, err
			}
		}
		r, err = load(w, c.ID)
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
	r, err := load(s, c.ID)
	if err != nil {
		return err
	}
	change, err := rules.OnSave(r.whole(s.now), c, notes, in)
	if err != nil || change == rules.None {
		return err
	}
	_, err = s.exec(qSave, notNil(notes.Marshal()), repeatable, r.Fence)
	return err
}

// Look implements store.WorkStore. It never waits for a writer.
func (s *Store) Look(ctx context.Context, id store.ID) (rec store.Record, err error) {
	err = s.read(ctx, func(r *session) error {
		found, err := load(r, id)
		rec = found.whole(r.now)
		return err
	})
	if err != nil {
		return store.Record{}, err
	}
	return rec, nil
}

// Relayed implements store.OutboxStore.
func (s *Store) Relayed(ctx context.Context, c store.Claim, keep store.Retention) error {
	return s.write(ctx, func(w *session) error {
		r, err := load(w, c.ID)
		if err != nil {
			return err
		}
		change, err := rules.OnRelayed(r.whole(w.now), c)
		if err != nil || change == rules.None {
			return err
		}
		forget := w.now + span(keep.Tombstone)
		_, err = w.exec(qRelayed, forget, forget, forget, r.Fence)
		return err
	})
}
