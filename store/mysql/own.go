package mysql

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"

	"github.com/stet-go/stet/internal/fault"
)

// inOwn executes statements that begin a transaction and read, and then the statements that decide returns, on a
// connection of the store. It repeats what the server has rolled back because of a deadlock.
func (s *Store) inOwn(ctx context.Context, text string, args []any, decide func(*answer) (string, []any)) (err error) {
	if s.batches.isClosed() {
		return errClosed
	}
	for range batchTries {
		err = s.inOwnOnce(ctx, text, args, decide)
		if numberOf(err) != errDeadlock && !errors.Is(err, sqldriver.ErrBadConn) {
			break
		}
	}
	return err
}

func (s *Store) inOwnOnce(ctx context.Context, text string, args []any, decide func(*answer) (string, []any)) error {
	conn, err := s.own.Conn(ctx)
	if err != nil {
		return undone{err}
	}
	defer func() { _ = conn.Close() }()
	t := &batchTx{s: s, conn: conn}
	a, err := s.answer(ctx, conn, text, args...)
	if err == nil {
		err = a.refusal()
	}
	if err != nil {
		t.rollback()
		return undone{err}
	}
	change, values := decide(a)
	if change == "" {
		t.rollback()
		return nil
	}
	fault.At(fault.CommitBefore)
	_, err = conn.ExecContext(ctx, change+"; COMMIT", values...)
	fault.At(fault.CommitAfter)
	if numberOf(err) != 0 {
		t.rollback()
		return undone{err}
	}
	if err != nil {
		t.discard()
	}
	return err
}
