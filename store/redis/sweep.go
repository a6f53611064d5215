package redis

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/stet-go/stet/store"
)

// shardNames is how many names of a shard, under which something waits, one step looks
// at.
const shardNames = 16

// stretch is how many shards one Sweep, or one step of Browse, looks at.
const stretch = 64

// Sweep implements store.Sweeper. It parks the dead, for which it goes round the
// shards, some in each call, and puts back into the agenda whatever waits there.
// Results and records expire in Redis by themselves, and are not counted.
func (s *Store) Sweep(ctx context.Context, limit int) (swept store.Swept, err error) {
	if err := s.begin(ctx); err != nil {
		return swept, err
	}
	s.mu.Lock()
	from, to := s.cursor, s.cursor+stretch
	if s.lame { // each step waits for the server that is down: fewer of them
		to += 3 * stretch
	}
	to = min(to, shards)
	s.cursor = to % shards
	s.mu.Unlock()
	limit = max(limit, 1)
	due, waiting, err := s.due(ctx, from, to, limit)
	if partial, ok := errors.AsType[*store.PartialError](err); ok {
		err = partial.Cause
	} else if err != nil {
		return swept, explain("sweep", err)
	}
	if len(due) >= limit {
		due = due[:limit]
		s.mu.Lock()
		s.cursor = from // here is more
		s.mu.Unlock()
	}
	swept.More = len(due) >= limit || to < shards
	parked, unparked := s.park(ctx, due)
	swept.Parked = parked
	err = cmp.Or(err, unparked)
	for what, visits := range waiting {
		if len(visits) > 0 {
			err = cmp.Or(err, s.replan(ctx, waitsFor(what), visits))
		}
	}
	s.mu.Lock()
	s.lame = err != nil && s.cluster
	s.mu.Unlock()
	if err != nil {
		return swept, &store.PartialError{Cause: explain("sweep", err)}
	}
	return swept, nil
}

// isPartial reports whether an error leaves something of a call that holds.
func isPartial(err error) bool {
	_, is := errors.AsType[*store.PartialError](err)
	return is
}

// replan is plan of what a sweep has found.
func (s *Store) replan(ctx context.Context, what waitsFor, visits []visit) error {
	ctx, cancel := s.phase(ctx, 1)
	defer cancel()
	return s.plan(ctx, what, visits)
}

// due returns the records in a stretch whose leases seem to have run out, and by
// what they wait for the shards where something waits. With a *store.PartialError these are those
// of some shards.
func (s *Store) due(ctx context.Context, from, to, limit int) (ids []store.ID, waiting [2][]visit, err error) {
	var names []string
	for shard := from; shard < to; shard++ {
		names = append(names, s.index(shard), s.queues(shard, toRun), s.queues(shard, toSend))
	}
	ctx, cancel := s.phase(ctx, 3)
	defer cancel()
	lists, err := s.evalEach(ctx, dueScript, names, 3, strconv.Itoa(limit), strconv.Itoa(shardNames))
	if err != nil && !isPartial(err) {
		return nil, waiting, err
	}
	for i, list := range lists {
		if list == nil {
			continue
		}
		if len(list) != 1+len(waiting) {
			return nil, waiting, errReply(list)
		}
		dead, ok := list[0].([]any)
		if !ok {
			return nil, waiting, errReply(list[0])
		}
		some, err := identities(dead)
		if err != nil {
			return nil, waiting, err
		}
		ids = append(ids, some...)
		for what := range waiting {
			found, err := waitingIn(from+i, list[1+what])
			if err != nil {
				return nil, waiting, err
			}
			waiting[what] = append(waiting[what], found...)
		}
	}
	return ids, waiting, err
}

// waitingIn are the queues of a shard in which something waits, with when it is due.
func waitingIn(shard int, reply any) (visits []visit, err error) {
	pairs, ok := reply.([]any)
	if !ok || len(pairs)%2 != 0 {
		return nil, errReply(reply)
	}
	for i := 0; i < len(pairs); i += 2 {
		name, named := pairs[i].(string)
		us, ok := pairs[i+1].(int64)
		if !ok || !named {
			return nil, errReply(pairs)
		}
		visits = append(visits, visit{spot: spot{shard, name}, next: time.Duration(us) * time.Microsecond, more: true})
	}
	return visits, nil
}

// shardKeys names one key of each shard in a stretch, which ends with the last
// shard at the latest.
func shardKeys(of func(shard int) string, from int) (all []string) {
	for shard := from; shard < min(from+stretch, shards); shard++ {
		all = append(all, of(shard))
	}
	return all
}

// evalEach runs a script that returns a list for each shard, of which names has so
// many keys each. With a *store.PartialError the lists of those that could not be asked
// are nil.
func (s *Store) evalEach(ctx context.Context, sc script, names []string, keys int, args ...string) ([][]any, error) {
	together := len(names)
	if s.cluster {
		together = keys
	}
	calls := slices.Collect(slices.Chunk(names, together))
	lists := make([][]any, len(names)/keys)
	err, failed := first(s.each(len(calls), func(i int) error {
		reply, err := s.eval(ctx, sc, calls[i], args...)
		if err != nil {
			return err
		}
		all, ok := reply.([]any)
		if !ok || len(all) != len(calls[i])/keys {
			return errReply(reply)
		}
		for n, l := range all {
			list, ok := l.([]any)
			if !ok {
				return errReply(l)
			}
			lists[i*together/keys+n] = list
		}
		return nil
	}))
	switch {
	case failed == 0:
		return lists, nil
	case failed == len(calls):
		return nil, err
	}
	return lists, &store.PartialError{Cause: err}
}

// identities are those in a list.
func identities(list []any) (ids []store.ID, err error) {
	for _, m := range list {
		id, err := identity(m)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func identity(member any) (store.ID, error) {
	m, ok := member.(string)
	if !ok || len(m) != len(store.ID{}) {
		return store.ID{}, errReply(member)
	}
	return store.ID([]byte(m)), nil
}

// park parks those of the records whose lease has run out. With an error, it is of some
// of them only.
func (s *Store) park(ctx context.Context, ids []store.ID) (parked int, err error) {
	ctx, cancel := s.phase(ctx, 2)
	defer cancel()
	groups := s.group(len(ids), func(i int) store.ID { return ids[i] })
	counts := make([]int64, len(groups))
	err, _ = first(s.each(len(groups), func(g int) error {
		var names []string
		args := []string{s.channel}
		for _, i := range groups[g] {
			k := s.keys(ids[i])
			names = append(names, k.record, k.index, k.list)
			args = append(args, string(ids[i][:]))
		}
		reply, err := s.eval(ctx, parkScript, names, args...)
		if err != nil {
			return err
		}
		n, ok := reply.(int64)
		if !ok {
			return errReply(reply)
		}
		counts[g] = n
		return nil
	}))
	for _, n := range counts {
		parked += int(n)
	}
	return parked, err
}
