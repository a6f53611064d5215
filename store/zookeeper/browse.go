package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/calls"
)

// browseRecords is how many records one Browse reads.
const browseRecords = 1000

// Browse implements store.Browser. It lists the IDs of all records and reads 1,000 records at most. Only a
// query for unknown records alone has an index.
func (s *Store) Browse(ctx context.Context, q store.Query) (page store.Page, err error) {
	if err := q.Check(); err != nil {
		return page, err
	}
	l := listing{s: s, q: q, digits: shardDigits}
	if slices.Equal(q.States, []store.State{store.Unknown}) {
		l.digits = dueDigits
	}
	var after store.ID
	if q.After != "" {
		if after, err = store.ParseID(q.After); err != nil {
			return page, fmt.Errorf("zookeeper: %w: Query.After is no Page.Next of this store", store.ErrInvalid)
		}
	}
	if q.Limit == 0 {
		l.q.Limit = store.DefaultBrowse
	}
	if err := s.touch(ctx); err != nil {
		return page, err
	}
	folders := strings.Split("0123456789abcdef", "")
	if l.digits == shardDigits {
		if folders, err = s.children(ctx, s.root+"/ops"); err != nil {
			return page, err
		}
	}
	first := shardOf(after, l.digits)
	for _, folder := range folders {
		if q.After != "" && folder < first {
			continue
		}
		from := ""
		if q.After != "" && folder == first {
			from = after.String()
		}
		if err := l.folder(ctx, folder, from, &page); err != nil || page.Next != "" {
			return page, err
		}
	}
	return page, nil
}

// listing is one call of Browse. Records are ordered by the last digits of their IDs, then by ID.
type listing struct {
	s      *Store
	q      store.Query
	digits int      // of the ID that choose a folder: of the records, or of the schedule
	read   int      // records
	last   store.ID // that was read
}

// ids lists the IDs in a folder, in order.
func (l *listing) ids(ctx context.Context, folder string) (ids []store.ID, err error) {
	of := l.s.root + "/ops/" + folder
	if l.digits == dueDigits {
		of = l.s.folder(never, folder)
	}
	names, err := l.s.children(ctx, of)
	for _, name := range names {
		id, invalid := store.ParseID(name)
		if l.digits == dueDigits {
			_, id, invalid = parsePlace(name)
		}
		if invalid == nil {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// folder adds the matching records of a folder to a page, those after an ID.
func (l *listing) folder(ctx context.Context, folder, after string, page *store.Page) error {
	ids, err := l.ids(ctx, folder)
	if err != nil {
		return err
	}
	ids = slices.DeleteFunc(ids, func(id store.ID) bool {
		least, greatest := store.ScopeRange(l.q.Scope)
		name := id.String()
		return name <= after || l.q.Scope != (store.ID{}) && (name < least.String() || name > greatest.String())
	})
	for len(ids) > 0 {
		n := min(len(ids), calls.Together, l.q.Limit-len(page.Records))
		if n == 0 || l.read >= browseRecords {
			page.Next = l.last.String()
			return nil
		}
		found := make([]*store.Record, n)
		errs := make([]error, n)
		calls.Each(n, func(i int) { found[i], errs[i] = l.one(ctx, ids[i]) })
		for i := range n {
			if errs[i] != nil {
				return errs[i]
			}
			if found[i] != nil {
				page.Records = append(page.Records, *found[i])
			}
		}
		l.read, l.last, ids = l.read+n, ids[n-1], ids[n:]
	}
	return nil
}

// one returns the record, if it matches.
func (l *listing) one(ctx context.Context, id store.ID) (*store.Record, error) {
	v, err := l.s.see(ctx, id, false, 0)
	if errors.Is(err, store.ErrDamaged) {
		if len(l.q.States) > 0 || l.q.OlderThan > 0 || l.q.NewerThan > 0 {
			return nil, nil
		}
		return &store.Record{ID: id, Fence: v.stat.Czxid, Damage: err.Error()}, nil
	}
	if err != nil {
		return nil, err
	}
	rec := v.record()
	if rec.State == store.None || !l.q.Match(rec, length(v.now-v.stat.Ctime)) {
		return nil, nil
	}
	rec.Result = store.Result{}
	return &rec, nil
}
