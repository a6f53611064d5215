package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/timer"
)

// errClosed is what every call gets after Close.
var errClosed error = undone{errors.New("sqlite: the store is closed")}

// errGivenUp is what the others of a batch get when its leader panicked.
var errGivenUp = errors.New("sqlite: the transaction was given up (" + uncertain + ")")

// How long the file's lock is left alone before it is tried again.
const (
	pollMin = time.Millisecond
	pollMax = 2 * time.Millisecond
)

// How long this process has the file's lock time after time, and then leaves it to
// others, who poll: long enough for them to find it free.
const (
	longTurn = 100 * time.Millisecond
	rest     = 2 * pollMax
)

// writer is the right of this process to write: one holder at a time, in the order of the
// calls. SQLite's own lock is polled, which is neither fair nor fast. With this queue only the
// holder polls, and only for other processes and the service's own transactions. Callers in
// the queue can leave when their contexts end, and know that nothing was done.
//
// A holder is exclusive (RunTx) or leads a batch: all operations that arrived until it had the
// file's lock. A leader executes one batch, and then passes the right to the caller that waits
// longest.
type writer struct {
	mu     sync.Mutex
	held   bool
	closed bool
	turn   uint64 // of the next to queue
	ops    list
	alone  list // who waits to be exclusive
	limit  int  // of waiting callers, in all
	batch  int  // most operations in one transaction

	// The holder's.
	blocked time.Time // since when another has the file's lock; zero if none has
	began   time.Time // when this process took the lock that it has kept since, but for moments
	freed   time.Time // when it was last given up
}

// op is one caller of the writer.
type op struct {
	ctx   context.Context
	asked time.Time
	apply func(*batch) error // nil for an exclusive one
	err   error              // what apply returned
	ended bool               // err is set

	turn       uint64
	prev, next *op
	listed     *list

	// wake receives true if the op leads, and false if it has ended. Only a queued op has one.
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
		return false, undone{fmt.Errorf("sqlite: %d calls wait for the writer, the limit of Options.MaxQueue; "+nothing, w.limit)}
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
	w.freed = time.Now()
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

// missed checks, after the context of a caller has ended, whether it was woken. A leader must
// not leave without passing on the right.
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
				return gaveUp(ctx, "the writer")
			}
			<-o.wake // it is our turn this very moment
		}
	}
	return nil
}

// close refuses new callers, and waits for the others. It reports
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

// gaveUp is the error of a call whose context ended while it waited.
func gaveUp(ctx context.Context, what string) error {
	return undone{fmt.Errorf("sqlite: while waiting for %s; "+nothing+": %w", what, context.Cause(ctx))}
}

// lock has begin called by the writer's holder until it gets the file's lock, for
// as long as ctx lasts, and at most BusyTimeout of the time since it was asked for
// in which another had the lock. So many callers in a row wait no longer than one.
func (s *Store) lock(ctx context.Context, asked time.Time, begin func() error) error {
	now := time.Now()
	if now.Sub(s.w.freed) < rest && now.Sub(s.w.began) > longTurn {
		time.Sleep(rest)
		now = now.Add(rest)
	}
	if now.Sub(s.w.freed) >= rest {
		s.w.began = now
	}
	for pause := pollMin; ; pause = min(2*pause, pollMax) {
		err := begin()
		if err == nil {
			s.w.blocked = time.Time{}
			return nil
		}
		if !isBusy(err) {
			return undone{s.explain("begin", err, nothing)}
		}
		now := time.Now()
		s.w.began = now
		if s.w.blocked.IsZero() {
			s.w.blocked = now
		}
		left := s.o.BusyTimeout - min(now.Sub(asked), now.Sub(s.w.blocked))
		if left <= 0 {
			return undone{s.explain("begin", err, nothing)}
		}
		again := time.NewTimer(min(left, timer.Around(pause)))
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return gaveUp(ctx, "the file's lock, which another process or a transaction from DB has")
		}
	}
}

// write has apply executed in a batch, and returns its result. A caller
// whose ctx ends before its batch has begun leaves, and nothing was done; after
// that it leaves as well, and cannot know.
func (s *Store) write(ctx context.Context, apply func(*batch) error) error {
	if err := s.nested(ctx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	o := &op{ctx: ctx, asked: time.Now(), apply: apply}
	leads, err := s.w.enter(o)
	if err != nil {
		return err
	}
	if !leads {
		select {
		case leads = <-o.wake:
		case <-ctx.Done():
			if s.w.leave(o) {
				return gaveUp(ctx, "the writer")
			}
			var woken bool
			if leads, woken = s.w.missed(o); !woken {
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

// lead executes o and what waits with it, and passes.
func (s *Store) lead(o *op) {
	ops := []*op{o}
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
	}()
	if err := s.begin(o); err != nil {
		o.err, o.ended = err, true
		return
	}
	ops = s.w.gather(ops)
	s.execute(ops)
}
