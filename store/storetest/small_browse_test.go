package storetest

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/stet-go/stet/store"
)

// Browse goes through the records in the order of their IDs, from a cursor on.
func (s *small) Browse(ctx context.Context, q store.Query) (p store.Page, err error) {
	if err := q.Check(); err != nil && !s.is("browses for nonsense") {
		return p, err
	}
	after, err := hex.DecodeString(q.After)
	if (err != nil || len(after) != len(store.ID{}) && q.After != "" && !s.is("browses by place")) && !s.is("browses for nonsense") {
		return p, fmt.Errorf("%w: the cursor %q", store.ErrInvalid, q.After)
	}
	now, err := s.begin(ctx)
	if err != nil {
		return p, err
	}
	defer s.end()
	limit := q.Limit
	if limit <= 0 {
		limit = store.DefaultBrowse
	}
	s.loosen(&q)
	byID := func(a, b store.ID) int { return bytes.Compare(a[:], b[:]) }
	for i, id := range slices.SortedFunc(maps.Keys(s.m), byID) {
		if s.is("browses by place") && i < len(after) || !s.is("browses by place") && bytes.Compare(id[:], after) <= 0 {
			continue
		}
		r := s.m[id]
		rec := r.at(now)
		if err := s.unreadable(r); err != nil && s.is("fails the batch of a damaged record") {
			return p, err
		} else if err != nil {
			rec = store.Record{ID: r.ID, Scope: r.Scope, Owner: r.Owner, Fence: r.Fence, Damage: err.Error()}
		}
		if rec.Damage != "" && (s.is("shows nothing that is damaged") || len(q.States) > 0 || q.OlderThan != 0 || q.NewerThan != 0) ||
			!q.Match(rec, now.Sub(rec.ClaimedAt)) {
			continue
		}
		if len(p.Records) == limit {
			p.Next = p.Records[limit-1].ID.String()
			if s.is("loses a record between pages") {
				p.Next = id.String()
			}
			if s.is("browses by place") {
				p.Next = hex.EncodeToString(make([]byte, i))
			}
			return p, nil
		}
		if s.is("marks unknown on browse") && r.State == store.Running && !now.Before(r.lease) {
			r.to(store.VerbMarkUnknown)
		}
		if !s.is("shows results") {
			rec.Result = store.Result{}
		}
		p.Records = append(p.Records, rec)
	}
	return p, nil
}

// loosen makes the query one for more than was asked for.
func (s *small) loosen(q *store.Query) {
	switch {
	case s.is("shows other scopes"):
		q.Scope = store.ID{}
	case s.is("ignores ages"):
		q.OlderThan, q.NewerThan = 0, 0
	case s.is("ignores all states but the first") && len(q.States) > 1:
		q.States = q.States[:1]
	}
}

func (s *small) Expire(ctx context.Context, c store.Claim) error {
	now, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer s.end()
	r := s.m[s.id(c.ID)]
	if err := s.unreadable(r); r != nil && err != nil {
		return s.bury(r, c, now)
	}
	if r == nil || (r.Fence != c.Fence || !r.State.Settled()) && !s.is("expires without the fence check") {
		return store.ErrFenced
	}
	if !r.Gone {
		r.Result, r.Gone, r.ExpiresAt = store.Result{}, true, now
	}
	if s.is("forgets a record that an operator expires") {
		delete(s.m, s.id(c.ID))
	}
	return nil
}
