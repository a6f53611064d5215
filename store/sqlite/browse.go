package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stet-go/stet"
)

// browseChunk is how many records one Browse looks at.
const browseChunk = 2000

// Browse implements stet.Browser, in the order of IDs. It looks at up to 2,000
// records: of the scope, if the query names one, and only at unknown ones if it
// asks for no others.
func (s *Store) Browse(ctx context.Context, q stet.Query) (stet.Page, error) {
	if err := q.Check(); err != nil {
		return stet.Page{}, err
	}
	var least, greatest stet.ID
	for i := range greatest {
		greatest[i] = 0xff
	}
	if q.Scope != (stet.ID{}) {
		least, greatest = stet.ScopeRange(q.Scope)
	}
	after := least[:]
	if q.After != "" {
		id, err := stet.ParseID(q.After)
		if err != nil {
			return stet.Page{}, fmt.Errorf("sqlite: %w: Query.After is no Page.Next of this store", stet.ErrInvalid)
		}
		after = id[:]
	}
	query := qBrowse
	if slices.Equal(q.States, []stet.State{stet.Unknown}) {
		query = qBrowseUnknown
	}
	if q.Limit == 0 {
		q.Limit = stet.DefaultBrowse
	}
	var page stet.Page
	err := s.read(ctx, func(l *link) (err error) {
		page, err = browse(l, query, q, after, greatest[:], s.o.Clock().UnixMicro())
		return err
	})
	return page, err
}

// browse looks at the records after one ID and up to another. (No record has the
// ID that ends in zeros with which a range begins: it would be a digest of 192
// zero bits.)
func browse(l *link, query query, q stet.Query, after, upTo []byte, now micros) (page stet.Page, err error) {
	looked := 0
	var last stet.ID
	err = l.rows(query, func(v []driver.Value) error {
		if id, _ := v[13].([]byte); copy(last[:], id) != len(id) || len(id) != len(last) {
			return fmt.Errorf("%w: a record is unreadable", errDamaged)
		}
		r := &row{}
		if err := r.scan(last, v[:13]); err != nil {
			return err
		}
		looked++
		if rec := r.at(now); !r.forgotten(now) && q.Match(rec, time.Duration(now-r.claimed)*time.Microsecond) {
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
	page.Next = last.String()
	return page, err
}

// errEnough ends the reading of rows.
var errEnough = errors.New("enough")

// Expire implements stet.Browser. The result is removed from the record; like
// anything that is deleted, its bytes stay in the file until they are written over.
func (s *Store) Expire(ctx context.Context, c stet.Claim) error {
	return s.write(ctx, func(b *batch) error {
		r, err := load(b, c.ID)
		if err != nil {
			return err
		}
		if r == nil || r.forgotten(b.now) || r.Fence != c.Fence || !r.State.Settled() {
			return stet.ErrFenced
		}
		_, err = b.exec(qExpire, c.Fence, c.ID[:])
		return err
	})
}
