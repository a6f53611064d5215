package receiver

import (
	"context"
	"sync"
)

// Lanes runs jobs: they bound how many messages are in hand at a time, and keep
// those of one group in their order. Make them with NewLanes.
type Lanes struct {
	size int

	mu    sync.Mutex
	held  int           // jobs in hand
	freed chan struct{} // closed, and replaced, when one has ended
	lanes map[string][]func()
	wg    sync.WaitGroup
}

// NewLanes returns lanes for at most n jobs in hand, those that wait for another one
// of their lane included.
func NewLanes(n int) *Lanes {
	return &Lanes{size: n, freed: make(chan struct{}), lanes: make(map[string][]func())}
}

// Await waits until at least n slots are free, of which there are not more than
// NewLanes was given. It returns false if ctx has ended.
func (l *Lanes) Await(ctx context.Context, n int) bool {
	for ctx.Err() == nil {
		l.mu.Lock()
		free, freed := l.size-l.held, l.freed
		l.mu.Unlock()
		if free >= n {
			return true
		}
		select {
		case <-freed:
		case <-ctx.Done():
		}
	}
	return false
}

// Free returns how many slots are free.
func (l *Lanes) Free() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.size - l.held
}

// Go waits for a free slot and then runs job in a goroutine: at once if lane is
// "", else after the jobs that were given to the lane before. It returns false,
// and runs nothing, if ctx ends first. Only one goroutine may call Go.
func (l *Lanes) Go(ctx context.Context, lane string, job func()) bool {
	if !l.Await(ctx, 1) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held++
	if lane == "" {
		l.wg.Go(func() { l.run(job) })
		return true
	}
	if waiting, busy := l.lanes[lane]; busy {
		l.lanes[lane] = append(waiting, job)
		return true
	}
	l.lanes[lane] = nil
	l.wg.Go(func() { l.drive(lane, job) })
	return true
}

func (l *Lanes) run(job func()) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.held--
		close(l.freed)
		l.freed = make(chan struct{})
	}()
	job()
}

// drive runs the jobs of a lane until there are none.
func (l *Lanes) drive(lane string, job func()) {
	for {
		l.run(job)
		l.mu.Lock()
		waiting := l.lanes[lane]
		if len(waiting) == 0 {
			delete(l.lanes, lane)
			l.mu.Unlock()
			return
		}
		job, l.lanes[lane] = waiting[0], waiting[1:]
		l.mu.Unlock()
	}
}

// Wait waits for all jobs. Nobody may call Go meanwhile.
func (l *Lanes) Wait() { l.wg.Wait() }
