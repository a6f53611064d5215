package mysql

import (
	"bytes"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	driver "github.com/go-sql-driver/mysql"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/store"
)

const (
	maxBatch   = 256     // calls in one transaction
	batchBytes = 1 << 20 // of their rows together, unless it is one call
	batchTries = 8
	slowCalls  = 4 // connections that wait for rows of other transactions, at most half of Options.MaxConns
)

// op is one call about one record.
type op struct {
	ctx  context.Context
	id   store.ID
	size int
	// apply decides what the call changes in the row, and returns its answer. It may be called again.
	// An error changes nothing.
	apply func(now micros, r *row) (store.Record, error)

	rec  store.Record
	err  error
	r    *row
	gone bool          // its caller has left while it waited; batcher.mu guards it
	done chan struct{} // closed when the call has ended
}

// batcher lets concurrent calls share transactions. A call that finds a free connection runs at once.
// Otherwise calls queue, and all that have queued are the next batch. No call waits for others to come.
type batcher struct {
	mu     sync.Mutex
	queue  []*op
	free   int // connections
	limit  int // of calls that wait
	closed bool
	wg     sync.WaitGroup
	slow   chan struct{} // has a value for each connection that waits for a row
}

func (b *batcher) start(writers int, o Options) {
	b.free, b.limit = writers, o.MaxQueue
	b.slow = make(chan struct{}, min(slowCalls, o.MaxConns/2-1))
}

func (b *batcher) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// close refuses new calls and waits for those in progress.
func (b *batcher) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.wg.Wait()
}

// do executes a call about one record.
func (s *Store) do(ctx context.Context, id store.ID, size int, apply func(now micros, r *row) (store.Record, error)) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	o := &op{ctx: ctx, id: id, size: size, apply: apply, done: make(chan struct{})}
	b := &s.batches
	b.mu.Lock()
	switch {
	case b.closed:
		b.mu.Unlock()
		return store.Record{}, errClosed
	case len(b.queue) >= b.limit:
		b.mu.Unlock()
		return store.Record{}, undone{fmt.Errorf("mysql: %d calls wait for a connection, the limit of Options.MaxQueue; nothing was done", b.limit)}
	}
	b.queue = append(b.queue, o)
	if b.free > 0 {
		b.free--
		b.wg.Go(s.drain)
	}
	b.mu.Unlock()
	select {
	case <-o.done:
		return o.rec, o.err
	case <-ctx.Done():
	}
	b.mu.Lock()
	o.gone = true
	queued := slices.Contains(b.queue, o)
	b.mu.Unlock()
	err := fmt.Errorf("mysql: the call takes too long; it may or may not take effect: %w", context.Cause(ctx))
	if queued {
		err = undone{fmt.Errorf("mysql: the call waited for a connection, and nothing was done: %w", context.Cause(ctx))}
	}
	return store.Record{}, err
}

// drain executes batches on one connection until no call queues.
func (s *Store) drain() {
	for ops := s.batches.gather(); len(ops) > 0; ops = s.batches.gather() {
		s.run(ops)
		runtime.Gosched() // most of the callers make their next call at once, and it joins the next batch
	}
}

// gather takes the calls of the next batch; if there are none, it frees the connection.
func (b *batcher) gather() (ops []*op) {
	b.mu.Lock()
	defer b.mu.Unlock()
	size, n := 0, 0
	for _, o := range b.queue {
		if size += o.size; len(ops) == maxBatch || size > batchBytes && len(ops) > 0 {
			break
		}
		if n++; !o.gone {
			ops = append(ops, o)
		}
	}
	b.queue = slices.Delete(b.queue, 0, n)
	if len(ops) == 0 {
		b.free++
	}
	return ops
}

// run executes a batch, and ends its calls. A call that must wait for another transaction continues by
// itself. So does each call of a batch that the server refuses: only one of them is at fault.
func (s *Store) run(ops []*op) {
	for len(ops) > 0 {
		slices.SortStableFunc(ops, func(a, b *op) int { return bytes.Compare(a.id[:], b.id[:]) })
		t := &batchTx{s: s, ops: ops}
		err := t.execute(s.ctx)
		if err != nil && len(ops) > 1 && numberOf(err) != 0 {
			for _, o := range ops {
				s.runAlone(o)
			}
			return
		}
		for _, o := range t.held {
			s.runSlow(o)
		}
		for _, o := range ops {
			if slices.Contains(t.held, o) || slices.Contains(t.later, o) {
				continue
			}
			if err != nil {
				o.err = err
			}
			close(o.done)
		}
		if ops = t.later; err != nil {
			for _, o := range ops {
				o.err = err
				close(o.done)
			}
			return
		}
	}
}

// runSlow has a call wait for its row beside the batches.
func (s *Store) runSlow(o *op) {
	s.batches.wg.Go(func() {
		defer close(o.done)
		select {
		case s.batches.slow <- struct{}{}:
			defer func() { <-s.batches.slow }()
		case <-o.ctx.Done():
			o.err = undone{fmt.Errorf("mysql: another transaction has the record locked: %w", context.Cause(o.ctx))}
			return
		}
		for {
			t := &batchTx{s: s, ops: []*op{o}, wait: true}
			err := t.execute(o.ctx)
			if numberOf(err) == errLockWait && o.ctx.Err() == nil && !s.batches.isClosed() {
				continue
			}
			if err != nil {
				o.err = err
			}
			return
		}
	})
}

// runAlone executes a call in a transaction of its own.
func (s *Store) runAlone(o *op) {
	t := &batchTx{s: s, ops: []*op{o}}
	err := t.execute(s.ctx)
	if len(t.held) > 0 {
		s.runSlow(o)
		return
	}
	if err != nil {
		o.err = err
	}
	close(o.done)
}

// batchTx is the transaction of a batch, whose calls are sorted by ID.
type batchTx struct {
	s     *Store
	ops   []*op
	wait  bool  // for rows that other transactions have locked
	held  []*op // their rows are locked by other transactions
	later []*op // the row has a fence that is not drawn yet

	conn *sql.Conn
	now  micros
	step int64
	rows []*row // in the order of IDs
}

// execute executes the batch. It repeats what the server has rolled back.
func (t *batchTx) execute(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for try := 1; ; try++ {
		err = t.once(ctx)
		n := numberOf(err)
		again := n == errDeadlock || n == errDuplicate || errors.Is(err, sqldriver.ErrBadConn)
		if !again || try == batchTries || ctx.Err() != nil {
			break
		}
	}
	if err == nil {
		return nil
	}
	if t.s.ctx.Err() != nil {
		return errClosed
	}
	return err
}

// once is one try.
func (t *batchTx) once(ctx context.Context) (err error) {
	if t.conn, err = t.s.own.Conn(ctx); err != nil {
		return undone{explain("connect", err)}
	}
	defer func() { _ = t.conn.Close() }()
	if err := t.read(ctx); err != nil {
		t.rollback()
		return undone{explain("read", err)}
	}
	t.apply()
	if !slices.ContainsFunc(t.rows, func(r *row) bool { return r.dirty }) {
		t.rollback()
		if t.s.late.Load() && slices.ContainsFunc(t.rows, func(r *row) bool { return !r.durable(t.now) }) {
			return t.s.confirm(ctx)
		}
		return nil
	}
	err = t.write(ctx)
	switch n := numberOf(err); {
	case err == nil:
		return nil
	case n != 0:
		t.rollback()
		return undone{explain("write", err)}
	}
	t.discard()
	return fmt.Errorf("%w (the record may or may not have been written)", explain("write", err))
}

// read begins the transaction and reads and locks the rows, in one round trip.
func (t *batchTx) read(ctx context.Context) error {
	var ids []any
	for i, o := range t.ops {
		if i == 0 || o.id != t.ops[i-1].id {
			ids = append(ids, o.id[:])
		}
	}
	b := &t.s.t.batch
	in := list(len(ids))
	text, args := b.begin+b.lock+in+" FOR UPDATE"+b.header, ids
	if !t.wait {
		text = b.begin + "SELECT id FROM " + t.s.t.records + " FORCE INDEX (PRIMARY) WHERE id IN " + in + "; " + b.lock + in + " FOR UPDATE SKIP LOCKED" + b.header
		args = append(slices.Clip(ids), ids...)
	}
	a, err := t.s.answer(ctx, t.conn, text, args...)
	if err != nil {
		return err
	}
	if err := a.refusal(); err != nil {
		return err
	}
	t.now, t.step, t.rows, t.held, t.later = a.now, a.step, nil, nil, nil
	for i, o := range t.ops {
		if i > 0 && o.id == t.ops[i-1].id {
			o.r = t.ops[i-1].r
			continue
		}
		o.r = a.row(o.id)
		if !o.r.stored && a.seen[o.id] {
			o.r = nil // locked
			continue
		}
		t.rows = append(t.rows, o.r)
	}
	return nil
}

// apply decides all calls.
func (t *batchTx) apply() {
	for _, o := range t.ops {
		switch {
		case o.r == nil:
			t.held = append(t.held, o)
			continue
		case o.r.drawn:
			t.later = append(t.later, o)
			continue
		}
		o.rec, o.err = o.apply(t.now, o.r)
	}
}

// write writes the rows and commits, in one round trip.
func (t *batchTx) write(ctx context.Context) error {
	var inserted, drawn, kept []*row
	for _, r := range t.rows {
		switch {
		case !r.dirty:
		case !r.stored:
			inserted = append(inserted, r)
		case r.drawn:
			drawn = append(drawn, r)
		default:
			kept = append(kept, r)
		}
	}
	var text strings.Builder
	var args []sqldriver.NamedValue
	add := func(verb string, rows []*row) {
		if len(rows) == 0 {
			return
		}
		text.WriteString(verb)
		for i, r := range rows {
			if i > 0 {
				text.WriteString(", ")
			}
			text.WriteString(rowMarks)
			for _, v := range r.values() {
				args = append(args, sqldriver.NamedValue{Ordinal: len(args) + 1, Value: v})
			}
		}
		text.WriteString("; ")
	}
	add(t.s.t.insert, inserted)
	add(t.s.t.replace, drawn)
	add(t.s.t.replace, kept)
	text.WriteString("COMMIT")
	fault.At(fault.CommitBefore)
	ids, err := execAll(ctx, t.conn, text.String(), args)
	fault.At(fault.CommitAfter)
	if err != nil {
		return err
	}
	for _, rows := range [][]*row{inserted, drawn} {
		if len(rows) == 0 {
			continue
		}
		for i, r := range rows { // one statement draws consecutive numbers
			r.Fence = ids[0] + int64(i)*t.step
		}
		ids = ids[1:]
	}
	for _, o := range t.ops {
		if o.r != nil && o.rec.Fence == pending {
			o.rec.Fence = o.r.Fence
		}
	}
	return nil
}

var rowMarks = list(columnCount)

// execAll executes statements, and returns the first number that each has drawn.
func execAll(ctx context.Context, conn *sql.Conn, text string, args []sqldriver.NamedValue) (ids []int64, err error) {
	err = conn.Raw(func(c any) error {
		for i := range args {
			if b, ok := args[i].Value.(bool); ok {
				args[i].Value = int64(0)
				if b {
					args[i].Value = int64(1)
				}
			}
		}
		res, err := c.(sqldriver.ExecerContext).ExecContext(ctx, text, args)
		if err != nil {
			return err
		}
		ids = res.(driver.Result).AllLastInsertIds()
		return nil
	})
	return ids, err
}

// rollback ends the transaction, or the connection.
func (t *batchTx) rollback() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := t.conn.ExecContext(ctx, "ROLLBACK"); err != nil {
		t.discard()
	}
}

// discard closes the connection, and its transaction with it.
func (t *batchTx) discard() {
	_ = t.conn.Raw(func(any) error { return sqldriver.ErrBadConn })
}
