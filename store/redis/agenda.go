package redis

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/store"
)

const (
	maxDue    = store.MaxBrowse // records that one Due hands out
	maxPeeked = 4 * maxDue      // that it compares, about
	minPeeked = 8               // of each shard, at least
	minVisits = 16              // shards that it looks at together, at least
	maxRounds = 8               // of such looks, as an agenda may have shards too early
	maxHanded = 8 << 20         // bytes after which a script hands out no more, nor do others begin
)

// An agenda says which shards are worth a look: of each shard that has something in
// its queue of the same name it has the time when the first of it is due, or an earlier one. It only
// ever speeds up Due. What must not be lost is in the queues, which are written in
// the same atomic step as the records.

// agendas is what the names of those of a kind of queue begin with.
func (s *Store) agendas(what waitsFor) string { return s.o.Prefix + ":{agenda}:" + queueNames[what] }

// queueing is names with those of a record's queues and, where they can be written
// together with a record, of the agendas.
func (s *Store) queueing(id store.ID, what waitsFor, names []string) []string {
	names = append(names, s.queues(shardOf(id), what))
	if !s.cluster {
		names = append(names, s.agendas(what))
	}
	return names
}

// visit is a look at a queue.
type visit struct {
	spot
	seen string        // when it was due, as the agenda had it; "" if it was not asked
	next time.Duration // until it is worth another look
	more bool          // it is; the queue is not empty
}

// until notes that something is due in d.
func (v *visit) until(d time.Duration) {
	if !v.more || d < v.next {
		v.next, v.more = d, true
	}
}

// plan writes what was found into the agenda.
func (s *Store) plan(ctx context.Context, what waitsFor, visits []visit) error {
	args := make([]string, 0, 4*len(visits))
	for _, v := range visits {
		next := ""
		if v.more {
			next = strconv.FormatInt(v.next.Microseconds(), 10)
		}
		args = append(args, v.name, strconv.Itoa(v.shard), v.seen, next)
	}
	_, err := s.eval(ctx, planScript, []string{s.agendas(what)}, args...)
	return err
}

// candidate is a record that seems to be due.
type candidate struct {
	id    store.ID
	due   int64         // since when, on its server's clock
	ago   time.Duration // so long
	visit int
}

// Due implements store.WorkStore. With an error it may still return records, which it
// has handed out. It compares the longest waiting of each shard only, so among many
// thousands that wait it goes by that time about. Of a cluster of which a server is down
// it returns, with an error, what is due on the others. Without names, it looks at 256
// names under which something waits, and the next call at the next.
func (s *Store) Due(ctx context.Context, limit int, again time.Duration, names ...string) (all []store.Record, err error) {
	return s.handOut(ctx, toRun, limit, again, names)
}

// DueMessages implements store.OutboxStore. Like Due, it may return records with an
// error.
func (s *Store) DueMessages(ctx context.Context, limit int, again time.Duration) ([]store.Record, error) {
	return s.handOut(ctx, toSend, limit, again, []string{""})
}

// handOut returns what waits for that, under some names, and makes it due again.
func (s *Store) handOut(ctx context.Context, what waitsFor, limit int, again time.Duration, names []string) (all []store.Record, err error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	if limit < 1 || limit > maxDue || again <= 0 {
		return nil, fmt.Errorf("%w: redis: %d records are asked for, which are due again after %v: the limit must be 1 to %d, and the time positive",
			store.ErrInvalid, limit, again, maxDue)
	}
	var damaged []store.Claim
	var failed error
	for round := 0; len(all) < limit && round < maxRounds && ctx.Err() == nil; round++ {
		room := limit - len(all)
		most := max(room, minVisits, min(int(s.missing.Load())*4, shards))
		visits, more, err := s.toVisit(ctx, what, most, names)
		lost := err != nil
		if failed = cmp.Or(failed, err); lost {
			visits = s.blindly(ctx, what, names) // none if it is a single server
		}
		if len(visits) == 0 {
			break
		}
		h, err := s.visit(ctx, what, visits, room, again, lost)
		all, damaged, failed = append(all, h.recs...), append(damaged, h.damaged...), cmp.Or(failed, err)
		if lost || h.full || !more || err != nil && !s.cluster {
			break
		}
	}
	switch {
	case failed != nil:
		return all, failed
	case len(damaged) > 0:
		return all, &store.PartialError{Claims: damaged, Cause: errFormat}
	}
	return all, nil
}

const (
	absence = 30 * time.Second // until a shard whose server does not answer is looked at again
	blind   = 256              // shards that are looked at together without the agenda; a divisor of shards
)

// blindly returns queues of some shards of a cluster whose agenda cannot be read, of
// other shards each time.
func (s *Store) blindly(ctx context.Context, what waitsFor, names []string) []visit {
	if !s.cluster {
		return nil
	}
	s.mu.Lock()
	from := s.sought
	s.sought = (s.sought + blind) % shards
	s.mu.Unlock()
	_, waiting, _ := s.due(ctx, from, from+blind, 0) // those of the servers that answer
	return slices.DeleteFunc(waiting[what], func(v visit) bool {
		return v.next > 0 || len(names) > 0 && !slices.Contains(names, v.name)
	})
}

// handed is what a look at some shards has handed out.
type handed struct {
	recs    []store.Record
	damaged []store.Claim
	taken   []bool // of each candidate whether it was handed out
	full    bool   // there was no room for more
}

// visit hands out up to room records of some shards, and unless the agenda is lost puts
// down there when they are worth another look. An error is of some shards only.
func (s *Store) visit(ctx context.Context, what waitsFor, visits []visit, room int, again time.Duration, lost bool) (handed, error) {
	found, missing, failed := s.peekQueues(ctx, what, visits, max(minPeeked, min(room, maxPeeked/len(visits))))
	if failed != nil && !s.cluster {
		return handed{}, failed
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.due, b.due) })
	found = inTurns(found, func(c candidate) string { return visits[c.visit].name })
	slices.SortStableFunc(found[:min(room, len(found))], func(a, b candidate) int { return cmp.Compare(a.due, b.due) })
	h, err := s.hand(ctx, what, visits, found[:min(room, len(found))], again)
	for i, c := range found {
		if i < len(h.taken) && h.taken[i] {
			visits[c.visit].until(again)
		} else {
			visits[c.visit].until(-c.ago)
		}
	}
	if lost {
		return h, cmp.Or(failed, err)
	}
	s.missing.Store(int64(missing))
	ctx, cancel := s.phase(ctx, 1)
	defer cancel()
	// Without it, the shards are looked at once more.
	return h, cmp.Or(failed, err, explained("due", s.plan(ctx, what, visits)))
}

// explained is explain of an error that may be none.
func explained(step string, err error) error {
	if err == nil {
		return nil
	}
	return explain(step, err)
}

// inTurns orders some things by their places among those of their names, so that names
// take turns; at a place those of the names are in any order, so that of more names than
// there is room for none is always first.
func inTurns[T any](some []T, name func(T) string) []T {
	type placed struct {
		place, turn int
		it          T
	}
	seen, turns := make(map[string]int), make(map[string]int)
	all := make([]placed, len(some))
	for i, it := range some {
		n := name(it)
		if seen[n] == 0 {
			turns[n] = rand.Int()
		}
		all[i] = placed{seen[n], turns[n], it}
		seen[n]++
	}
	slices.SortStableFunc(all, func(a, b placed) int { return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.turn, b.turn)) })
	some = some[:0]
	for _, p := range all {
		some = append(some, p.it)
	}
	return some
}

// toVisit returns queues that have something due: of each name those where it waits
// longest; and whether there may be more of them.
func (s *Store) toVisit(ctx context.Context, what waitsFor, limit int, names []string) (visits []visit, more bool, err error) {
	ctx, cancel := s.phase(ctx, 4)
	defer cancel()
	from := ""
	if len(names) == 0 {
		s.mu.Lock()
		from, s.dueFrom = s.dueFrom, ""
		s.mu.Unlock()
	}
	args := append([]string{strconv.Itoa(max(limit, maxPeeked)), strconv.Itoa(store.MaxDueNames), from}, names...)
	reply, err := s.eval(ctx, agendaScript, []string{s.agendas(what)}, args...)
	if err != nil {
		return nil, false, explain("due", err)
	}
	parts, ok := reply.([]any)
	if !ok || len(parts)%2 != 1 {
		return nil, false, errReply(reply)
	}
	if next, _ := parts[0].(string); next != "" {
		s.mu.Lock()
		s.dueFrom = next
		s.mu.Unlock()
		more = true
	}
	each := maxPeeked / max(len(parts)/2, 1) // shards of one name, or more
	for i := 1; i < len(parts); i += 2 {
		name, named := parts[i].(string)
		pairs, ok := parts[i+1].([]any)
		if !named || !ok || len(pairs)%2 != 0 {
			return nil, false, errReply(parts[i+1])
		}
		more = more || len(pairs) >= 2*each
		for j := 0; j < len(pairs); j += 2 {
			number, _ := pairs[j].(string)
			seen, ok := pairs[j+1].(string)
			shard, err := strconv.Atoi(number)
			if err != nil || !ok || shard < 0 || shard >= shards {
				return nil, false, errReply(pairs[j])
			}
			visits = append(visits, visit{spot: spot{shard, name}, seen: seen})
		}
	}
	visits = inTurns(visits, func(v visit) string { return v.name })
	return visits[:min(len(visits), limit)], more || len(visits) >= limit, nil
}

// peekQueues returns the records that seem to be due in some shards, so many of each,
// and notes what is due later; and of how many shards the server does not answer, with
// the error.
func (s *Store) peekQueues(ctx context.Context, what waitsFor, visits []visit, most int) (found []candidate, missing int, failed error) {
	ctx, cancel := s.phase(ctx, 3)
	defer cancel()
	names := make([]string, len(visits))
	for i, v := range visits {
		names[i] = s.queue(v.shard, what, v.name)
	}
	lists, failed := s.evalEach(ctx, queueScript, names, 1, strconv.Itoa(most))
	if failed != nil {
		failed = explain("due", failed)
	}
	for i := range visits {
		if i >= len(lists) || lists[i] == nil {
			missing++
			visits[i].until(absence)
			continue
		}
		some, err := candidates(lists[i], &visits[i], i, most)
		if err != nil {
			failed = cmp.Or(failed, err)
		}
		found = append(found, some...)
	}
	return found, missing, failed
}

// candidates are those in the list of a visit, which is noted when it is worth another.
func candidates(list []any, v *visit, at, most int) (found []candidate, err error) {
	if len(list) < 2 || len(list)%2 != 0 {
		return nil, errReply(list)
	}
	now, ok := list[0].(int64)
	if !ok {
		return nil, errReply(list[0])
	}
	if later, ok := list[1].(int64); ok {
		v.until(time.Duration(later-now) * time.Microsecond)
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
		found = append(found, candidate{id, due, ago, at})
		if j == 2*most { // the last: there may be more behind it
			v.until(-ago)
		}
	}
	return found, nil
}

// hand returns those of the records that are due, with their work, and makes them due
// again later, and names those that cannot be read. An error is of some of them only.
func (s *Store) hand(ctx context.Context, what waitsFor, visits []visit, some []candidate, again time.Duration) (h handed, err error) {
	ctx, cancel := s.phase(ctx, 2)
	defer cancel()
	var size atomic.Int64
	all, damaged, unconfirmed := make([]store.Record, len(some)), make([]bool, len(some)), make([]bool, len(some))
	h.taken = make([]bool, len(some))
	groups := s.group(len(some), func(i int) store.ID { return some[i].id })
	err, _ = first(concurrently(atATime, len(groups), func(g int) error {
		room := maxHanded - size.Load()
		if room <= 0 {
			return nil
		}
		var names []string
		args := []string{flag(what == toRun), micros(again), strconv.FormatInt(room, 10)}
		for _, i := range groups[g] {
			k := s.keys(some[i].id)
			name := visits[some[i].visit].name
			names = append(names, s.queue(shardOf(some[i].id), what, name), k.record, k.result, s.outbox(some[i].id))
			args = append(args, string(some[i].id[:]), name)
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
			it, _ := replies[n].([]any)
			if len(it) == 0 {
				continue
			}
			h.taken[i] = true
			if all[i], err = decodeWhole(some[i].id, it); err != nil {
				all[i], damaged[i] = told(some[i].id, it[len(it)-1]), true
			}
			all[i].Cancelling = false // which is not for queues
			size.Add(int64(all[i].Result.Size() + len(all[i].Work) + len(all[i].Outbox)))
		}
		var lacking error // a message is not sent before replicas have its outcome
		for n, i := range groups[g] {
			if lacking == nil && h.taken[i] && !damaged[i] {
				lacking = s.standing(ctx, "due", all[i], replies[n])
			}
			unconfirmed[i] = lacking != nil
		}
		return lacking
	}))
	for i, rec := range all {
		switch {
		case damaged[i]:
			h.damaged = append(h.damaged, rec.Claim())
		case h.taken[i] && !unconfirmed[i]:
			h.recs = append(h.recs, rec)
		}
	}
	h.full = size.Load() >= maxHanded
	return h, err
}
