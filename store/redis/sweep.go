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

const (
	stretch    = 64 // shards that one Sweep, or one step of Browse, reads
	shardNames = 16 // names of a shard, under which something waits, that one step reads
)

// Sweep implements store.Sweeper. It marks runs with expired leases as unknown and writes the
// queues that are not empty into the schedule. Each call reads some shards; the next continues
// there. Redis deletes expired results and records by itself; they are not counted.
func (s *Store) Sweep(ctx context.Context, limit int) (swept store.Swept, err error) {
	if err := s.begin(ctx); err != nil {
		return swept, err
	}
	s.position.mu.Lock()
	from, to := s.position.cursor, s.position.cursor+stretch
	if s.position.degraded { // each step waits for the server that is down: fewer steps
		to += 3 * stretch
	}
	to = min(to, shards)
	s.position.cursor = to % shards
	s.position.mu.Unlock()
	limit = max(limit, 1)
	expired, waiting, err := s.readShards(ctx, from, to, limit)
	if partial, ok := errors.AsType[*store.PartialError](err); ok {
		err = partial.Cause
	} else if err != nil {
		return swept, explain("sweep", err)
	}
	full := len(expired) >= limit
	swept.More = full || to < shards
	marked, unmarked := s.markUnknown(ctx, expired[:min(len(expired), limit)])
	swept.MarkedUnknown = marked
	err = cmp.Or(err, unmarked)
	for what, reads := range waiting {
		if len(reads) > 0 {
			limited, cancel := s.phase(ctx, 1)
			err = cmp.Or(err, s.writeSchedule(limited, waitsFor(what), reads))
			cancel()
		}
	}
	s.position.mu.Lock()
	if full {
		s.position.cursor = from // there is more here
	}
	s.position.degraded = err != nil && s.cluster
	s.position.mu.Unlock()
	if err != nil {
		return swept, &store.PartialError{Cause: explain("sweep", err)}
	}
	return swept, nil
}

// readShards returns the records of some shards whose leases seem to have expired, and by kind
// the queues that are not empty. With a *store.PartialError these are those of some shards.
func (s *Store) readShards(ctx context.Context, from, to, limit int) (ids []store.ID, waiting [len(queueNames)][]queueRead, err error) {
	var names []string
	for shard := from; shard < to; shard++ {
		names = append(names, s.index(shard), s.queues(shard, toRun), s.queues(shard, toSend))
	}
	ctx, cancel := s.phase(ctx, 3)
	defer cancel()
	lists, partial := s.evalEach(ctx, sweepScript, names, 3, strconv.Itoa(limit), strconv.Itoa(shardNames))
	for i, list := range lists {
		if list == nil {
			continue
		}
		p := partsOf(list)
		expired := partsOf(next[[]any](p))
		for expired.more() {
			ids = append(ids, expired.id())
		}
		err = cmp.Or(err, expired.err)
		for what := range waiting {
			pairs := partsOf(next[[]any](p))
			for pairs.more() {
				waiting[what] = append(waiting[what], queueRead{spot: spot{from + i, next[string](pairs)}, next: time.Duration(next[int64](pairs)) * time.Microsecond, more: true})
			}
			err = cmp.Or(err, pairs.err)
		}
		if err = cmp.Or(p.err, err); err != nil {
			return nil, waiting, err
		}
	}
	return ids, waiting, partial
}

// evalEach runs a script that returns a list for each shard. Each shard has the given number of
// keys in names. With a *store.PartialError the lists of shards whose server does not answer
// are nil.
func (s *Store) evalEach(ctx context.Context, sc script, names []string, keys int, args ...string) ([][]any, error) {
	together := len(names)
	if s.cluster {
		together = keys
	}
	calls := slices.Collect(slices.Chunk(names, together))
	lists := make([][]any, len(names)/keys)
	failed, err := first(s.each(len(calls), func(i int) error {
		reply, err := s.eval(ctx, sc, calls[i], args...)
		if err != nil {
			return err
		}
		p := partsOf(reply)
		for n := range len(calls[i]) / keys {
			lists[i*together/keys+n] = next[[]any](p)
		}
		return p.err
	}))
	switch {
	case failed == 0:
		return lists, nil
	case failed == len(calls):
		return nil, err
	}
	return lists, &store.PartialError{Cause: err}
}

// markUnknown marks the records with expired leases unknown, and makes those due that may
// be repeated. An error concerns some of them only.
func (s *Store) markUnknown(ctx context.Context, ids []store.ID) (marked int, err error) {
	ctx, cancel := s.phase(ctx, 2)
	defer cancel()
	groups := s.group(len(ids), func(i int) store.ID { return ids[i] })
	counts := make([]int64, len(groups))
	_, err = first(s.each(len(groups), func(g int) error {
		var names []string
		args := []string{s.channel}
		for _, i := range groups[g] {
			k := s.keys(ids[i])
			names = append(names, k.record, k.index, k.list)
			args = append(args, string(ids[i][:]))
		}
		reply, err := s.eval(ctx, markUnknownScript, names, args...)
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
		marked += int(n)
	}
	return marked, err
}
