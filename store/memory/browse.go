package memory

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/stet-go/stet"
)

// Browse implements stet.Browser, in the order of IDs. It looks at all records
// that the store holds, each time: it is for tests and small services.
func (s *Store) Browse(ctx context.Context, q stet.Query) (stet.Page, error) {
	if err := ctx.Err(); err != nil {
		return stet.Page{}, err
	}
	if err := q.Check(); err != nil {
		return stet.Page{}, err
	}
	after, err := cursor(q.After)
	if err != nil {
		return stet.Page{}, err
	}
	limit := q.Limit
	if limit == 0 {
		limit = stet.DefaultBrowse
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var page []stet.Record // the least so far, sorted
	for i := range s.n {
		e := s.at(i)
		if bytes.Compare(e.id[:], after) <= 0 || len(page) == limit && byID(page[limit-1], e.id) < 0 || now >= e.forget {
			continue
		}
		rec := s.record(e, now)
		if !q.Match(rec, now-e.claimed) {
			continue
		}
		rec.Result, rec.Gone = nil, rec.Gone || now >= e.expires
		place, _ := slices.BinarySearchFunc(page, e.id, byID)
		page = slices.Insert(page[:min(len(page), limit-1)], min(place, limit-1), rec)
	}
	p := stet.Page{Records: page}
	if len(page) == limit {
		p.Next = page[limit-1].ID.String()
	}
	return p, nil
}

func byID(rec stet.Record, id stet.ID) int { return bytes.Compare(rec.ID[:], id[:]) }

// cursor is the ID after which a page begins; nil for the first.
func cursor(after string) ([]byte, error) {
	if after == "" {
		return nil, nil
	}
	id, err := stet.ParseID(after)
	if err != nil {
		return nil, fmt.Errorf("memory: %w: Query.After is no Page.Next of this store", stet.ErrInvalid)
	}
	return id[:], nil
}

// Expire implements stet.Browser.
func (s *Store) Expire(ctx context.Context, c stet.Claim) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.current(c.ID, s.now())
	if e == nil || e.fence != c.Fence || !e.state.Settled() {
		return stet.ErrFenced
	}
	e.result, e.gone = nil, true
	return nil
}
