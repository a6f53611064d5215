package mysql

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

// browseChunk is how many records one Browse reads.
const browseChunk = 2000

// Browse implements store.Browser, in the order of IDs. It reads at most 2,000 records: those of the
// scope, if the query has one, and only unknown ones if it asks for no others.
func (s *Store) Browse(ctx context.Context, q store.Query) (store.Page, error) {
	if err := q.Check(); err != nil {
		return store.Page{}, err
	}
	var least, greatest store.ID
	for i := range greatest {
		greatest[i] = 0xff
	}
	if q.Scope != (store.ID{}) {
		least, greatest = store.ScopeRange(q.Scope)
	}
	after := least[:]
	if q.After != "" {
		id, err := hex.DecodeString(q.After)
		if err != nil || len(id) != len(least) {
			return store.Page{}, fmt.Errorf("mysql: %w: Query.After is no Page.Next of this store", store.ErrInvalid)
		}
		after = id
	}
	if q.Limit == 0 {
		q.Limit = store.DefaultBrowse
	}
	where := ""
	if slices.Equal(q.States, []store.State{store.Unknown}) {
		where = "queue = '" + unknowns + "' AND queue_due IS NULL AND "
	}
	text := "SELECT " + listed + " FROM " + s.t.records + " WHERE " + where + "id > ? AND id <= ? ORDER BY id LIMIT ?" + s.t.header
	a, err := s.answer(ctx, s.own, text, after, greatest[:], browseChunk)
	if err != nil {
		return store.Page{}, s.gaveUp("browse", err)
	}
	if i := slices.IndexFunc(a.rows, func(r *row) bool { return !r.durable(a.now) }); i >= 0 {
		err = s.confirmRead(ctx, a.rows[i], a.now)
	}
	return page(a, q), err
}

// page selects from the rows that were read.
func page(a *answer, q store.Query) (p store.Page) {
	for _, r := range a.rows {
		switch rec := r.at(a.now); {
		case r.broken != nil && showsDamage(q, r.Record):
			p.Records = append(p.Records, store.Record{ID: r.ID, Scope: r.Scope, Owner: r.Owner, Fence: r.Fence, Damage: r.broken.Error()})
		case r.broken == nil && rec.State != store.None && q.Match(rec, length(a.now-r.claimed)):
			p.Records = append(p.Records, rec)
		}
		if len(p.Records) == q.Limit {
			p.Next = r.ID.String()
			return p
		}
	}
	if len(a.rows) == browseChunk {
		p.Next = a.rows[browseChunk-1].ID.String()
	}
	return p
}

// showsDamage reports whether the query selects a damaged record.
func showsDamage(q store.Query, rec store.Record) bool {
	return len(q.States) == 0 && q.OlderThan == 0 && q.NewerThan == 0 && (q.Scope == store.ID{} || rec.Scope == store.ID{} || q.Scope == rec.Scope)
}

// Expire implements store.Browser.
func (s *Store) Expire(ctx context.Context, c store.Claim) error {
	_, err := s.do(ctx, c.ID, 0, func(now micros, r *row) (store.Record, error) {
		if r.broken != nil {
			return store.Record{}, r.bury(now, c)
		}
		_, err := rules.OnExpire(r.whole(now), c)
		if err == nil {
			r.expire(now)
		}
		return store.Record{}, err
	})
	return err
}
