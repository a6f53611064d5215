package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
)

const (
	maxDue    = stet.MaxBrowse // records that one Due hands out
	maxPeeked = 4 * maxDue     // that it compares, about
	minPeeked = 8              // of each shard, at least
	minVisits = 16             // shards that it looks at together, at least
	maxRounds = 8              // of such looks, as an agenda may have shards too early
	maxHanded = 8 << 20        // bytes after which a script hands out no more, nor do others begin
)

// The agenda says which shards are worth a look: of each shard that has something in
// its queue it has the time when the first of it is due, or an earlier one. It only
// ever speeds up Due. What must not be lost is in the queues, which are written in
// the same atomic step as the records.

// agenda is the name of that of a kind of queue.
func (s *Store) agenda(what stet.Due) string { return s.o.Prefix + ":{agenda}:" + queueNames[what] }

// queueing is names with those of a record's queue and, where it can be written
// together with a record, of its agenda.
func (s *Store) queueing(id stet.ID, what stet.Due, names []string) []string {
	names = append(names, s.queue(shardOf(id), what))
	if !s.cluster {
		names = append(names, s.agenda(what))
	}
	return names
}

// visit is a look at the queue of a shard.
type visit struct {
	shard int
	seen  string        // when it was due, as the agenda had it; "" if it was not asked
	next  time.Duration // until it is worth another look
	more  bool          // it is; the queue is not empty
}

// until notes that something is due in d.
func (v *visit) until(d time.Duration) {
	if !v.more || d < v.next {
		v.next, v.more = d, true
	}
}

// plan writes what was found into the agenda.
func (s *Store) plan(ctx context.Context, what stet.Due, visits []visit) error {
	args := make([]string, 0, 3*len(visits))
	for _, v := range visits {
		next := ""
		if v.more {
			next = strconv.FormatInt(v.next.Microseconds(), 10)
		}
		args = append(args, strconv.Itoa(v.shard), v.seen, next)
	}
	_, err := s.eval(ctx, planScript, []string{s.agenda(what)}, args...)
	return err
}

// candidate is a record that seems to be due.
type candidate struct {
	id    stet.ID
	due   int64         // since when, on its server's clock
	ago   time.Duration // so long
	visit int
}

// Due implements stet.WorkStore. With an error it may still return records, which it
// has handed out. It compares the longest waiting of each shard only, so among many
// thousands that wait it goes by that time about.
func (s *Store) Due(ctx context.Context, what stet.Due, limit int, again time.Duration) (all []stet.Record, err error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	if int(what) >= len(queueNames) || limit < 1 || limit > maxDue || again <= 0 {
		return nil, &stet.Error{Kind: stet.ErrInvalid, Execution: stet.NotExecuted, Cause: fmt.Errorf(
			"redis: Due(%d, %d, %v): the limit must be 1 to %d, and the time positive", what, limit, again, maxDue)}
	}
	for round := 0; len(all) < limit && round < maxRounds; round++ {
		room := limit - len(all)
		visits, err := s.toVisit(ctx, what, max(room, minVisits))
		if err != nil || len(visits) == 0 {
			return all, err
		}
		recs, full, err := s.visit(ctx, what, visits, room, again)
		all = append(all, recs...)
		if err != nil || full || len(visits) < max(room, minVisits) {
			return all, err
		}
	}
	return all, nil
}

// visit hands out up to room records of some shards, and puts down in the agenda when
// those are worth another look. It reports whether there was no room for more.
func (s *Store) visit(ctx context.Context, what stet.Due, visits []visit, room int, again time.Duration) (recs []stet.Record, full bool, err error) {
	found, err := s.peekQueues(ctx, what, visits, max(minPeeked, min(room, maxPeeked/len(visits))))
	if err != nil {
		return nil, false, err
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.due, b.due) })
	recs, handed, full, err := s.hand(ctx, what, found[:min(room, len(found))], again)
	for i, c := range found {
		if i < len(handed) && handed[i] {
			visits[c.visit].until(again)
		} else {
			visits[c.visit].until(-c.ago)
		}
	}
	// Without it, the shards are looked at once more.
	return recs, full, errors.Join(err, explained("due", s.plan(ctx, what, visits)))
}

// explained is explain of an error that may be none.
func explained(step string, err error) error {
	if err == nil {
		return nil
	}
	return explain(step, err)
}

// toVisit returns the shards that have something due: those where it waits longest.
func (s *Store) toVisit(ctx context.Context, what stet.Due, limit int) (visits []visit, err error) {
	reply, err := s.eval(ctx, agendaScript, []string{s.agenda(what)}, strconv.Itoa(limit))
	if err != nil {
		return nil, explain("due", err)
	}
	pairs, ok := reply.([]any)
	if !ok || len(pairs)%2 != 0 {
		return nil, errReply(reply)
	}
	for i := 0; i < len(pairs); i += 2 {
		name, _ := pairs[i].(string)
		seen, ok := pairs[i+1].(string)
		shard, err := strconv.Atoi(name)
		if err != nil || !ok || shard < 0 || shard >= shards {
			return nil, errReply(pairs[i])
		}
		visits = append(visits, visit{shard: shard, seen: seen})
	}
	return visits, nil
}

// peekQueues returns the records that seem to be due in some shards, so many of each,
// and notes what is due later.
func (s *Store) peekQueues(ctx context.Context, what stet.Due, visits []visit, most int) (found []candidate, err error) {
	names := make([]string, len(visits))
	for i, v := range visits {
		names[i] = s.queue(v.shard, what)
	}
	lists, err := s.evalEach(ctx, queueScript, names, 1, strconv.Itoa(most))
	if err != nil {
		return nil, explain("due", err)
	}
	for i, list := range lists {
		if len(list) < 2 || len(list)%2 != 0 {
			return nil, errReply(list)
		}
		now, ok := list[0].(int64)
		if !ok {
			return nil, errReply(list[0])
		}
		if later, ok := list[1].(int64); ok {
			visits[i].until(time.Duration(later-now) * time.Microsecond)
		}
		for j := 2; j < len(list); j += 2 {
			id, err := identity(list[j])
			if err != nil {
				return nil, err
			}
			due, ok := list[j+1].(int64)
			if !ok {
				return nil, errReply(list[j+1])
			}
			ago := time.Duration(now-due) * time.Microsecond
			found = append(found, candidate{id, due, ago, i})
			if j == 2*most { // the last: there may be more behind it
				visits[i].until(-ago)
			}
		}
	}
	return found, nil
}

// hand returns those of the records that are due, with their work, and makes them due
// again later. Of each it says whether it was handed out; and whether that was enough
// for one answer.
func (s *Store) hand(ctx context.Context, what stet.Due, some []candidate, again time.Duration) (recs []stet.Record, handed []bool, full bool, err error) {
	var size atomic.Int64
	all := make([]stet.Record, len(some))
	handed = make([]bool, len(some))
	groups := s.group(len(some), func(i int) stet.ID { return some[i].id })
	err = concurrently(len(groups), func(g int) error {
		room := maxHanded - size.Load()
		if room <= 0 {
			return nil
		}
		var names []string
		args := []string{flag(what == stet.DueRun), micros(again), strconv.FormatInt(room, 10)}
		for _, i := range groups[g] {
			k := s.keys(some[i].id)
			names = append(names, s.queue(shardOf(some[i].id), what), k.record, k.result, s.outbox(some[i].id))
			args = append(args, string(some[i].id[:]))
		}
		reply, err := s.eval(ctx, handScript, names, args...)
		if err != nil {
			return explain("due", err)
		}
		replies, ok := reply.([]any)
		if !ok || len(replies) != len(groups[g]) {
			return errReply(reply)
		}
		for n, i := range groups[g] {
			if empty, ok := replies[n].([]any); ok && len(empty) == 0 {
				continue
			}
			rec, err := decodeWhole(some[i].id, replies[n])
			if err != nil {
				return err
			}
			rec.Cancelling = false // which is not for queues
			all[i], handed[i] = rec, true
			size.Add(int64(len(rec.Result) + len(rec.Work)))
		}
		return nil
	})
	for i, rec := range all {
		if handed[i] {
			recs = append(recs, rec)
		}
	}
	return recs, handed, size.Load() >= maxHanded, err
}
