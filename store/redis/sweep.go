package redis

import (
	"context"
	"strconv"

	"github.com/stet-go/stet"
)

// stretch is how many shards one Sweep, or one step of Browse, looks at.
const stretch = 64

// Sweep implements stet.Sweeper. It parks the dead, for which it goes round the
// shards, some in each call. Results and records expire in Redis by themselves,
// and are not counted.
func (s *Store) Sweep(ctx context.Context, limit int) (swept stet.Swept, err error) {
	if err := s.begin(ctx); err != nil {
		return swept, err
	}
	s.mu.Lock()
	from := s.cursor
	s.cursor = (from + stretch) % shards
	s.mu.Unlock()
	limit = max(limit, 1)
	due, err := s.indexed(ctx, dueScript, shardKeys(s.index, from), strconv.Itoa(limit))
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
	swept.More = len(due) >= limit || from+stretch < shards
	return swept, err
}

// shardKeys names one key of each shard in a stretch, which ends with the last
// shard at the latest.
func shardKeys(of func(shard int) string, from int) (all []string) {
	for shard := from; shard < min(from+stretch, shards); shard++ {
		all = append(all, of(shard))
	}
	return all
}

// indexed runs a script that returns a list of identities for each key of all,
// of which each is of another shard.
func (s *Store) indexed(ctx context.Context, sc script, all []string, args ...string) (ids []stet.ID, err error) {
	calls := [][]string{all}
	if s.cluster {
		calls = nil
		for i := range all {
			calls = append(calls, all[i:i+1])
		}
	}
	found := make([][]stet.ID, len(calls))
	err = concurrently(len(calls), func(i int) error {
		reply, err := s.eval(ctx, sc, calls[i], args...)
		if err != nil {
			return err
		}
		found[i], err = identities(reply)
		return err
	})
	for _, f := range found {
		ids = append(ids, f...)
	}
	return ids, err
}

// identities flattens lists of identities.
func identities(reply any) (ids []stet.ID, err error) {
	lists, ok := reply.([]any)
	if !ok {
		return nil, errReply(reply)
	}
	for _, l := range lists {
		list, ok := l.([]any)
		if !ok {
			return nil, errReply(l)
		}
		for _, m := range list {
			member, ok := m.(string)
			if !ok || len(member) != len(stet.ID{}) {
				return nil, errReply(m)
			}
			ids = append(ids, stet.ID([]byte(member)))
		}
	}
	return ids, nil
}

// park parks those of the records whose lease has run out.
func (s *Store) park(ctx context.Context, ids []stet.ID) (parked int, err error) {
	groups := s.group(len(ids), maxGroup, func(i int) stet.ID { return ids[i] })
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
