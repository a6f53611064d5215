package postgres

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/stet-go/stet/store"
)

// batcher lets concurrent calls share statements. While a connection is free, a call runs at once in
// its caller's goroutine. Otherwise calls queue, and all that have queued run as one batch when a
// connection is free. No call waits for others to come.
type batcher[T any] struct {
	run   func(ctx context.Context, batch []*op[T])
	limit int // calls that wait
	most  int // calls in a batch
	bytes int // of a batch, unless it is one call
	size  func(*T) int
	// patience is how long a batch that has queued may take. Its callers may have left, and
	// a dead connection would be waited for permanently.
	patience time.Duration
	ctx      context.Context

	mu     sync.Mutex
	free   int // connections
	queue  []*op[T]
	closed bool
	wg     sync.WaitGroup // connections in use
}

// op is one call. It belongs to its batch until done.
type op[T any] struct {
	v    T
	err  error
	slow bool          // it must run alone
	done chan struct{} // is closed when it has run; nil if its caller runs it
	gone bool          // its caller has left while it queued; guarded by batcher.mu
}

// do runs v and returns the result. If ctx ends, a call that still queues has no effect; one in
// progress may take effect.
func (b *batcher[T]) do(ctx context.Context, v T) (*op[T], error) {
	o := &op[T]{v: v}
	b.mu.Lock()
	switch {
	case b.closed:
		b.mu.Unlock()
		return o, errClosed
	case b.free > 0:
		b.free--
		b.wg.Add(1)
		b.mu.Unlock()
		defer b.next()
		b.run(ctx, []*op[T]{o})
		return o, o.err
	case len(b.queue) >= b.limit:
		b.mu.Unlock()
		return o, fmt.Errorf("postgres: %d calls wait already: %w", b.limit, store.ErrNotDone)
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
	return o, fmt.Errorf("postgres: it may or may not take effect: %w", context.Cause(ctx))
}

// next frees a connection, or uses it for the calls that queue.
func (b *batcher[T]) next() {
	if batch := b.gather(); len(batch) > 0 {
		go b.drain(batch)
	}
}

// drain runs batches on one connection until no call queues.
func (b *batcher[T]) drain(batch []*op[T]) {
	for ; len(batch) > 0; batch = b.gather() {
		ctx, cancel := context.WithTimeout(b.ctx, b.patience)
		b.run(ctx, batch)
		cancel()
		for _, o := range batch {
			close(o.done) // from here on it is its caller's
		}
		runtime.Gosched() // most of these callers make their next call at once, and it joins the next batch
	}
}

// gather takes the calls of the next batch; if there are none it frees the connection.
func (b *batcher[T]) gather() (batch []*op[T]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	size := 0
	for len(b.queue) > 0 && len(batch) < b.most {
		o := b.queue[0]
		if !o.gone {
			if size += b.size(&o.v); size > b.bytes && len(batch) > 0 {
				break
			}
			batch = append(batch, o)
		}
		b.queue[0] = nil
		b.queue = b.queue[1:]
	}
	if len(batch) == 0 {
		b.free++
		b.wg.Done()
	}
	return batch
}

// close refuses new calls and waits for those in progress.
func (b *batcher[T]) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.wg.Wait()
}
