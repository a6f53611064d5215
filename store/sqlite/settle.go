package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	return s.write(ctx, func(w *session) error {
		_, err := settle(w, c, out, keep)
		return err
	})
}

// settle is the body of Settle, in a write transaction. wrote is false if the outcome was stored before.
func settle(s *session, c store.Claim, out store.Settlement, keep store.Retention) (wrote bool, err error) {
	if !out.State.Settled() {
		return false, fmt.Errorf("%w: an outcome is completed or failed, not %v", store.ErrInvalid, out.State)
	}
	rule := func(rec store.Record) (rules.Change, error) { return rules.OnSettle(rec, c, out, instant(s.now)) }
	err = change(s, c, rule, func(r *row, _ rules.Change) error {
		wrote = true
		return r.settle(s, out, keep)
	})
	return wrote, err
}

// change calls do with the row of c if the rule allows a change.
func change(s *session, c store.Claim, rule func(store.Record) (rules.Change, error), do func(*row, rules.Change) error) error {
	r, err := load(s, c.ID)
	if err != nil {
		return err
	}
	change, err := rule(r.whole(s.now))
	if err != nil || change == rules.None {
		return err
	}
	return do(r, change)
}

// settle writes the outcome.
func (r *row) settle(s *session, out store.Settlement, keep store.Retention) error {
	expires, forget := s.now+span(keep.Result), any(s.now+span(keep.Tombstone))
	var outbox, relay any
	if out.Outbox != nil { // not forgotten before it is relayed
		forget, outbox, relay = nil, out.Outbox, s.now
	}
	var status, media, head, body any
	due := any(expires)
	if out.Gone {
		due = forget
	} else {
		body = notNil(out.Result.Body)
		if out.Result.Status != 0 {
			status = int64(out.Result.Status)
		}
		if out.Result.Type != "" {
			media = out.Result.Type
		}
		if len(out.Result.Head) > 0 {
			head = out.Result.Head
		}
	}
	n, err := s.exec(qSettle, int64(out.State), out.Gone, status, media, head, body, s.now, expires, forget, due, outbox, relay, r.Fence)
	if err == nil && n == 0 { // the caller's function has ended the transaction
		err = store.ErrFenced
	}
	return err
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	return s.write(ctx, func(w *session) error { return release(w, c, keep) })
}

// release is the body of Release, in a write transaction.
func release(s *session, c store.Claim, keep store.Retention) error {
	rule := func(rec store.Record) (rules.Change, error) { return rules.OnRelease(rec, c) }
	return change(s, c, rule, func(r *row, change rules.Change) error {
		if change == rules.Return {
			return r.requeue(s, 0)
		}
		forget := s.now + span(keep.Result)
		_, err := s.exec(qRelease, s.now, forget, forget, r.Fence)
		return err
	})
}

// requeue makes the record wait for a worker again.
func (r *row) requeue(s *session, after time.Duration) error {
	due := s.now + span(after)
	_, err := s.exec(qReturn, s.now, due, due, r.Fence)
	return err
}
