package sqlite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/stet-go/stet/store"
)

const (
	dueChunk = 1000     // records returned by one Due
	dueBytes = 16 << 20 // of their work together, unless it is one
)

// errEnough ends the reading of rows.
var errEnough = errors.New("enough")

// Due implements store.WorkStore. One call returns at most 1,000 records and 16 MiB of work. If
// nothing is due, it does not wait for writers. Without names it reads the queues of 256 names; the
// next call continues with the names after these.
func (s *Store) Due(ctx context.Context, limit int, again time.Duration, names ...string) ([]store.Record, error) {
	if limit < 1 {
		return nil, ctx.Err()
	}
	if len(names) == 0 {
		var err error
		if names, err = s.nextNames(ctx); err != nil {
			return nil, err
		}
	}
	var queues []queue
	for _, i := range rand.Perm(len(names)) { // no name is always the first
		queues = append(queues, queue{find: qDueJobs, name: []any{names[i]}})
	}
	return s.due(ctx, queues, qJobLater, limit, again)
}

// nextNames returns the next store.MaxDueNames names of waiting jobs. After the last name, it
// begins with the first.
func (s *Store) nextNames(ctx context.Context) ([]string, error) {
	if from := s.dueFrom.Swap(nil); from != nil {
		if names, err := s.namesFrom(ctx, *from); err != nil || len(names) > 0 {
			return names, err
		}
	}
	return s.namesFrom(ctx, "")
}

func (s *Store) namesFrom(ctx context.Context, from string) (names []string, err error) {
	err = s.read(ctx, func(r *session) error {
		return r.rows(qNames, func(v []any) error {
			name, _ := v[0].(string)
			names = append(names, name)
			return nil
		}, from, int64(store.MaxDueNames))
	})
	if len(names) == store.MaxDueNames {
		after := names[len(names)-1] + "\x00"
		s.dueFrom.Store(&after)
	}
	return names, err
}

// DueMessages implements store.OutboxStore. It is bounded like Due.
func (s *Store) DueMessages(ctx context.Context, limit int, again time.Duration) ([]store.Record, error) {
	if limit < 1 {
		return nil, ctx.Err()
	}
	return s.due(ctx, []queue{{find: qDueMessages}}, qMessagesLater, limit, again)
}

// queue is the waiting jobs of one name, or all waiting messages.
type queue struct {
	find query
	name []any // empty for messages
	read int   // rows
}

// foundRow is a row that a query of due records has found.
type foundRow struct {
	row
	since micros // for Due and DueMessages
	err   error  // if it is damaged
}

// due reads due records, and makes them due again later. It first checks without the writer.
func (s *Store) due(ctx context.Context, queues []queue, put query, limit int, again time.Duration) ([]store.Record, error) {
	waiting := 0
	err := s.read(ctx, func(r *session) error {
		found, err := findDue(r, queues, 1)
		waiting = len(found)
		return err
	})
	if err != nil || waiting == 0 {
		return nil, err
	}
	var recs []store.Record
	var bad damage
	err = s.write(ctx, func(w *session) error {
		found, err := findDue(w, queues, min(limit, dueChunk))
		if err != nil {
			return err
		}
		recs, bad = nil, damage{}
		for _, r := range found {
			switch n, err := w.exec(put, w.now+span(again), r.Fence, r.since); {
			case err != nil:
				return err
			case n == 0: // found twice: the caller gave a name twice
			case r.err != nil:
				bad.add(r.Claim(), r.err)
			default:
				rec := r.whole(w.now)
				rec.Cancelling = false
				recs = append(recs, rec)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return recs, bad.err()
}

// findDue reads due rows, those first that wait longest. The queues have equal shares of the limit;
// a share that is left over goes to the others.
func findDue(s *session, queues []queue, limit int) (found []*foundRow, err error) {
	size := 0
	for err == nil && len(queues) > 0 && len(found) < limit {
		share := max((limit-len(found))/len(queues), 1)
		var more []queue
		for _, q := range queues {
			before := len(found)
			if before == limit {
				break
			}
			err = s.rows(q.find, func(v []any) error {
				d := scanDue(q.find, v)
				if size += len(d.Work) + len(d.Outbox); size > dueBytes && len(found) > 0 {
					return errEnough
				}
				found = append(found, d)
				return nil
			}, append(slices.Clip(q.name), s.now, int64(min(share, limit-before)), int64(q.read))...)
			if err != nil {
				break
			}
			if n := len(found) - before; n == share {
				q.read += n
				more = append(more, q)
			}
		}
		queues = more
	}
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	slices.SortStableFunc(found, func(a, b *foundRow) int { return cmp.Compare(a.since, b.since) })
	return found, nil
}

// scanDue scans a row of qDueJobs or qDueMessages.
func scanDue(find query, v []any) *foundRow {
	d := &foundRow{}
	d.err = d.scan(v)
	d.since, _ = v[columnsOfRow].(int64)
	runs := d.State == store.Accepted || d.repeatable
	if find == qDueMessages {
		runs = d.State.Settled()
	}
	if d.err == nil && !runs {
		d.err = unreadable(d.ID, fmt.Sprintf("it is %v, and waits in a queue", d.State))
	}
	return d
}
