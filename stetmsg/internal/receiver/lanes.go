package receiver

import (
	"context"
	"sync"
)

// Lanes runs jobs: they bound how many messages are in hand at a time, and keep
// those of one group in their order. Make them with NewLanes.
//
// A goroutine that has ended a job waits for the next: a new one would have to
// grow its stack for each message, which costs more than all else about it.
type Lanes struct {
	size int

	mu    sync.Mutex
	held  int           // slots taken
	idle  []chan *job   // one for each goroutine that waits, the last to have ended a job last; nil ends it
	freed chan struct{} // closed when need slots are free; nil if nobody waits
	need  int
	lanes map[string][]*job // that wait; one that runs is not among them
	jobs  sync.WaitGroup
	wg    sync.WaitGroup // goroutines
}

// job is what a message is to be done with.
type job struct {
	lane string
	run  func()
}

// NewLanes returns lanes for at most n jobs in hand, those that wait for another one
// of their lane included.
func NewLanes(n int) *Lanes {
	return &Lanes{size: n, lanes: make(map[string][]*job)}
}

// Await waits until at least n slots are free, of which there are not more than
// NewLanes was given. It returns false if ctx has ended.
func (l *Lanes) Await(ctx context.Context, n int) bool {
	return l.await(ctx, n, 0) > 0
}

// Reserve waits until at least n slots are free and takes all that are, each for
// one Start or to be given back by Return. It returns how many, 0 if ctx has ended.
func (l *Lanes) Reserve(ctx context.Context, n int) int {
	return l.await(ctx, n, l.size)
}

// await waits for n free slots, takes most of them at most, and returns how many
// were free; 0 if ctx has ended.
func (l *Lanes) await(ctx context.Context, n, most int) int {
	for ctx.Err() == nil {
		l.mu.Lock()
		if free := l.size - l.held; free >= n {
			l.held += min(free, most)
			l.mu.Unlock()
			return free
		}
		if l.freed == nil {
			l.freed, l.need = make(chan struct{}), n
		}
		l.need = min(l.need, n)
		freed := l.freed
		l.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
		}
	}
	return 0
}

// Return gives back n slots of Reserve.
func (l *Lanes) Return(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free(n)
}

// free gives back n slots. The caller holds l.mu.
func (l *Lanes) free(n int) {
	l.held -= n
	if l.freed != nil && l.size-l.held >= l.need {
		close(l.freed)
		l.freed = nil
	}
}

// Go waits for a free slot and then runs f in a goroutine: at once if lane is
// "", else after the jobs that were given to the lane before. It returns false,
// and runs nothing, if ctx ends first.
func (l *Lanes) Go(ctx context.Context, lane string, f func()) bool {
	if l.await(ctx, 1, 1) == 0 {
		return false
	}
	l.start(&job{lane, f})
	return true
}

// Start runs f at once in a goroutine, in a slot of Reserve.
func (l *Lanes) Start(f func()) { l.start(&job{"", f}) }

func (l *Lanes) start(j *job) {
	l.jobs.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if j.lane != "" {
		if waiting, busy := l.lanes[j.lane]; busy {
			l.lanes[j.lane] = append(waiting, j)
			return
		}
		l.lanes[j.lane] = nil
	}
	if last := len(l.idle) - 1; last >= 0 {
		l.idle[last] <- j
		l.idle = l.idle[:last]
		return
	}
	l.wg.Go(func() { l.work(j) })
}

// work runs jobs until it is told to end.
func (l *Lanes) work(j *job) {
	more := make(chan *job, 1)
	for j != nil {
		if j = l.run(j, more); j == nil {
			j = <-more
		}
	}
}

// run runs a job. It returns the next of its lane, if one waits; else the next
// one comes by more.
func (l *Lanes) run(j *job, more chan *job) (next *job) {
	returned := false
	defer func() {
		l.mu.Lock()
		if l.free(1); j.lane != "" {
			next = l.follow(j.lane)
		}
		switch {
		case returned && next == nil:
			l.idle = append(l.idle, more)
		case !returned && next != nil: // runtime.Goexit ends this goroutine
			l.wg.Go(func() { l.work(next) })
		}
		l.mu.Unlock()
		l.jobs.Done()
	}()
	j.run()
	returned = true
	return nil
}

// follow takes the next job of a lane. The caller holds l.mu.
func (l *Lanes) follow(lane string) *job {
	waiting := l.lanes[lane]
	if len(waiting) == 0 {
		delete(l.lanes, lane)
		return nil
	}
	l.lanes[lane] = waiting[1:]
	return waiting[0]
}

// Wait waits for all jobs. Nobody may start one meanwhile.
func (l *Lanes) Wait() {
	l.jobs.Wait()
	l.mu.Lock()
	for _, more := range l.idle {
		more <- nil
	}
	l.idle = nil
	l.mu.Unlock()
	l.wg.Wait()
}
