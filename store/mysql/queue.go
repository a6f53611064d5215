package mysql

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/stet-go/stet/store"
)

const (
	dueChunk = 1000     // records returned by one Due
	dueBytes = 16 << 20 // of their work together, unless it is one
)

// Due implements store.WorkStore. One call returns at most 1,000 records and 16 MiB of work. Without
// names it reads the queues of 256 names; the next call continues with the names after these.
func (s *Store) Due(ctx context.Context, limit int, again time.Duration, names ...string) ([]store.Record, error) {
	if limit < 1 || ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if len(names) == 0 {
		var err error
		if names, err = s.nextNames(ctx); err != nil || len(names) == 0 {
			return nil, err
		}
	}
	var queues []*queue
	for _, i := range rand.Perm(len(names)) { // no name is always the first
		queues = append(queues, &queue{name: job(names[i])})
	}
	return s.due(ctx, queues, limit, again)
}

// nextNames returns the next store.MaxDueNames names of waiting jobs. After the last name, it begins with
// the first.
func (s *Store) nextNames(ctx context.Context) ([]string, error) {
	if from := s.dueFrom.Swap(nil); from != nil {
		if names, err := s.namesFrom(ctx, *from); err != nil || len(names) > 0 {
			return names, err
		}
	}
	return s.namesFrom(ctx, "")
}

func (s *Store) namesFrom(ctx context.Context, from string) (names []string, err error) {
	rows, err := s.own.QueryContext(ctx, "SELECT DISTINCT queue FROM "+s.t.records+" WHERE queue >= ? AND queue < 'k' ORDER BY queue LIMIT ?",
		[]byte(job(from)), store.MaxDueNames)
	if err != nil {
		return nil, s.gaveUp("read the names of jobs", err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name []byte
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, string(name[1:]))
	}
	if len(names) == store.MaxDueNames {
		after := names[len(names)-1] + "\x00"
		s.dueFrom.Store(&after)
	}
	return names, explain("read the names of jobs", rows.Err())
}

// DueMessages implements store.OutboxStore. It is bounded like Due.
func (s *Store) DueMessages(ctx context.Context, limit int, again time.Duration) ([]store.Record, error) {
	if limit < 1 || ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return s.due(ctx, []*queue{{name: messages}}, limit, again)
}

// queue is the waiting jobs of one name, or all waiting messages.
type queue struct {
	name string
	read int // rows
	had  int // rows, before the last query
}

// candidate is a row that was due when it was read, without a lock.
type candidate struct {
	id    []byte
	since micros
	size  int
}

// due reads due records, and makes them due again later.
func (s *Store) due(ctx context.Context, queues []*queue, limit int, again time.Duration) ([]store.Record, error) {
	found, err := s.candidates(ctx, queues, min(limit, dueChunk))
	if err != nil || len(found) == 0 {
		return nil, s.gaveUp("read due records", err)
	}
	var ids []any
	size := 0
	for _, c := range found {
		if size += c.size; size > dueBytes && len(ids) > 0 {
			break
		}
		ids = append(ids, c.id)
	}
	text := s.t.begin + "SELECT " + toDo + " FROM " + s.t.records + " FORCE INDEX (PRIMARY) WHERE id IN " + list(len(ids)) +
		" AND queue_due <= " + nowColumn + " + ? FOR UPDATE SKIP LOCKED" + s.t.header
	var recs []store.Record
	var bad damage
	err = s.inOwn(ctx, text, append(ids, s.ahead.Load()), func(a *answer) (string, []any) {
		recs, bad = nil, damage{}
		slices.SortStableFunc(a.rows, func(a, b *row) int { return cmp.Compare(a.queueDue, b.queueDue) })
		var put []any
		for _, r := range a.rows {
			put = append(put, r.ID[:])
			if r.broken == nil && !r.waits() {
				r.broken = unreadable(r.ID, fmt.Sprintf("it is %v, and waits in a queue", r.State))
			}
			if r.broken != nil {
				bad.add(r.Claim(), r.broken)
				continue
			}
			rec := r.whole(a.now)
			rec.Cancelling = false
			recs = append(recs, rec)
		}
		if len(put) == 0 {
			return "", nil
		}
		return "UPDATE " + s.t.records + " FORCE INDEX (PRIMARY) SET queue_due = ? WHERE id IN " + list(len(put)), append([]any{a.now + span(again)}, put...)
	})
	if err != nil {
		return nil, s.gaveUp("read due records", err)
	}
	return recs, bad.err()
}

// waits reports whether the row belongs in its queue.
func (r *row) waits() bool {
	if r.queue == messages {
		return r.State.Settled()
	}
	return r.State == store.Accepted || r.repeatable()
}

// candidates reads due rows, without locks. The queues have equal shares of the limit; a share that is left over
// goes to the others.
func (s *Store) candidates(ctx context.Context, queues []*queue, limit int) (found []candidate, err error) {
	for len(queues) > 0 && len(found) < limit {
		share := max((limit-len(found))/len(queues), 1)
		var texts []string
		var args []any
		for i, q := range queues {
			texts = append(texts, "(SELECT id, queue_due, COALESCE(LENGTH(work), 0), "+fmt.Sprint(i)+" FROM "+s.t.records+
				" WHERE queue = ? AND queue_due <= "+nowColumn+" + ? ORDER BY queue_due LIMIT ? OFFSET ?)")
			args = append(args, []byte(q.name), s.ahead.Load(), share, q.read)
			q.had = q.read
		}
		if found, err = s.readCandidates(ctx, strings.Join(texts, " UNION ALL "), args, queues, found); err != nil {
			return nil, err
		}
		queues = slices.DeleteFunc(queues, func(q *queue) bool { return q.read-q.had < share })
	}
	found = found[:min(len(found), limit)]
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.since, b.since) })
	return found, nil
}

func (s *Store) readCandidates(ctx context.Context, text string, args []any, queues []*queue, found []candidate) ([]candidate, error) {
	rows, err := s.own.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var c candidate
		var i int
		if err := rows.Scan(&c.id, &c.since, &c.size, &i); err != nil {
			return nil, err
		}
		queues[i].read++
		found = append(found, c)
	}
	return found, rows.Err()
}
