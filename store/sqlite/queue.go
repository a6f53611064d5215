package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// errClosed is what every call gets after Close.
var errClosed = errors.New("sqlite: the store is closed")

// errGivenUp is what the others of a batch get when its leader panicked.
var errGivenUp = errors.New("sqlite: the transaction was given up; it may or may not have taken effect")

// batchPatience is how much longer than the busy timeout a caller whose context
// has ended waits for the batch that it is part of.
const batchPatience = 10 * time.Second

// writer is the right of this process to write: one holder at a time, in the
// order of asking. SQLite's own lock is polled, which is neither fair nor
// quick; with this queue in front of it only other processes, and transactions
// of the service's own, are ever waited for there.
//
// A holder is either exclusive (RunTx) or leads a batch: all operations that
// gathered while its predecessor was at work. A leader serves one batch and
// then hands over to whoever waits longest.
type writer struct {
	mu     sync.Mutex
	held   bool
	closed bool
	turn   uint64 // of the next to queue
	ops    list
	alone  list // who waits to be exclusive
	limit  int  // of those who wait, in all
	batch  int  // most operations in one transaction
}

// op is one caller of the writer.
type op struct {
	apply func(*batch) error // nil for an exclusive one
	err   error              // what apply came to
	ended bool               // err is set

	turn       uint64
	prev, next *op
	listed     *list

	// wake is told that the op leads (true) or that it has ended (false).
	// Only an op that queues has one.
	wake chan bool
}

// list is a queue that can be left from anywhere.
type list struct {
	first, last *op
	n           int
}

func (l *list) push(o *op) {
	o.listed, o.prev, o.next = l, l.last, nil
	if l.last == nil {
		l.first = o
	} else {
		l.last.next = o
	}
	l.last = o
	l.n++
}

func (l *list) remove(o *op) {
	if o.prev == nil {
		l.first = o.next
	} else {
		o.prev.next = o.next
	}
	if o.next == nil {
		l.last = o.prev
	} else {
		o.next.prev = o.prev
	}
	o.listed, o.prev, o.next = nil, nil, nil
	l.n--
}

// enter queues o unless the writer is free. It reports whether o leads now.
func (w *writer) enter(o *op) (leads bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return false, errClosed
	case !w.held:
		w.held = true
		return true, nil
	case w.ops.n+w.alone.n >= w.limit:
		return false, fmt.Errorf("sqlite: %d calls wait for the writer, the limit of Options.MaxQueue; nothing was done", w.limit)
	}
	w.queue(o)
	return false, nil
}

// queue puts o last. The caller holds w.mu.
func (w *writer) queue(o *op) {
	o.wake = make(chan bool, 1)
	o.turn = w.turn
	w.turn++
	if o.apply != nil {
		w.ops.push(o)
	} else {
		w.alone.push(o)
	}
}

// leave takes o out of the queue; false if it is not there any more.
func (w *writer) leave(o *op) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if o.listed == nil {
		return false
	}
	o.listed.remove(o)
	return true
}

// gather appends the operations that wait to those of a leader.
func (w *writer) gather(batch []*op) []*op {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.ops.n > 0 && len(batch) < w.batch {
		o := w.ops.first
		w.ops.remove(o)
		batch = append(batch, o)
	}
	return batch
}

// handOver ends the holder's turn and wakes the next.
func (w *writer) handOver() {
	w.mu.Lock()
	l := &w.ops
	if l.n == 0 || w.alone.n > 0 && w.alone.first.turn < l.first.turn {
		l = &w.alone
	}
	next := l.first
	if next == nil {
		w.held = false
	} else {
		l.remove(next)
		next.wake <- true // it has room; and under the lock, see missed
	}
	w.mu.Unlock()
}

// missed looks once more, when a caller's patience is over, whether it was woken:
// one that was made the leader must not walk away from it.
func (w *writer) missed(o *op) (leads, woken bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case leads = <-o.wake:
		return leads, true
	default:
		return false, false
	}
}

// acquire waits to be the exclusive holder. handOver ends it.
func (w *writer) acquire(ctx context.Context) error {
	o := &op{}
	leads, err := w.enter(o)
	if err != nil {
		return err
	}
	if !leads {
		select {
		case <-o.wake:
		case <-ctx.Done():
			if w.leave(o) {
				return fmt.Errorf("sqlite: while waiting for the writer; nothing was done: %w", context.Cause(ctx))
			}
			<-o.wake // it is our turn this very moment
		}
	}
	return nil
}

// close refuses whoever comes from now on, and waits for the others. It reports
// whether it was the first to do so; the writer is held for good then.
func (w *writer) close() bool {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return false
	}
	w.closed = true
	o := &op{}
	wait := w.held
	if wait {
		w.queue(o)
	}
	w.held = true
	w.mu.Unlock()
	if wait {
		<-o.wake
	}
	return true
}

// write has apply executed in a batch, and returns what it came to. A caller
// whose ctx ends while it queues leaves, and nothing was done; once its batch
// is at work it waits for it, but no longer than patience.
func (s *Store) write(ctx context.Context, apply func(*batch) error) error {
	if err := s.nested(ctx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	o := &op{apply: apply}
	leads, err := s.w.enter(o)
	if err != nil {
		return err
	}
	if !leads {
		select {
		case leads = <-o.wake:
		case <-ctx.Done():
			if s.w.leave(o) {
				return fmt.Errorf("sqlite: while waiting for the writer; nothing was done: %w", context.Cause(ctx))
			}
			patience := time.NewTimer(s.o.BusyTimeout + batchPatience)
			defer patience.Stop()
			select {
			case leads = <-o.wake:
			case <-patience.C:
				var woken bool
				if leads, woken = s.w.missed(o); woken {
					break
				}
				// o belongs to its batch, which may yet wake it.
				return fmt.Errorf("sqlite: the transaction takes too long; it may or may not take effect: %w", context.Cause(ctx))
			}
		}
	}
	if leads {
		s.lead(o)
	}
	return o.err
}

// lead executes o and what waits with it, and hands over.
func (s *Store) lead(o *op) {
	room := roomPool.Get().(*[]*op)
	ops := s.w.gather(append((*room)[:0], o))
	defer func() {
		// The next batch starts while this one's callers are woken.
		s.w.handOver()
		for _, f := range ops {
			if !f.ended { // a panic, of the clock for one, must not strand the others
				f.err = errGivenUp
			}
			if f != o {
				f.wake <- false
			}
		}
		clear(ops)
		*room = ops
		roomPool.Put(room)
	}()
	s.execute(ops)
}

var roomPool = sync.Pool{New: func() any { return new([]*op) }}
