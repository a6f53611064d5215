package postgres

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/stet-go/stet/store"
)

// batcher lets concurrent calls share statements. While a lane is free a call
// goes out at once, in its caller's goroutine; with all lanes in use calls
// gather, and what has gathered goes out as one when a lane is free. There is
// no window of time to wait for company in.
type batcher[T any] struct {
	run   func(ctx context.Context, batch []*op[T])
	limit int // calls that wait
	most  int // calls in a batch
	bytes int // of a batch, unless it is one call
	size  func(*T) int
	// patience is how long a batch may take that was gathered. Its callers may have left, and
	// a lane that waits for a dead connection would be lost.
	patience time.Duration

	mu     sync.Mutex
	lanes  int // free ones
	queue  []*op[T]
	head   int // of queue
	closed bool
	wg     sync.WaitGroup // lanes in use
	ctx    context.Context
}

// op is one call. It belongs to its batch until done.
type op[T any] struct {
	v    T
	err  error
	slow bool          // it has to be dealt with alone
	done chan struct{} // nil if it is alone
	gone bool          // its caller has left while it queued; guarded by batcher.mu
}

// do has v dealt with and returns the result. When ctx ends, a call that
// still queues has done nothing; one that is on its way may take effect.
func (b *batcher[T]) do(ctx context.Context, v T) (*op[T], error) {
	o := &op[T]{v: v}
	b.mu.Lock()
	switch {
	case b.closed:
		b.mu.Unlock()
		return nil, errClosed
	case b.lanes > 0:
		b.lanes--
		b.wg.Add(1)
		b.mu.Unlock()
		defer b.next()
		b.run(ctx, []*op[T]{o})
		return o, o.err
	case len(b.queue)-b.head >= b.limit:
		b.mu.Unlock()
		return nil, fmt.Errorf("postgres: %d calls wait, the limit of Options.MaxQueue: %w", b.limit, store.ErrNotDone)
	}
	o.done = make(chan struct{})
	b.queue = append(b.queue, o)
	b.mu.Unlock()
	select {
	case <-o.done:
		return o, o.err
	case <-ctx.Done():
	}
	b.mu.Lock()
	o.gone = true
	b.mu.Unlock()
	return nil, fmt.Errorf("postgres: it may or may not take effect: %w", context.Cause(ctx))
}

// next gives a lane back, or keeps it busy if calls have gathered.
func (b *batcher[T]) next() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.head < len(b.queue) {
		go b.drain()
		return
	}
	b.lanes++
	b.wg.Done()
}

// drain keeps one lane busy for as long as there are calls.
func (b *batcher[T]) drain() {
	var batch []*op[T]
	for {
		batch = b.gather(batch[:0])
		if len(batch) == 0 {
			return
		}
		b.runGathered(batch)
		for _, o := range batch {
			close(o.done)
		}
		clear(batch)
		runtime.Gosched() // callers that were just answered come with the next batch
	}
}

func (b *batcher[T]) runGathered(batch []*op[T]) {
	ctx, cancel := context.WithTimeout(b.ctx, b.patience)
	defer cancel()
	b.run(ctx, batch)
}

// gather takes the calls of the next batch; if there are none it gives the lane
// back.
func (b *batcher[T]) gather(batch []*op[T]) []*op[T] {
	b.mu.Lock()
	defer b.mu.Unlock()
	for size := 0; b.head < len(b.queue) && len(batch) < b.most; b.head++ {
		o := b.queue[b.head]
		if o.gone {
			b.queue[b.head] = nil
			continue
		}
		if size += b.size(&o.v); size > b.bytes && len(batch) > 0 {
			break
		}
		b.queue[b.head] = nil
		batch = append(batch, o)
	}
	if b.head == len(b.queue) {
		b.queue, b.head = b.queue[:0], 0
	} else if b.head > len(b.queue)/2 {
		n := copy(b.queue, b.queue[b.head:])
		clear(b.queue[n:])
		b.queue, b.head = b.queue[:n], 0
	}
	if len(batch) == 0 {
		b.lanes++
		b.wg.Done()
	}
	return batch
}

// close refuses new calls and waits for those at work.
func (b *batcher[T]) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.wg.Wait()
}
