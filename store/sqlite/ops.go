package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

// claiming is a claim, or with work an acceptance.
type claiming struct {
	*store.ClaimRequest
	work  []byte // nil: to be run now
	after time.Duration
}

// Claim implements store.Store.
func (s *Store) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	return s.claim(ctx, claiming{ClaimRequest: &req})
}

func (s *Store) claim(ctx context.Context, c claiming) (store.Record, error) {
	var rec store.Record
	err := s.write(ctx, func(w *session) (err error) {
		rec, _, err = claim(w, c)
		return err
	})
	if err != nil && !errors.Is(err, store.ErrMismatch) {
		return store.Record{}, err // the batch may still be writing rec
	}
	return rec, err
}

// claim is the body of store.Store.Claim and store.WorkStore.Accept, in a write transaction.
func claim(s *session, c claiming) (rec store.Record, granted bool, err error) {
	r, err := load(s, c.ID)
	if err != nil {
		return store.Record{}, false, err
	}
	switch change, err := rules.OnClaim(r.whole(s.now), *c.ClaimRequest); {
	case err != nil:
		return r.at(s.now), false, err
	case change == rules.Grant:
		err := r.grant(s, c)
		return r.at(s.now), err == nil, err
	case change == rules.MarkUnknown:
		err := r.markUnknown(s)
		return r.at(s.now), false, err
	}
	return r.at(s.now), false, nil
}

// grant grants the claim. The key of the row is its fence: a new row replaces the old one.
func (r *row) grant(s *session, c claiming) error {
	if r.forgotten(s.now) {
		r.Record = store.Record{ID: r.ID, Fence: r.Fence}
	}
	if r.Fence != 0 {
		if _, err := s.exec(qDelete, r.Fence); err != nil {
			return err
		}
	}
	verb := store.VerbClaim
	if c.work != nil {
		verb = store.VerbAccept
	}
	if err := r.own(s, verb, c.Owner); err != nil {
		return err
	}
	r.Scope, r.Fingerprint, r.Label = c.Scope, c.Fingerprint, c.Label
	var due, runDue, work, notes any
	if c.work != nil {
		r.lease = s.now + span(c.after) // before that it cannot be taken
		runDue, work = s.now+span(max(c.after, c.Queued)), c.work
	} else {
		r.Attempt++
		r.lease = s.now + span(c.Lease)
		due = r.lease
	}
	if r.Notes.Version != 0 {
		notes = r.Notes.Marshal()
	}
	_, err := s.exec(qInsert, r.Fence, r.ID[:], r.Scope[:], r.Fingerprint[:], r.Owner[:], int64(r.State), int64(r.Attempt), r.claimed,
		r.Label.Class, r.Label.Name, r.Label.Ref, r.lease, due, runDue, work, notes)
	return err
}

// markUnknown makes an expired run's record unknown, or accepted if the run may be repeated.
func (r *row) markUnknown(s *session) error {
	r.State, r.settled, r.lease = store.Unknown, s.now, 0
	if r.repeatable {
		r.State = store.Accepted
	}
	_, err := s.exec(qMarkUnknown, s.now, s.now, r.Fence)
	return err
}

// Extend implements store.Store.
func (s *Store) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
	if len(claims) == 0 {
		return nil, ctx.Err()
	}
	var lost []store.Claim // no named result: after ctx has ended, the batch may still write it
	var bad damage
	err := s.write(ctx, func(w *session) error {
		lost, bad = nil, damage{}
		end := w.now + span(lease)
		for _, c := range claims {
			n, err := w.exec(qExtend, end, end, end, c.Fence, c.ID[:])
			if err == nil && n == 0 {
				_, err = load(w, c.ID)
				switch {
				case errors.Is(err, store.ErrDamaged):
					bad.add(c, err)
					err = nil
				case err == nil:
					lost = append(lost, c)
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return lost, bad.err()
}

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

// Read implements store.Store. It never waits for a writer.
func (s *Store) Read(ctx context.Context, id store.ID) (store.Record, error) {
	rec, err := s.Look(ctx, id)
	rec.Work, rec.Outbox, rec.Notes = nil, nil, store.Notes{}
	return rec, err
}

// Look implements store.WorkStore. It never waits for a writer.
func (s *Store) Look(ctx context.Context, id store.ID) (rec store.Record, err error) {
	err = s.read(ctx, func(r *session) error {
		found, err := load(r, id)
		if err == nil {
			rec = found.whole(r.now)
		}
		return err
	})
	return rec, err
}

// read calls do with a session on the connections for reading.
func (s *Store) read(ctx context.Context, do func(*session) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.reading.RLock()
	defer s.reading.RUnlock()
	err := do(&session{ctx: ctx, stmts: s.readStmts, now: s.o.Clock().UnixMicro()})
	switch {
	case err == nil || errors.Is(err, store.ErrDamaged):
		return err
	case s.w.isClosed():
		return errClosed
	case ctx.Err() != nil:
		return fmt.Errorf("sqlite: read: %w", context.Cause(ctx))
	}
	return s.explain("read", err, s.path)
}
