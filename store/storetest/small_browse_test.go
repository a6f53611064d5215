package storetest

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/stet-go/stet"
)

// Browse goes through the records in the order of their IDs, from a cursor on.
func (s *small) Browse(ctx context.Context, q stet.Query) (p stet.Page, err error) {
	if err := q.Check(); err != nil && !s.is("browses for nonsense") {
		return p, err
	}
	after, err := hex.DecodeString(q.After)
	if (err != nil || len(after) != len(stet.ID{}) && q.After != "" && !s.is("browses by place")) && !s.is("browses for nonsense") {
		return p, fmt.Errorf("%w: the cursor %q", stet.ErrInvalid, q.After)
	}
	now, err := s.begin(ctx)
	if err != nil {
		return p, err
	}
	defer s.end()
	limit := q.Limit
	if limit <= 0 {
		limit = stet.DefaultBrowse
	}
	s.loosen(&q)
	byID := func(a, b stet.ID) int { return bytes.Compare(a[:], b[:]) }
	for i, id := range slices.SortedFunc(maps.Keys(s.m), byID) {
		if s.is("browses by place") && i < len(after) || !s.is("browses by place") && bytes.Compare(id[:], after) <= 0 {
			continue
		}
		r := s.m[id]
		rec := r.at(now)
		if !q.Match(rec, now.Sub(rec.ClaimedAt)) {
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
		if s.is("parks what it shows") && r.State == stet.Running && !now.Before(r.lease) {
			r.to(stet.VerbPark)
		}
		if !s.is("shows results") {
			rec.Result = nil
		}
		p.Records = append(p.Records, rec)
	}
	return p, nil
}

// loosen makes the query one for more than was asked for.
func (s *small) loosen(q *stet.Query) {
	switch {
	case s.is("shows other scopes"):
		q.Scope = stet.ID{}
	case s.is("ignores ages"):
		q.OlderThan, q.NewerThan = 0, 0
	case s.is("ignores all states but the first") && len(q.States) > 1:
		q.States = q.States[:1]
	}
}

func (s *small) Expire(ctx context.Context, c stet.Claim) error {
	if _, err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end()
	r := s.m[s.id(c.ID)]
	if r == nil || (r.Fence != c.Fence || !r.State.Settled()) && !s.is("expires without the fence check") {
		return stet.ErrFenced
	}
	r.Result, r.Gone = nil, true
	if s.is("forgets what is expired by hand") {
		delete(s.m, s.id(c.ID))
	}
	return nil
}
