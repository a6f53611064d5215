package receiver

import (
	"context"
	"slices"
	"sync"
)

// Lanes runs jobs. It bounds how many messages are in flight and how many of them run at a
// time, and keeps the jobs of a group in order. Create it with NewLanes.
//
// A goroutine that has ended a job continues with the job that waits longest: starting or
// waking a goroutine for each message would cost as much as everything else.
type Lanes struct {
	size, width int

	mu      sync.Mutex
	held    int           // slots taken
	running int           // goroutines that are not idle
	queue   []job         // that could run, in the order of their start, from head on
	head    int           // of queue
	idle    []chan job    // one for each goroutine that waits, the last to have ended a job last; none ends it
	freed   chan struct{} // closed when need slots are free; nil without waiting calls
	need    int
	lanes   map[string][]job // that wait for another one of their lane, which runs or is in queue
	jobs    sync.WaitGroup
	wg      sync.WaitGroup // goroutines
}

// Job is the work to do with a message.
type Job interface {
	Run()
	// Pulse keeps the message in flight until Run does.
	Pulse()
}

// compact is the least number of finished jobs in the queue before the others are moved to its
// beginning.
const compact = 32

// job is a job in progress; none if it has no Job.
type job struct {
	lane string
	Job
}

// plain is a job that needs no pulse.
type plain func()

func (f plain) Run() { f() }
func (plain) Pulse() {}

// NewLanes returns lanes for at most size jobs in flight, waiting ones included, of which
// width run at a time.
func NewLanes(size, width int) *Lanes {
	return &Lanes{size: size, width: min(width, size), lanes: make(map[string][]job)}
}

// Await waits until at least n slots are free, of which there are not more than
// NewLanes was given. It returns false if ctx has ended.
func (l *Lanes) Await(ctx context.Context, n int) bool { return l.await(ctx, n, false) }

// await waits for n free slots, and takes them if take is true.
func (l *Lanes) await(ctx context.Context, n int, take bool) bool {
	for ctx.Err() == nil {
		l.mu.Lock()
		if l.size-l.held >= n {
			if take {
				l.held += n
			}
			l.mu.Unlock()
			return true
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
	return false
}

// Free returns how many slots are free, which is less than none after Start.
func (l *Lanes) Free() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.size - l.held
}

// free releases a slot. The caller holds l.mu.
func (l *Lanes) free() {
	l.held--
	if l.freed != nil && l.size-l.held >= l.need {
		close(l.freed)
		l.freed = nil
	}
}

// Go waits for a free slot and then has a goroutine run f: after the jobs that were
// given to the lane before, unless lane is "", and when there are fewer than width
// others. It returns false, and runs nothing, if ctx ends first.
func (l *Lanes) Go(ctx context.Context, lane string, f func()) bool {
	if !l.await(ctx, 1, true) {
		return false
	}
	l.start(job{lane, plain(f)}, 0)
	return true
}

// Reserve waits for n free slots, of which there are not more than NewLanes was
// given, and takes them, for as many calls of Run. It returns false, and takes none,
// if ctx ends first.
func (l *Lanes) Reserve(ctx context.Context, n int) bool { return l.await(ctx, n, true) }

// Release releases n slots that were reserved and are not needed.
func (l *Lanes) Release(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range n {
		l.free()
	}
}

// Run is Go without a lane, in a slot that was reserved.
func (l *Lanes) Run(f func()) { l.start(job{Job: plain(f)}, 0) }

// Start is Go without a lane, in one slot more where none is free. While the job waits, it
// is pulsed by Pulse.
func (l *Lanes) Start(j Job) { l.start(job{Job: j}, 1) }

// Pulse calls the pulses of the jobs that wait for others to end.
func (l *Lanes) Pulse() {
	l.mu.Lock()
	waiting := slices.Clone(l.queue[l.head:])
	l.mu.Unlock()
	for _, j := range waiting {
		j.Pulse()
	}
}

// start takes so many slots, and has a job run when it is its turn.
func (l *Lanes) start(j job, slots int) {
	l.jobs.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held += slots
	if j.lane != "" {
		if waiting, busy := l.lanes[j.lane]; busy {
			l.lanes[j.lane] = append(waiting, j)
			return
		}
		l.lanes[j.lane] = nil
	}
	l.queue = append(l.queue, j)
	l.dispatch()
}

// dispatch starts goroutines for the queued jobs. The caller holds l.mu.
func (l *Lanes) dispatch() {
	for l.running < l.width && l.head < len(l.queue) {
		j := l.next()
		l.running++
		if last := len(l.idle) - 1; last >= 0 {
			l.idle[last] <- j
			l.idle = l.idle[:last]
		} else {
			l.wg.Go(func() { l.work(j) })
		}
	}
}

// next takes the first of the queue; none if it is empty. The caller holds l.mu.
func (l *Lanes) next() (j job) {
	if l.head == len(l.queue) {
		return job{}
	}
	j, l.queue[l.head] = l.queue[l.head], job{}
	switch l.head++; {
	case l.head == len(l.queue):
		l.queue, l.head = l.queue[:0], 0
	case l.head > len(l.queue)/2 && l.head >= compact:
		n := copy(l.queue, l.queue[l.head:])
		clear(l.queue[n:])
		l.queue, l.head = l.queue[:n], 0
	}
	return j
}

// work runs j and the jobs after it, until there is none.
func (l *Lanes) work(j job) {
	more := make(chan job, 1)
	for j.Job != nil {
		if j = l.run(j, more); j.Job == nil {
			j = <-more
		}
	}
}

// run runs a job. It returns the next one, if there is any; else the next one comes
// by more.
func (l *Lanes) run(j job, more chan job) (next job) {
	returned := false
	defer func() {
		l.mu.Lock()
		if l.free(); j.lane != "" {
			l.follow(j.lane)
		}
		if l.running <= l.width {
			next = l.next()
		}
		switch {
		case next.Job == nil:
			l.running--
			if returned {
				l.idle = append(l.idle, more)
			}
		case !returned: // runtime.Goexit ends this goroutine
			l.wg.Go(func() { l.work(next) })
		}
		l.mu.Unlock()
		l.jobs.Done()
	}()
	j.Run()
	returned = true
	return job{}
}

// follow puts the next job of a lane into the queue. The caller holds l.mu.
func (l *Lanes) follow(lane string) {
	waiting := l.lanes[lane]
	if len(waiting) == 0 {
		delete(l.lanes, lane)
		return
	}
	l.lanes[lane] = waiting[1:]
	l.queue = append(l.queue, waiting[0])
}

// Wait waits for all jobs. No job may be started during the call. Jobs that wait for a free
// place run at once, to find that their context has ended.
func (l *Lanes) Wait() {
	l.mu.Lock()
	width := l.width
	l.width = max(l.size, l.held)
	l.dispatch()
	l.mu.Unlock()
	l.jobs.Wait()
	l.mu.Lock()
	l.width = width
	for _, more := range l.idle {
		more <- job{}
	}
	l.idle = nil
	l.mu.Unlock()
	l.wg.Wait()
}
