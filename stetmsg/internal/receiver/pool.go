package receiver

import (
	"context"
	"slices"
	"sync"
)

// Pool runs jobs, in the order in which they are started. At most size of them are in flight,
// waiting ones included, and at most width run at a time. Create it with NewPool.
type Pool struct {
	size, width int

	mu      sync.Mutex
	held    int           // slots taken
	running int           // jobs
	queue   []job         // that wait
	freed   chan struct{} // closed when a slot is released; nil without waiting calls
	jobs    sync.WaitGroup
}

type job struct {
	run   func()
	pulse func() // keeps the message in flight while the job waits; may be nil
}

// NewPool returns a pool of size slots in which width jobs run at a time.
func NewPool(size, width int) *Pool { return &Pool{size: size, width: min(width, size)} }

// Await waits until at least n slots are free, of which there are not more than NewPool was
// given. It returns false if ctx has ended.
func (p *Pool) Await(ctx context.Context, n int) bool { return p.await(ctx, n, false) }

// Reserve is Await that takes the slots, for as many calls of Run.
func (p *Pool) Reserve(ctx context.Context, n int) bool { return p.await(ctx, n, true) }

func (p *Pool) await(ctx context.Context, n int, take bool) bool {
	for ctx.Err() == nil {
		p.mu.Lock()
		if p.size-p.held >= n {
			if take {
				p.held += n
			}
			p.mu.Unlock()
			return true
		}
		if p.freed == nil {
			p.freed = make(chan struct{})
		}
		freed := p.freed
		p.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
		}
	}
	return false
}

// Free returns how many slots are free. After Start it can be negative.
func (p *Pool) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.size - p.held
}

// Release releases n slots that were reserved and are not needed.
func (p *Pool) Release(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release(n)
}

// release is Release for a caller that holds p.mu.
func (p *Pool) release(n int) {
	p.held -= n
	if p.freed != nil {
		close(p.freed)
		p.freed = nil
	}
}

// Run runs f in a slot that was reserved, when fewer than width others run.
func (p *Pool) Run(f func()) { p.start(job{run: f}, 0) }

// Start is Run that takes a slot, even if none is free. Pulse calls pulse while f waits.
func (p *Pool) Start(f, pulse func()) { p.start(job{f, pulse}, 1) }

func (p *Pool) start(j job, slots int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held += slots
	p.queue = append(p.queue, j)
	p.dispatch()
}

// dispatch starts goroutines for waiting jobs. The caller holds p.mu.
func (p *Pool) dispatch() {
	for p.running < p.width && len(p.queue) > 0 {
		run := p.queue[0].run
		p.queue[0] = job{}
		p.queue = p.queue[1:]
		p.running++
		p.jobs.Go(func() {
			defer p.ended() // also after runtime.Goexit
			run()
		})
	}
}

func (p *Pool) ended() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	p.release(1)
	p.dispatch()
}

// Pulse calls the pulses of the jobs that wait.
func (p *Pool) Pulse() {
	p.mu.Lock()
	waiting := slices.Clone(p.queue)
	p.mu.Unlock()
	for _, j := range waiting {
		if j.pulse != nil {
			j.pulse()
		}
	}
}

// Wait waits for all jobs. No job may be started during the call. Jobs that wait run at once,
// to find that their context has ended.
func (p *Pool) Wait() {
	p.mu.Lock()
	width := p.width
	p.width = max(p.size, p.held)
	p.dispatch()
	p.mu.Unlock()
	p.jobs.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.width = width
}
