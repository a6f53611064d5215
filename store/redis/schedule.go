package redis

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/store"
)

const (
	maxDue      = store.MaxBrowse // records that one Due returns
	maxPeeked   = 4 * maxDue      // records that it compares, about
	minPeeked   = 8               // of each queue, at least
	minReads    = 16              // queues that it reads together, at least
	maxRounds   = 8               // of such reads, because the schedule may be too early
	maxDueBytes = 8 << 20         // bytes of records after which a script and Due return no more

	absence = 30 * time.Second // until a queue whose server does not answer is read again
	blind   = 256              // shards that are read together without the schedule; a divisor of shards
)

// The schedule says which queues to read. It has, for each queue that is not empty, the time
// when its first record is due, or an earlier one. It only makes Due faster: no record depends
// on it, because the queues are written in the same atomic step as the records.

// scheduleKey begins the keys of the schedule for a kind of queue: a part of the data format.
func (s *Store) scheduleKey(what waitsFor) string {
	return s.o.Prefix + ":{schedule}:" + queueNames[what]
}

// queueing appends the keys of a record's queues and, if they can be written in the same step,
// of the schedule.
func (s *Store) queueing(id store.ID, what waitsFor, names []string) []string {
	names = append(names, s.queues(shardOf(id), what))
	if !s.cluster {
		names = append(names, s.scheduleKey(what))
	}
	return names
}

// spot is a queue: of a shard, under a name.
type spot struct {
	shard int
	name  string
}

// queueRead is one read of a queue.
type queueRead struct {
	spot
	seen string        // when it was due according to the schedule; "" if that was not asked
	next time.Duration // until the queue must be read again
	more bool          // it must be; the queue is not empty
}

// until records that something is due in d.
func (r *queueRead) until(d time.Duration) {
	if !r.more || d < r.next {
		r.next, r.more = d, true
	}
}

// writeSchedule writes the result of reads into the schedule.
func (s *Store) writeSchedule(ctx context.Context, what waitsFor, reads []queueRead) error {
	args := make([]string, 0, 4*len(reads))
	for _, r := range reads {
		next := ""
		if r.more {
			next = strconv.FormatInt(r.next.Microseconds(), 10)
		}
		args = append(args, r.name, strconv.Itoa(r.shard), r.seen, next)
	}
	_, err := s.eval(ctx, planScript, []string{s.scheduleKey(what)}, args...)
	return err
}

// Due implements store.WorkStore. With an error it may still return records, which are then not
// due again until later. It compares the records that are due longest in each shard only, so
// among many thousands the order is approximate. If a server of a cluster is down, it returns
// an error and the records that are due on the others. Without names it reads the queues of 256
// names; the next call continues with the names after these.
func (s *Store) Due(ctx context.Context, limit int, again time.Duration, names ...string) ([]store.Record, error) {
	return s.due(ctx, dueQuery{toRun, limit, again, names})
}

// DueMessages implements store.OutboxStore. Like Due, it may return records with an
// error.
func (s *Store) DueMessages(ctx context.Context, limit int, again time.Duration) ([]store.Record, error) {
	return s.due(ctx, dueQuery{toSend, limit, again, []string{""}})
}

// dueQuery has the parameters of Due and DueMessages.
type dueQuery struct {
	what  waitsFor
	limit int
	again time.Duration
	names []string
}

func (s *Store) due(ctx context.Context, q dueQuery) ([]store.Record, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	if q.limit < 1 || q.limit > maxDue || q.again <= 0 {
		return nil, fmt.Errorf("%w: redis: limit is %d, and records are due again after %v: the limit must be 1 to %d, and the time positive",
			store.ErrInvalid, q.limit, q.again, maxDue)
	}
	var all dueBatch
	var failed error
	for round := 0; len(all.recs) < q.limit && round < maxRounds && ctx.Err() == nil; round++ {
		room := q.limit - len(all.recs)
		reads, more, err := s.scheduled(ctx, q, max(room, minReads, min(int(s.position.missing.Load())*4, shards)))
		lost := err != nil
		if failed = cmp.Or(failed, err); lost {
			reads = s.unscheduled(ctx, q)
		}
		if len(reads) == 0 {
			break
		}
		h, err := s.readQueues(ctx, q, reads, room, lost)
		all.recs, all.damaged, failed = append(all.recs, h.recs...), append(all.damaged, h.damaged...), cmp.Or(failed, err)
		if lost || h.full || !more || err != nil && !s.cluster {
			break
		}
	}
	if failed == nil && len(all.damaged) > 0 {
		failed = &store.PartialError{Claims: all.damaged, Cause: errFormat}
	}
	return all.recs, failed
}

// scheduled returns queues that have something due: of each name the ones that are due longest;
// and whether there may be more of them.
func (s *Store) scheduled(ctx context.Context, q dueQuery, limit int) (reads []queueRead, more bool, err error) {
	ctx, cancel := s.phase(ctx, 4)
	defer cancel()
	from := ""
	if len(q.names) == 0 {
		from, _ = s.position.dueFrom.Swap("").(string)
	}
	args := append([]string{strconv.Itoa(max(limit, maxPeeked)), strconv.Itoa(store.MaxDueNames), from}, q.names...)
	reply, err := s.eval(ctx, scheduleScript, []string{s.scheduleKey(q.what)}, args...)
	if err != nil {
		return nil, false, explain("due", err)
	}
	p := partsOf(reply)
	if from := next[string](p); from != "" {
		s.position.dueFrom.Store(from)
		more = true
	}
	each := maxPeeked / max(len(p.rest)/2, 1) // queues of one name, or more
	for p.more() {
		name, queues := next[string](p), partsOf(next[[]any](p))
		more = more || len(queues.rest) >= 2*each
		for queues.more() {
			shard, err := strconv.Atoi(next[string](queues))
			if err != nil || shard < 0 || shard >= shards {
				return nil, false, errReply(shard)
			}
			reads = append(reads, queueRead{spot: spot{shard, name}, seen: next[string](queues)})
		}
		p.err = cmp.Or(p.err, queues.err)
	}
	reads = inTurns(reads, func(r queueRead) string { return r.name })
	return reads[:min(len(reads), limit)], more || len(reads) >= limit, p.err
}

// inTurns reorders things so that names take turns, in random order.
func inTurns[T any](some []T, name func(T) string) []T {
	byName := make(map[string][]T)
	for _, it := range some {
		byName[name(it)] = append(byName[name(it)], it)
	}
	some = some[:0]
	for len(byName) > 0 {
		for n, rest := range byName {
			some = append(some, rest[0])
			if byName[n] = rest[1:]; len(rest) == 1 {
				delete(byName, n)
			}
		}
	}
	return some
}

// unscheduled returns queues of some shards of a cluster whose schedule cannot be read, of
// other shards each time; none of a single server.
func (s *Store) unscheduled(ctx context.Context, q dueQuery) []queueRead {
	if !s.cluster {
		return nil
	}
	from := int(s.position.sought.Add(blind)-blind) % shards
	_, waiting, _ := s.readShards(ctx, from, from+blind, 0) // those of the servers that answer
	return slices.DeleteFunc(waiting[q.what], func(r queueRead) bool {
		return r.next > 0 || len(q.names) > 0 && !slices.Contains(q.names, r.name)
	})
}

// dueBatch are the records that a read of some queues returns.
type dueBatch struct {
	recs    []store.Record
	damaged []store.Claim
	taken   []bool // of each candidate, whether it was returned
	full    bool   // there was no room for more
}

// candidate is a record that seems to be due.
type candidate struct {
	id   store.ID
	due  int64         // since when, on its server's clock
	ago  time.Duration // for so long
	read int           // the index of the read that found it
}

// readQueues returns up to room records of some queues, and unless the schedule is lost writes
// there when the queues must be read again. An error concerns some of the queues only.
func (s *Store) readQueues(ctx context.Context, q dueQuery, reads []queueRead, room int, lost bool) (dueBatch, error) {
	found, missing, failed := s.peekQueues(ctx, q.what, reads, max(minPeeked, min(room, maxPeeked/len(reads))))
	if failed != nil && !s.cluster {
		return dueBatch{}, failed
	}
	longest := func(a, b candidate) int { return cmp.Compare(a.due, b.due) }
	slices.SortStableFunc(found, longest)
	found = inTurns(found, func(c candidate) string { return reads[c.read].name })
	chosen := found[:min(room, len(found))]
	slices.SortStableFunc(chosen, longest)
	h, err := s.takeDue(ctx, q, reads, chosen)
	for i, c := range found {
		if i < len(h.taken) && h.taken[i] {
			reads[c.read].until(q.again)
		} else {
			reads[c.read].until(-c.ago)
		}
	}
	if lost {
		return h, cmp.Or(failed, err)
	}
	s.position.missing.Store(int64(missing))
	ctx, cancel := s.phase(ctx, 1)
	defer cancel()
	// If writing fails, the queues are read again.
	return h, cmp.Or(failed, err, explain("due", s.writeSchedule(ctx, q.what, reads)))
}

// peekQueues returns the records that seem to be due in some queues, up to most of each, and
// records when others are due later; and for how many queues the server does not answer, with the error.
func (s *Store) peekQueues(ctx context.Context, what waitsFor, reads []queueRead, most int) (found []candidate, missing int, failed error) {
	ctx, cancel := s.phase(ctx, 3)
	defer cancel()
	names := make([]string, len(reads))
	for i, r := range reads {
		names[i] = s.queue(r.shard, what, r.name)
	}
	lists, failed := s.evalEach(ctx, queueScript, names, 1, strconv.Itoa(most))
	failed = explain("due", failed)
	for i := range reads {
		if i >= len(lists) || lists[i] == nil {
			missing++
			reads[i].until(absence)
			continue
		}
		p := partsOf(lists[i])
		now := next[int64](p)
		if later := next[int64](p); later > 0 {
			reads[i].until(time.Duration(later-now) * time.Microsecond)
		}
		full := len(p.rest) == 2*most // there may be more behind the last
		for p.more() {
			c := candidate{id: p.id(), due: next[int64](p), read: i}
			c.ago = time.Duration(now-c.due) * time.Microsecond
			if found = append(found, c); full && !p.more() {
				reads[i].until(-c.ago)
			}
		}
		failed = cmp.Or(failed, p.err)
	}
	return found, missing, failed
}

// takeDue returns those of the records that are due, with their work, makes them due again later,
// and names the unreadable ones. An error concerns some of them only.
func (s *Store) takeDue(ctx context.Context, q dueQuery, reads []queueRead, some []candidate) (h dueBatch, err error) {
	ctx, cancel := s.phase(ctx, 2)
	defer cancel()
	var size atomic.Int64
	all, damaged, unconfirmed := make([]store.Record, len(some)), make([]bool, len(some)), make([]bool, len(some))
	h.taken = make([]bool, len(some))
	groups := s.group(len(some), func(i int) store.ID { return some[i].id })
	_, err = first(concurrently(atATime, len(groups), func(g int) error {
		room := maxDueBytes - size.Load()
		if room <= 0 {
			return nil
		}
		var names []string
		args := []string{flag(q.what == toRun), micros(q.again), strconv.FormatInt(room, 10)}
		for _, i := range groups[g] {
			k, name := s.keys(some[i].id), reads[some[i].read].name
			names = append(names, s.queue(shardOf(some[i].id), q.what, name), k.record, k.result, s.outbox(some[i].id))
			args = append(args, string(some[i].id[:]), name)
		}
		reply, err := s.eval(ctx, dueScript, names, args...)
		if err != nil {
			return explain("due", err)
		}
		p := partsOf(reply)
		var lacking error // a message is not sent before replicas have its outcome
		for _, i := range groups[g] {
			it := next[[]any](p)
			if len(it) == 0 {
				continue
			}
			h.taken[i] = true
			if all[i], err = decodeWhole(some[i].id, it); err != nil {
				all[i], damaged[i] = damagedRecord(some[i].id, it[len(it)-1]), true
			} else if lacking == nil {
				lacking = s.standing(ctx, "due", all[i], it)
			}
			all[i].Cancelling = false // queues do not return it
			size.Add(int64(all[i].Result.Size() + len(all[i].Work) + len(all[i].Outbox)))
			unconfirmed[i] = lacking != nil
		}
		return cmp.Or(p.err, lacking)
	}))
	for i, rec := range all {
		switch {
		case damaged[i]:
			h.damaged = append(h.damaged, rec.Claim())
		case h.taken[i] && !unconfirmed[i]:
			h.recs = append(h.recs, rec)
		}
	}
	h.full = size.Load() >= maxDueBytes
	return h, err
}
