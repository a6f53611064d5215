package sqlite

import (
	"context"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/stet-go/stet/store"
)

// browseChunk is how many records one Browse looks at.
const browseChunk = 2000

// Browse implements store.Browser, in the order of IDs. It looks at up to 2,000
// records: of the scope, if the query names one, and only at unknown ones if it
// asks for no others.
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
		if err != nil || len(id) > maxCursor {
			return store.Page{}, fmt.Errorf("sqlite: %w: Query.After is no Page.Next of this store", store.ErrInvalid)
		}
		after = id
	}
	if q.Limit == 0 {
		q.Limit = store.DefaultBrowse
	}
	var page store.Page
	err := s.read(ctx, func(l *link) (err error) {
		page, err = browse(l, q, after, greatest[:], s.o.Clock().UnixMicro())
		return err
	})
	return page, err
}

// browse looks at the records after one ID and up to another. (No record has the
// ID that ends in zeros with which a range begins: it would be a digest of 192
// zero bits.)
func browse(l *link, q store.Query, after, upTo []byte, now micros) (page store.Page, err error) {
	looked, query := 0, qBrowse
	if slices.Equal(q.States, []store.State{store.Unknown}) {
		query = qBrowseUnknown
	}
	var last []byte
	err = l.rows(query, func(v []driver.Value) error {
		last, _ = v[keptFrom].([]byte)
		looked++
		r := &row{}
		id, err := rowID(last)
		err = errors.Join(err, r.scan(id, v[:keptFrom]))
		switch rec := r.at(now); {
		case err != nil && showsDamage(q, rec):
			page.Records = append(page.Records, store.Record{ID: id, Scope: r.Scope, Owner: r.Owner, Fence: r.Fence, Damage: err.Error()})
		case err == nil && !r.forgotten(now) && q.Match(rec, length(now-r.claimed)):
			page.Records = append(page.Records, rec)
		}
		if len(page.Records) == q.Limit {
			return errEnough
		}
		return nil
	}, after, upTo, int64(browseChunk))
	if errors.Is(err, errEnough) {
		err = nil
	} else if looked < browseChunk {
		return page, err
	}
	page.Next = cursor(last)
	return page, err
}

// showsDamage reports whether the query selects a damaged record. Without a readable scope,
// the start of its ID is compared.
func showsDamage(q store.Query, rec store.Record) bool {
	return len(q.States) == 0 && q.OlderThan == 0 && q.NewerThan == 0 && (q.Scope == store.ID{} || rec.Scope == store.ID{} || q.Scope == rec.Scope)
}

// maxCursor is how many bytes of an ID a cursor has, should it be damaged.
const maxCursor = 2 * len(store.ID{})

// cursor is the ID after which the next page begins. A longer value is rounded up.
func cursor(id []byte) string {
	if len(id) <= maxCursor {
		return hex.EncodeToString(id)
	}
	id = slices.Clone(id[:maxCursor])
	for i := len(id) - 1; i >= 0; i-- {
		if id[i]++; id[i] != 0 {
			break
		}
	}
	return hex.EncodeToString(id)
}

// errEnough ends the reading of rows.
var errEnough = errors.New("enough")

// Expire implements store.Browser. The result is removed from the record; like
// anything that is deleted, its bytes stay in the file until they are written over.
func (s *Store) Expire(ctx context.Context, c store.Claim) error {
	return s.write(ctx, func(b *batch) error {
		r, err := load(b, c.ID)
		if errors.Is(err, store.ErrDamaged) || err == nil && r == nil {
			return bury(b, c)
		}
		if err != nil {
			return err
		}
		if r.forgotten(b.now) || r.Fence != c.Fence || !r.State.Settled() {
			return store.ErrFenced
		}
		_, err = b.exec(qExpire, b.now, c.Fence, c.ID[:])
		return err
	})
}
