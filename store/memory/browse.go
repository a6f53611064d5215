package memory

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

// Browse implements store.Browser, in the order of IDs. Each call reads all records of the
// store: it is for tests and small services.
func (s *Store) Browse(ctx context.Context, q store.Query) (store.Page, error) {
	if err := ctx.Err(); err != nil {
		return store.Page{}, err
	}
	if err := q.Check(); err != nil {
		return store.Page{}, err
	}
	after, err := cursor(q.After)
	if err != nil {
		return store.Page{}, err
	}
	limit := q.Limit
	if limit == 0 {
		limit = store.DefaultBrowse
	}
	var page []store.Record // the least so far, sorted
	for i := range s.shards {
		page = s.browse(&s.shards[i], q, after, limit, page)
	}
	p := store.Page{Records: page}
	if len(page) == limit {
		p.Next = page[limit-1].ID.String()
	}
	return p, nil
}

// browse adds the matching records of a shard to a page and keeps the first limit of them.
func (s *Store) browse(sh *shard, q store.Query, after []byte, limit int, page []store.Record) []store.Record {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	for i := range sh.n {
		e := sh.at(i)
		if bytes.Compare(e.id[:], after) <= 0 || len(page) == limit && byID(page[limit-1], e.id) < 0 || now >= e.forget {
			continue
		}
		rec := s.record(e, now)
		if !q.Match(rec, now-e.claimedAt) {
			continue
		}
		rec.Result, rec.Gone = store.Result{}, rec.Gone || now >= e.expires
		place, _ := slices.BinarySearchFunc(page, e.id, byID)
		page = slices.Insert(page[:min(len(page), limit-1)], min(place, limit-1), rec)
	}
	return page
}

func byID(rec store.Record, id store.ID) int { return bytes.Compare(rec.ID[:], id[:]) }

// cursor is the ID after which a page begins; nil for the first.
func cursor(after string) ([]byte, error) {
	if after == "" {
		return nil, nil
	}
	id, err := store.ParseID(after)
	if err != nil {
		return nil, fmt.Errorf("memory: %w: Query.After is not the Page.Next of this store", store.ErrInvalid)
	}
	return id[:], nil
}

// Expire implements store.Browser.
func (s *Store) Expire(ctx context.Context, c store.Claim) error {
	rule := func(rec store.Record, _ time.Time) (rules.Change, error) { return rules.OnExpire(rec, c) }
	_, err := s.change(ctx, c, rule, func(e *entry, _ rules.Change, now instant) {
		if !e.gone {
			e.result, e.gone, e.expires = store.Result{}, true, now
		}
	})
	return err
}
