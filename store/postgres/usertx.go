package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet/internal/fault"
)

// sqlLock takes the lock of someLock.
const sqlLock = "SELECT pg_advisory_xact_lock($1::bigint)"

// InTx implements store.WorkTxStore, on a connection of the pool. As in RunTx, fn must not
// end the transaction, and the end of ctx does not interrupt the commit. If the commit is not
// acknowledged, InTx waits up to 10 seconds until the transaction has ended on the server.
//
// It works at READ COMMITTED, also if the server's default is another: above it, a heartbeat's
// write would prevent the commit of a run that is longer than a third of its lease.
// With Options.TxOptions above it InTx is store.ErrInvalid, and fn is not called.
func (s *Store) InTx(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed.Load() {
		return errClosed
	}
	options, err := s.inTxOptions()
	if err != nil {
		return err
	}
	t := &transaction{s: s, options: options}
	if t.conn, err = s.pool.Acquire(ctx); err != nil {
		return explain("begin", err)
	}
	defer t.rollBack() // also when fn panics or calls runtime.Goexit
	if err := t.begin(ctx); err != nil {
		return explain("begin", err)
	}
	if err := fn(ctx, &userTx{t.tx}); err != nil {
		return err
	}
	return t.commitUserTx(ctx)
}

// begin begins the transaction, and takes a lock by which its end can be seen, in one round trip.
func (t *transaction) begin(ctx context.Context) (err error) {
	t.locks = someLock()
	var b pgx.Batch
	b.BeginTx(t.options)
	b.Queue(sqlLock, t.locks.key)
	results := t.conn.SendBatch(ctx, &b)
	t.tx = results.Tx()
	err = results.Close()
	if sqlState(err) == codeNoStatement {
		t.discard() // as in enter
	}
	return err
}

// someLock is a lock that no other transaction has.
func someLock() (l locks) {
	l.key = rand.Int64()
	l.keyHi, l.keyLo = l.key>>32, l.key&0xffffffff
	return l
}

// userTx is a transaction that its function must not commit.
type userTx struct{ pgx.Tx }

var errNotYours = errors.New("postgres: the transaction is committed when the function has returned; it must not commit it by itself")

// Commit refuses.
func (userTx) Commit(context.Context) error { return errNotYours }

// commitUserTx commits a transaction of InTx.
func (t *transaction) commitUserTx(ctx context.Context) error {
	if err := intact(ctx, t.tx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.s.commitTimeout)
	defer cancel()
	pid := t.conn.Conn().PgConn().PID()
	fault.At(fault.CommitBefore)
	_, err := t.committing(ctx, false, func(ctx context.Context, t *transaction) (answer, error) {
		var b pgx.Batch
		b.Queue(t.s.sql.audible.sql)
		return answer{}, t.sendCommit(ctx, &b)
	})
	fault.At(fault.CommitAfter)
	switch {
	case err == nil:
		return nil
	case answered(err) || errors.Is(err, pgx.ErrTxCommitRollback):
		return uncommitted(err)
	}
	t.discard() // so that the server, too, sees the end
	t.rollBack()
	// Any write to a record that the transaction wrote to would wait for it.
	if ended := t.ended(pid, func(context.Context, *pgxpool.Conn) error { return nil }); ended != nil {
		err = errors.Join(err, ended)
	}
	return fmt.Errorf("%w (it may or may not have been committed)", explain("commit", err))
}

// sendCommit sends a batch and COMMIT in one round trip.
func (t *transaction) sendCommit(ctx context.Context, b *pgx.Batch) error {
	// Not in pgx's words for it: pgx drops the prepared statement of those when close fails.
	b.Queue(cmp.Or(t.options.CommitQuery, "COMMIT")).Exec(func(tag pgconn.CommandTag) error {
		if tag.String() == "ROLLBACK" {
			return pgx.ErrTxCommitRollback
		}
		return nil
	})
	err := t.conn.SendBatch(ctx, b).Close()
	if sqlState(err) == codeNoStatement {
		t.discard() // as in enter
	}
	return err
}
