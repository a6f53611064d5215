package redis

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/stet-go/stet"
)

// stretch is how many shards one Sweep, or one step of Browse, looks at.
const stretch = 64

// Sweep implements stet.Sweeper. It parks the dead, for which it goes round the
// shards, some in each call, and puts back into the agenda whatever waits there.
// Results and records expire in Redis by themselves, and are not counted.
func (s *Store) Sweep(ctx context.Context, limit int) (swept stet.Swept, err error) {
	if err := s.begin(ctx); err != nil {
		return swept, err
	}
	s.mu.Lock()
	from := s.cursor
	s.cursor = (from + stretch) % shards
	s.mu.Unlock()
	limit = max(limit, 1)
	due, waiting, err := s.due(ctx, from, limit)
	if err != nil {
		return swept, explain("sweep", err)
	}
	if len(due) >= limit {
		due = due[:limit]
		s.mu.Lock()
		s.cursor = from // here is more
		s.mu.Unlock()
	}
	swept.Parked, err = s.park(ctx, due)
	for what, visits := range waiting {
		if len(visits) > 0 {
			err = errors.Join(err, explained("sweep", s.plan(ctx, stet.Due(what), visits)))
		}
	}
	swept.More = len(due) >= limit || from+stretch < shards
	return swept, err
}

// due returns the records in a stretch whose leases seem to have run out, and by
// stet.Due the shards where something waits.
func (s *Store) due(ctx context.Context, from, limit int) (ids []stet.ID, waiting [2][]visit, err error) {
	var names []string
	for shard := from; shard < min(from+stretch, shards); shard++ {
		names = append(names, s.index(shard), s.queue(shard, stet.DueRun), s.queue(shard, stet.DueRelay))
	}
	lists, err := s.evalEach(ctx, dueScript, names, 3, strconv.Itoa(limit))
	if err != nil {
		return nil, waiting, err
	}
	for i, list := range lists {
		if len(list) < len(waiting) {
			return nil, waiting, errReply(list)
		}
		for what := range waiting {
			if us, ok := list[what].(int64); ok {
				waiting[what] = append(waiting[what], visit{shard: from + i, next: time.Duration(us) * time.Microsecond, more: true})
			}
		}
		some, err := identities(list[len(waiting):])
		if err != nil {
			return nil, waiting, err
		}
		ids = append(ids, some...)
	}
	return ids, waiting, nil
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
// many keys each.
func (s *Store) evalEach(ctx context.Context, sc script, names []string, keys int, args ...string) (lists [][]any, err error) {
	together := len(names)
	if s.cluster {
		together = keys
	}
	calls := slices.Collect(slices.Chunk(names, together))
	found := make([][]any, len(calls))
	err = concurrently(len(calls), func(i int) error {
		reply, err := s.eval(ctx, sc, calls[i], args...)
		if err != nil {
			return err
		}
		all, ok := reply.([]any)
		if !ok || len(all) != len(calls[i])/keys {
			return errReply(reply)
		}
		found[i] = all
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, all := range found {
		for _, l := range all {
			list, ok := l.([]any)
			if !ok {
				return nil, errReply(l)
			}
			lists = append(lists, list)
		}
	}
	return lists, nil
}

// identities are those in a list.
func identities(list []any) (ids []stet.ID, err error) {
	for _, m := range list {
		id, err := identity(m)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func identity(member any) (stet.ID, error) {
	m, ok := member.(string)
	if !ok || len(m) != len(stet.ID{}) {
		return stet.ID{}, errReply(member)
	}
	return stet.ID([]byte(m)), nil
}

// park parks those of the records whose lease has run out.
func (s *Store) park(ctx context.Context, ids []stet.ID) (parked int, err error) {
	groups := s.group(len(ids), func(i int) stet.ID { return ids[i] })
	counts := make([]int64, len(groups))
	err = concurrently(len(groups), func(g int) error {
		var names []string
		args := []string{s.channel}
		for _, i := range groups[g] {
			k := s.keys(ids[i])
			names = append(names, k.record, k.index, k.list)
			args = append(args, string(ids[i][:]))
		}
		reply, err := s.eval(ctx, parkScript, names, args...)
		if err != nil {
			return explain("sweep", err)
		}
		n, ok := reply.(int64)
		if !ok {
			return errReply(reply)
		}
		counts[g] = n
		return nil
	})
	for _, n := range counts {
		parked += int(n)
	}
	return parked, err
}
