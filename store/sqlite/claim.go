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

// own gives r to an owner, by a verb that the state machine must allow.
func (r *row) own(s *session, verb store.Verb, owner store.Owner) error {
	fence, err := s.nextFence()
	if err != nil {
		return err
	}
	to, ok := r.State.Next(verb)
	if !ok || fence <= r.Fence {
		return unreadable(r.ID, fmt.Sprintf("it is %v with fence %d, and the next fence is %d", r.State, r.Fence, fence))
	}
	r.State, r.Fence, r.Owner, r.claimed = to, fence, owner, s.now
	r.Result, r.Gone = store.Result{}, false
	r.lease, r.settled, r.expires, r.forget = 0, 0, 0, 0
	return nil
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
