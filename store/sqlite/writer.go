package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
	sqlite3 "modernc.org/sqlite/lib"
)

// errClosed is what every call gets after Close.
var errClosed error = undone{errors.New("sqlite: the store is closed")}

// errGivenUp is what the others of a batch get when its leader panicked.
var errGivenUp = errors.New("sqlite: the transaction was given up (" + uncertain + ")")

// How long a caller waits before it tries the file's lock again.
const (
	pollMin = time.Millisecond
	pollMax = 2 * time.Millisecond
)

// A process that has held the file's lock for longTurn, apart from moments, leaves it free for a
// rest: other processes poll, and must find it free.
const (
	longTurn = 100 * time.Millisecond
	rest     = 2 * pollMax
)

// writer is the right of this process to write. One caller holds it at a time, in the order of the
// calls. SQLite's own lock is polled, which is neither fair nor fast: only the holder polls it.
//
// A holder is exclusive (RunTx), or executes a batch: all operations that have arrived by then, in one
// transaction.
type writer struct {
	turn  chan struct{} // holds a value if no caller writes
	over  chan struct{} // closed when the store is
	limit int           // of waiting callers
	batch int           // most operations in one transaction

	mu        sync.Mutex // guards these
	ops       []*op      // that wait for a batch, in the order of the calls
	exclusive int        // callers that wait for their turn
	closed    bool

	// These are the holder's.
	blocked time.Time // since when another process has had the file's lock; zero if none has
	began   time.Time // when this process took the lock that it has had since, apart from moments
	freed   time.Time // when it was last released
}

func newWriter(limit, batch int) *writer {
	w := &writer{turn: make(chan struct{}, 1), over: make(chan struct{}), limit: limit, batch: batch}
	w.turn <- struct{}{}
	return w
}

// op is one operation of a batch.
type op struct {
	ctx   context.Context
	asked time.Time
	apply func(*session) error
	err   error         // set before done is closed
	done  chan struct{} // closed when the operation has ended
}

func (o *op) end(err error) {
	o.err = err
	close(o.done)
}

func (o *op) ended() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// admit refuses a caller if the store is closed, or too many wait. The caller holds w.mu.
func (w *writer) admit() error {
	switch {
	case w.closed:
		return errClosed
	case len(w.turn) == 0 && len(w.ops)+w.exclusive >= w.limit:
		return undone{fmt.Errorf("sqlite: %d calls wait for the writer, the limit of Options.MaxQueue; "+nothing, w.limit)}
	}
	return nil
}

// acquire waits for an exclusive turn. release ends it.
func (w *writer) acquire(ctx context.Context) error {
	w.mu.Lock()
	if err := w.admit(); err != nil {
		w.mu.Unlock()
		return err
	}
	w.exclusive++
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.exclusive--
		w.mu.Unlock()
	}()
	select {
	case <-w.turn:
		return nil
	case <-w.over:
		return errClosed
	case <-ctx.Done():
		return gaveUp(ctx, "the writer")
	}
}

// release ends the holder's turn. The caller that waits longest is the next holder.
func (w *writer) release() {
	w.freed = time.Now()
	w.turn <- struct{}{}
}

// leave removes an operation that no batch has taken yet; false if one has.
func (w *writer) leave(o *op) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.ops, o)
	if i >= 0 {
		w.ops = slices.Delete(w.ops, i, i+1)
	}
	return i >= 0
}

// take returns the operations of the next batch.
func (w *writer) take() []*op {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(w.ops), w.batch)
	ops := slices.Clone(w.ops[:n])
	w.ops = slices.Delete(w.ops, 0, n)
	return ops
}

// close refuses new callers, and waits for the holder. It reports whether it was the first call.
func (w *writer) close() bool {
	w.mu.Lock()
	first := !w.closed
	w.closed = true
	w.mu.Unlock()
	if first {
		<-w.turn
		close(w.over)
	}
	return first
}

func (w *writer) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

// gaveUp is the error of a call whose context ended while it waited.
func gaveUp(ctx context.Context, what string) error {
	return undone{fmt.Errorf("sqlite: while waiting for %s; "+nothing+": %w", what, context.Cause(ctx))}
}

// begin begins a transaction for the holder of the writer. It waits for the file's lock until ctx
// ends, and at most BusyTimeout of the time since the call in which another process had the lock:
// many callers in a row wait no longer than one.
func (s *Store) begin(ctx context.Context, asked time.Time) (*sql.Tx, error) {
	now := time.Now()
	if now.Sub(s.w.freed) < rest && now.Sub(s.w.began) > longTurn {
		time.Sleep(rest)
		now = now.Add(rest)
	}
	if now.Sub(s.w.freed) >= rest {
		s.w.began = now
	}
	for pause := pollMin; ; pause = min(2*pause, pollMax) {
		// Without cancellation: database/sql would roll back beneath the caller's function.
		tx, err := s.writes.BeginTx(context.WithoutCancel(ctx), nil)
		if err == nil {
			s.w.blocked = time.Time{}
			return tx, nil
		}
		now := time.Now()
		s.w.began = now
		if s.w.blocked.IsZero() {
			s.w.blocked = now
		}
		left := s.o.BusyTimeout - min(now.Sub(asked), now.Sub(s.w.blocked))
		if !isBusy(err) || left <= 0 {
			return nil, undone{s.explain("begin", err, nothing)}
		}
		again := time.NewTimer(min(left, timer.Around(pause)))
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return nil, gaveUp(ctx, "the file's lock, which another process or a transaction from DB has")
		}
	}
}

// write has apply executed in a batch, and returns its result. If ctx ends before the batch takes the
// operation, nothing was done; after that, the caller cannot know.
func (s *Store) write(ctx context.Context, apply func(*session) error) error {
	if err := s.nested(ctx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	o := &op{ctx: ctx, asked: time.Now(), apply: apply, done: make(chan struct{})}
	s.w.mu.Lock()
	if err := s.w.admit(); err != nil {
		s.w.mu.Unlock()
		return err
	}
	s.w.ops = append(s.w.ops, o)
	s.w.mu.Unlock()
	for !o.ended() {
		select {
		case <-o.done:
		case <-s.w.turn:
			s.lead(o)
		case <-s.w.over:
			if s.w.leave(o) {
				return errClosed
			}
			<-o.done
		case <-ctx.Done():
			if s.w.leave(o) {
				return gaveUp(ctx, "the writer")
			}
			if !o.ended() {
				return fmt.Errorf("sqlite: the transaction takes too long; it may or may not take effect: %w", context.Cause(ctx))
			}
		}
	}
	return o.err
}

// lead executes one batch on behalf of o, which holds the writer, and releases the writer.
func (s *Store) lead(o *op) {
	defer s.w.release()
	if o.ended() {
		return
	}
	tx, err := s.begin(o.ctx, o.asked)
	if err != nil {
		s.w.leave(o)
		o.end(err)
		return
	}
	ops := s.w.take()
	defer func() { // a panic, of the clock for example, must not leave the others waiting
		_ = tx.Rollback()
		for _, o := range ops {
			if !o.ended() {
				o.end(errGivenUp)
			}
		}
	}()
	if s.execute(tx, ops) {
		return
	}
	for i, o := range ops {
		if tx, err := s.begin(o.ctx, o.asked); err != nil {
			o.end(err)
		} else {
			s.execute(tx, ops[i:i+1])
		}
	}
}

// execute executes ops in a transaction, and ends it and them. If one operation breaks the
// transaction, it returns false: each operation needs its own, so that only that one fails.
func (s *Store) execute(tx *sql.Tx, ops []*op) bool {
	defer func() { _ = tx.Rollback() }() // without effect after the commit
	w := s.session(context.Background(), tx)
	errs := make([]error, len(ops))
	for i, o := range ops {
		before := w.changed
		err := o.apply(w)
		if err == nil || errors.Is(err, store.ErrMismatch) || errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrInvalid) ||
			errors.Is(err, store.ErrDamaged) && w.changed == before {
			errs[i] = err
			continue
		}
		if len(ops) > 1 {
			return false
		}
		o.end(undone{s.explain("write", err, nothing)})
		return true
	}
	var err error
	if w.changed > 0 {
		fault.At(fault.CommitBefore)
		err = s.commit(tx)
		fault.At(fault.CommitAfter)
	}
	if code := primary(err); code == sqlite3.SQLITE_FULL || code == sqlite3.SQLITE_BUSY { // the driver has rolled it back, or SQLite itself
		err = undone{s.explain("commit", err, nothing)}
	} else {
		err = s.explain("commit", err, uncertain)
	}
	for i, o := range ops {
		o.end(cmp.Or(err, errs[i]))
	}
	return true
}
