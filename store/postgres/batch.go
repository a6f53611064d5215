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
	even  bool // lanes share the calls: for statements that cost little by themselves
	// patience is how long a batch may take that was gathered. Its callers may have left, and
	// a lane that waits for a dead connection would be lost.
	patience time.Duration

	mu     sync.Mutex
	lanes  int // free ones
	used   int // the others
	soon   int // of those: they have answered, and go out with what comes now
	sent   int // calls that are on their way
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
	done chan struct{} // gets one value, unless it goes out alone; made when it is needed
	gone bool          // its caller has left while it queued; guarded by batcher.mu
}

// do has v dealt with and returns the result.
func (b *batcher[T]) do(ctx context.Context, v T) (*op[T], error) {
	o := &op[T]{v: v}
	return o, b.deal(ctx, o)
}

// deal has o dealt with. When ctx ends, a call that still queues has done nothing; one that is on
// its way may take effect. After an error o may be in use still.
func (b *batcher[T]) deal(ctx context.Context, o *op[T]) error {
	b.mu.Lock()
	switch {
	case b.closed:
		b.mu.Unlock()
		return errClosed
	case b.lanes > 0 && (b.soon == 0 || !b.even):
		b.take()
		b.sent++
		b.mu.Unlock()
		defer b.next()
		b.run(ctx, []*op[T]{o})
		return o.err
	case len(b.queue)-b.head >= b.limit:
		b.mu.Unlock()
		return fmt.Errorf("postgres: %d calls wait, the limit of Options.MaxQueue: %w", b.limit, store.ErrNotDone)
	}
	if o.done == nil {
		o.done = make(chan struct{}, 1)
	}
	b.queue = append(b.queue, o)
	b.mu.Unlock()
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
	}
	b.mu.Lock()
	o.gone = true
	b.mu.Unlock()
	return fmt.Errorf("postgres: it may or may not take effect: %w", context.Cause(ctx))
}

// next gives a lane back, or keeps it busy if calls have gathered.
func (b *batcher[T]) next() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent--
	if b.head < len(b.queue) {
		go b.drain()
		return
	}
	b.free()
}

// take takes a lane that is free. The caller holds b.mu.
func (b *batcher[T]) take() {
	b.lanes--
	b.used++
	b.wg.Add(1)
}

// free gives a lane back. The caller holds b.mu.
func (b *batcher[T]) free() {
	b.lanes++
	b.used--
	b.wg.Done()
}

// drain keeps one lane busy for as long as there are calls.
func (b *batcher[T]) drain() {
	var batch []*op[T]
	for soon := 0; ; soon = 1 {
		batch = b.gather(batch[:0], soon)
		if len(batch) == 0 {
			return
		}
		b.runGathered(batch)
		b.answer(batch)
		clear(batch)
	}
}

// mostYields is how often a lane lets others run before it goes out with less than it came with.
const mostYields = 4

// answer answers the calls of a batch, and lets callers that were just answered come with the next
// one, as most of them do: there is no wait for them, but others run first that can. Where lanes
// share the calls none goes out alone meanwhile: all but the first would come with the next batch.
func (b *batcher[T]) answer(batch []*op[T]) {
	b.mu.Lock()
	b.soon++
	b.sent -= len(batch)
	came := len(b.queue) - b.head
	b.mu.Unlock()
	for _, o := range batch {
		o.done <- struct{}{} // from here on it is its caller's
	}
	for range mostYields {
		runtime.Gosched()
		before := came
		if came = b.waiting(); came == before || came >= len(batch) {
			return
		}
	}
}

// waiting is how many calls wait for a lane.
func (b *batcher[T]) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue) - b.head
}

func (b *batcher[T]) runGathered(batch []*op[T]) {
	ctx, cancel := context.WithTimeout(b.ctx, b.patience)
	defer cancel()
	b.run(ctx, batch)
}

// fewShare is how many calls are not shared out.
const fewShare = 8

// share is how many of the calls that wait go with the next batch: all lanes get as many, or one
// would have nearly all callers, for good, and the others next to none. The caller holds b.mu.
func (b *batcher[T]) share() int {
	n, lanes := len(b.queue)-b.head, b.lanes+b.used
	if b.even && n > fewShare {
		n = min(n, (n+b.sent+lanes-1)/lanes)
	}
	return min(n, b.most)
}

// gather takes the calls of the next batch; if there are none it gives the lane
// back. soon is 1 if the lane has answered, else 0.
func (b *batcher[T]) gather(batch []*op[T], soon int) []*op[T] {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.soon -= soon
	most := b.share()
	for size := 0; b.head < len(b.queue) && len(batch) < most; b.head++ {
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
	b.sent += len(batch)
	switch {
	case len(batch) == 0:
		b.free()
	case len(b.queue) > 0 && b.lanes > 0:
		b.take()
		go b.drain()
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
