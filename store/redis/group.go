package redis

import (
	"context"
	"sync"
	"time"

	"github.com/stet-go/stet/store"
)

const (
	maxGroup = 128 // records that one script works on, so that none keeps the server for long
	atATime  = 8   // scripts of one call that run concurrently, except in a cluster
)

// group divides n things into lists that one script may work on: the
// keys of a script must be in one slot of a cluster.
func (s *Store) group(n int, id func(i int) store.ID) (groups [][]int) {
	open := make(map[int]int) // by shard: the list that is not full
	for i := range n {
		shard := 0
		if s.cluster {
			shard = shardOf(id(i))
		}
		g, ok := open[shard]
		if !ok || len(groups[g]) == maxGroup {
			g = len(groups)
			groups = append(groups, nil)
			open[shard] = g
		}
		groups[g] = append(groups[g], i)
	}
	return groups
}

// each is concurrently, in a cluster without a limit: calls to a server that is down do not
// delay others.
func (s *Store) each(n int, do func(i int) error) []error {
	if s.cluster {
		return concurrently(shards, n, do)
	}
	return concurrently(atATime, n, do)
}

// concurrently calls do for 0 to n-1, up to limit at a time, and returns the error of each.
func concurrently(limit, n int, do func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	turn := make(chan struct{}, limit)
	for i := range n {
		turn <- struct{}{}
		wg.Go(func() {
			errs[i] = do(i)
			<-turn
		})
	}
	wg.Wait()
	return errs
}

// first returns the first error of errs and the number of errors.
func first(errs []error) (n int, err error) {
	for _, e := range errs {
		if e == nil {
			continue
		}
		if n++; err == nil {
			err = e
		}
	}
	return n, err
}

// aPhase is how long a step of a call waits for a cluster's server if the call has no deadline.
const aPhase = 3 * time.Second

// phase limits a step of a call with that many steps left: a step that waits for a server that
// is down must leave time for the others.
func (s *Store) phase(ctx context.Context, left int) (context.Context, context.CancelFunc) {
	if !s.cluster {
		return ctx, func() {}
	}
	wait := aPhase
	if end, ok := ctx.Deadline(); ok {
		wait = time.Until(end) / time.Duration(left)
	}
	return context.WithTimeout(ctx, wait)
}
