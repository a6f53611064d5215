package sqlite

import (
	"errors"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
)

// batch is one write transaction that holds the operations of many callers.
type batch struct {
	*link
	now     micros
	changed bool
	fences  fences
}

// exec is that of the link; it notes whether there is anything to commit.
func (b *batch) exec(q query, args ...any) (int64, error) {
	n, err := b.link.exec(q, args...)
	b.changed = b.changed || n > 0
	return n, err
}

// draw draws a fence.
func (b *batch) draw() (int64, error) { return b.fences.draw(b) }

// fences draws fences inside a write transaction, in which nobody else can. Those
// that no row takes are drawn again by the next.
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

// execute carries out ops in one transaction and says of each what it came to.
// If one of them breaks the transaction, each gets one of its own, so that it
// fails alone.
func (s *Store) execute(ops []*op) {
	err := s.transact(ops)
	if errors.Is(err, errBroken) && len(ops) > 1 {
		for i := range ops {
			_ = s.transact(ops[i : i+1]) // each has been given its error
		}
	}
}

// errBroken: a statement failed in a way that ends the transaction.
var errBroken = errors.New("the transaction is broken")

// transact executes ops in one transaction. Except with errBroken, each op has
// ended then.
func (s *Store) transact(ops []*op) (err error) {
	if s.writer == nil {
		s.writer, err = dial(s.background, s.connector)
	}
	if err == nil {
		_, err = s.writer.exec(qBegin)
	}
	if err != nil {
		return endAll(ops, s.explain("begin", err, "nothing was done"))
	}
	open := true
	defer func() {
		if open {
			s.rollback()
		}
	}()
	b := batch{link: s.writer, now: s.o.Clock().UnixMicro()}
	for _, o := range ops {
		err := o.apply(&b)
		if err == nil || errors.Is(err, stet.ErrMismatch) || errors.Is(err, stet.ErrFenced) || errors.Is(err, stet.ErrInvalid) {
			o.err = err
			continue
		}
		err = s.explain("write", err, "nothing was done")
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
	if err != nil {
		return endAll(ops, s.explain("commit", err, "it may or may not have taken effect"))
	}
	open = false
	return endAll(ops, nil)
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
