package sqlite

import (
	"context"
	"encoding/hex"
	"errors"
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
		if err != nil {
			return store.Page{}, fmt.Errorf("sqlite: %w: Query.After is no Page.Next of this store", store.ErrInvalid)
		}
		after = id
	}
	if q.Limit == 0 {
		q.Limit = store.DefaultBrowse
	}
	var page store.Page
	err := s.read(ctx, func(r *session) (err error) {
		page, err = browse(r, q, after, greatest[:])
		return err
	})
	return page, err
}

// browse reads the records after one ID and up to another. (No record has the ID that ends in zeros
// with which a range begins: it would be a digest of 192 zero bits.)
func browse(s *session, q store.Query, after, upTo []byte) (page store.Page, err error) {
	n, query := 0, qBrowse
	if slices.Equal(q.States, []store.State{store.Unknown}) {
		query = qBrowseUnknown
	}
	var last []byte
	err = s.rows(query, func(v []any) error {
		last, _ = v[columnsOfRow-1].([]byte)
		n++
		r := &row{}
		err := r.scan(v)
		switch rec := r.at(s.now); {
		case err != nil && showsDamage(q, r.Record):
			page.Records = append(page.Records, store.Record{ID: r.ID, Scope: r.Scope, Owner: r.Owner, Fence: r.Fence, Damage: err.Error()})
		case err == nil && rec.State != store.None && q.Match(rec, length(s.now-r.claimed)):
			page.Records = append(page.Records, rec)
		}
		if len(page.Records) == q.Limit {
			return errEnough
		}
		return nil
	}, after, upTo, int64(browseChunk))
	if errors.Is(err, errEnough) {
		err = nil
	} else if n < browseChunk {
		return page, err
	}
	page.Next = hex.EncodeToString(last)
	return page, err
}

// showsDamage reports whether the query selects a damaged record. Without a readable scope,
// the start of its ID is compared.
func showsDamage(q store.Query, rec store.Record) bool {
	return len(q.States) == 0 && q.OlderThan == 0 && q.NewerThan == 0 && (q.Scope == store.ID{} || rec.Scope == store.ID{} || q.Scope == rec.Scope)
}

// Expire implements store.Browser. Its bytes stay in the file until SQLite writes over them.
func (s *Store) Expire(ctx context.Context, c store.Claim) error {
	return s.write(ctx, func(w *session) error {
		r, err := load(w, c.ID)
		switch {
		case errors.Is(err, store.ErrDamaged):
			return r.bury(w, c)
		case err != nil:
			return err
		case c.ID == store.ID{}: // of a damaged record: no call can name it
			if n, err := w.exec(qDeleteNameless, c.Fence); n == 1 || err != nil {
				return err
			}
			return store.ErrFenced
		}
		if _, err := rules.OnExpire(r.whole(w.now), c); err != nil {
			return err
		}
		_, err = w.exec(qExpire, w.now, r.Fence)
		return err
	})
}
