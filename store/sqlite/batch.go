package sqlite

import (
	"errors"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/store"
)

// batch is one write transaction that holds the operations of many callers.
type batch struct {
	*link
	now     micros
	changed bool
	wrote   bool // the operation at work has changed something
	fences  fences
}

// exec is that of the link; it notes whether there is anything to commit.
func (b *batch) exec(q query, args ...any) (int64, error) {
	n, err := b.link.exec(q, args...)
	b.changed, b.wrote = b.changed || n > 0, b.wrote || n > 0
	return n, err
}

// draw draws a fence.
func (b *batch) draw() (int64, error) { return b.fences.draw(b) }

// fences draws fences inside a write transaction, which excludes all others. Fences without a
// row are drawn again by the next transaction.
type fences struct {
	last  int64
	known bool
}

func (f *fences) draw(s session) (int64, error) {
	if !f.known {
		last, err := one(s, qFence)
		if err != nil {
			return 0, err
		}
		f.last, f.known = last, true
	}
	f.last++
	return f.last, nil
}

// begin begins a transaction, for whose lock it waits on behalf of o.
func (s *Store) begin(o *op) error {
	return s.lock(o.ctx, o.asked, func() (err error) {
		if s.writer == nil {
			if s.writer, err = dial(s.background, s.connector); err != nil {
				return err
			}
		}
		_, err = s.writer.exec(qBegin)
		return err
	})
}

// execute carries out ops in the open transaction, and sets the result of each. If one of them
// breaks the transaction, each gets its own, so that only that one fails.
func (s *Store) execute(ops []*op) {
	if err := s.transact(ops); !errors.Is(err, errBroken) || len(ops) == 1 {
		return
	}
	for i, o := range ops {
		if err := s.begin(o); err != nil {
			o.err, o.ended = err, true
			continue
		}
		_ = s.transact(ops[i : i+1]) // each has been given its error
	}
}

// errBroken: a statement failed in a way that ends the transaction.
var errBroken = errors.New("the transaction is broken")

// transact executes ops in the transaction that was begun, and ends it. Except
// with errBroken, each op has ended then.
func (s *Store) transact(ops []*op) (err error) {
	open := true
	defer func() {
		if open {
			s.rollback()
		}
	}()
	b := batch{link: s.writer, now: s.o.Clock().UnixMicro()}
	for _, o := range ops {
		b.wrote = false
		err := o.apply(&b)
		if err == nil || errors.Is(err, store.ErrMismatch) || errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrInvalid) ||
			errors.Is(err, store.ErrDamaged) && !b.wrote {
			o.err = err
			continue
		}
		err = undone{s.explain("write", err, nothing)}
		if len(ops) == 1 {
			o.err, o.ended = err, true
		}
		return errors.Join(errBroken, err)
	}
	if !b.changed {
		return endAll(ops, nil)
	}
	fault.At(fault.CommitBefore)
	_, err = s.writer.exec(qCommit)
	fault.At(fault.CommitAfter)
	if err == nil {
		open = false
		return endAll(ops, nil)
	}
	if code := primary(err); code == codeFull || code == codeBusy {
		// It was still open, or SQLite has rolled it back itself, which it does when the disk is full.
		if _, back := s.writer.exec(qRollback); back == nil || code == codeFull && noTransaction(back) {
			open = false
			return endAll(ops, undone{s.explain("commit", err, nothing)})
		}
	}
	return endAll(ops, s.explain("commit", err, uncertain))
}

// endAll ends ops, with err if it is one.
func endAll(ops []*op, err error) error {
	for _, o := range ops {
		if err != nil {
			o.err = err
		}
		o.ended = true
	}
	return err
}

// rollback ends the writer's transaction, if SQLite has not done so itself. A
// connection that cannot even do that is replaced.
func (s *Store) rollback() {
	if _, err := s.writer.exec(qRollback); err != nil && !noTransaction(err) {
		_ = s.writer.close() // its transaction ends with it
		s.writer = nil
	}
}
