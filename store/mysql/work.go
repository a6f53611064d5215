package mysql

import (
	"context"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

// Take implements store.WorkStore.
func (s *Store) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	return s.do(ctx, req.ID, 0, func(now micros, r *row) (store.Record, error) {
		if r.broken != nil {
			return store.Record{}, r.broken
		}
		change := rules.OnTake(r.whole(now), req, now >= r.lease)
		if change == rules.MarkUnknown {
			r.markUnknown(now)
			change = rules.OnTake(r.whole(now), req, true) // a repeatable run waits already
		}
		var err error
		if change == rules.Grant {
			err = r.take(now, req)
		}
		return r.whole(now), err
	})
}

// Return implements store.WorkStore.
func (s *Store) Return(ctx context.Context, c store.Claim, after time.Duration) error {
	_, err := s.change(ctx, c, 0,
		func(rec store.Record, _ micros) (rules.Change, error) { return rules.OnReturn(rec, c) },
		func(r *row, now micros, _ rules.Change) { r.requeue(now, after) })
	return err
}

// Cancel implements store.WorkStore.
func (s *Store) Cancel(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) (store.Record, error) {
	out = store.Settlement{State: store.Failed, Result: out.Result, Gone: out.Gone}
	if err := s.checkOutcome(out); err != nil {
		return store.Record{}, err
	}
	rec, err := s.change(ctx, c, out.Result.Size(),
		func(rec store.Record, now micros) (rules.Change, error) {
			return rules.OnCancel(rec, c, out, instant(now))
		},
		func(r *row, now micros, change rules.Change) {
			if change == rules.Settle {
				r.settle(now, out, keep)
				return
			}
			r.Cancelling, r.dirty = true, true
		})
	if err != nil {
		return store.Record{}, err
	}
	return rec, nil
}

// Save implements store.WorkStore.
func (s *Store) Save(ctx context.Context, c store.Claim, notes store.Notes, repeatable bool) error {
	return s.save(ctx, c, notes, store.Running, repeatable)
}

// Amend implements store.WorkStore.
func (s *Store) Amend(ctx context.Context, c store.Claim, notes store.Notes) error {
	return s.save(ctx, c, notes, store.Unknown, false)
}

func (s *Store) save(ctx context.Context, c store.Claim, notes store.Notes, in store.State, repeatable bool) error {
	_, err := s.change(ctx, c, len(notes.Data),
		func(rec store.Record, _ micros) (rules.Change, error) { return rules.OnSave(rec, c, notes, in) },
		func(r *row, _ micros, _ rules.Change) { r.save(notes, repeatable) })
	return err
}

// Relayed implements store.OutboxStore.
func (s *Store) Relayed(ctx context.Context, c store.Claim, keep store.Retention) error {
	_, err := s.change(ctx, c, 0,
		func(rec store.Record, _ micros) (rules.Change, error) { return rules.OnRelayed(rec, c) },
		func(r *row, now micros, _ rules.Change) { r.relayed(now, keep) })
	return err
}
