package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stet-go/stet/store"
)

const (
	browseRecords = 1000 // that one Browse reads
	browseFolders = 256  // that one Browse lists
)

// Browse implements store.Browser. It reads at most 1,000 records of at most 256 of the store's 4,096
// folders, so pages can be empty. Only a query for unknown records alone has an index.
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
	folders, err := l.folders(ctx)
	if err != nil {
		return page, err
	}
	first := shardOf(after, l.digits)
	listed := 0
	for _, folder := range folders {
		if q.After != "" && folder < first {
			continue
		}
		if listed++; listed > browseFolders || l.read >= browseRecords || len(page.Records) >= l.q.Limit {
			page.Next = l.last.String()
			return page, nil
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
	last   store.ID // after which the next page begins
}

// folders lists the folders of all records, or of unknown ones, by their digits.
func (l *listing) folders(ctx context.Context) (all []string, err error) {
	if l.digits == shardDigits {
		return l.s.children(ctx, l.s.root+"/ops")
	}
	for _, digit := range "0123456789abcdef" {
		all = append(all, string(digit))
	}
	return all, nil
}

// ids lists the IDs in a folder, in order.
func (l *listing) ids(ctx context.Context, folder string) (ids []store.ID, err error) {
	of := l.s.root + "/ops/" + folder
	if l.digits == dueDigits {
		of = l.s.folder(never, folder)
	}
	names, err := l.s.children(ctx, of)
	for _, name := range names {
		if l.digits == dueDigits {
			name = strings.Join(strings.Split(name, ".")[1:2], "")
		}
		if id, err := store.ParseID(name); err == nil {
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
		n := min(len(ids), together, l.q.Limit-len(page.Records))
		if n == 0 || l.read >= browseRecords {
			page.Next = l.last.String()
			return nil
		}
		found := make([]*store.Record, n)
		errs := make([]error, n)
		each(n, func(i int) { found[i], errs[i] = l.one(ctx, ids[i]) })
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
	for i := range l.last {
		l.last[i] = 0xff
	}
	return l.end(folder)
}

// end makes the next page begin after a folder.
func (l *listing) end(folder string) (err error) {
	l.last, err = store.ParseID(strings.Repeat("f", 2*len(l.last)-l.digits) + folder)
	return err
}

// one returns the record, if it matches.
func (l *listing) one(ctx context.Context, id store.ID) (*store.Record, error) {
	v, err := l.s.see(ctx, id, false)
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
