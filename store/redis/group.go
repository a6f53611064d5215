package redis

import (
	"errors"
	"sync"

	"github.com/stet-go/stet"
)

const (
	maxGroup = 128 // records that one script works on, so that none keeps the server for long
	atATime  = 8   // scripts of one call that are under way together
)

// group divides n things into lists of those that one script may work on: the
// keys of a script must be in one slot of a cluster.
func (s *Store) group(n int, id func(i int) stet.ID) (groups [][]int) {
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

// concurrently calls do for 0 to n-1, a few at a time.
func concurrently(n int, do func(i int) error) error {
	if n == 1 {
		return do(0)
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	turn := make(chan struct{}, atATime)
	for i := range n {
		turn <- struct{}{}
		wg.Go(func() {
			errs[i] = do(i)
			<-turn
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
