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
	"github.com/stet-go/stet/store"
)

// sqlLock takes the lock of someLock.
const sqlLock = "SELECT pg_advisory_xact_lock($1::bigint)"

// InTx implements store.WorkTxStore, on a connection of the pool. Like RunTx's, the
// transaction must not be ended by fn, and its commit is not given up when ctx ends.
// If the commit is not acknowledged, InTx waits up to 10 seconds until the transaction
// has ended on the server.
//
// It works at READ COMMITTED, whatever the server's default is: above it, a heartbeat's
// write would prevent the commit of a run that is longer than a third of its lease.
// With Options.TxOptions above it InTx is store.ErrInvalid, and fn is not called.
//
// If fn calls SettleTx with its transaction and nothing else after it, the outcome is sent
// together with COMMIT. SettleTx then returns nil, and InTx returns the error, such as
// store.ErrFenced.
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
	defer t.abandon() // also when fn panics or calls runtime.Goexit
	if err := t.begin(ctx); err != nil {
		return explain("begin", err)
	}
	w := &userTx{Tx: t.tx, t: t, ctx: ctx}
	if err := fn(ctx, w); err != nil {
		return err
	}
	return w.commit(ctx)
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

// userTx is the transaction of InTx. An outcome waits to be sent with COMMIT, as long as
// every statement passes through userTx: the next one sends it first.
type userTx struct {
	pgx.Tx
	t       *transaction
	ctx     context.Context
	waiting *ending
	passed  bool  // statements may reach the server without passing through it
	bad     error // why nothing can be committed
}

// ready sends the outcome that waits, before another statement.
func (w *userTx) ready(ctx context.Context) error {
	if e := w.waiting; w.bad == nil && e != nil {
		w.waiting = nil
		w.bad = w.t.s.settleIn(ctx, e, pgx.ErrNoRows, pgxQuery(ctx, w.Tx))
	}
	return w.bad
}

// settle has the outcome wait, if it can.
func (w *userTx) settle(ctx context.Context, e *ending) error {
	if err := e.settleable(ctx); err != nil {
		return err
	}
	if w.t.conn == nil {
		return pgx.ErrTxClosed
	}
	if err := w.ready(ctx); err != nil {
		return err
	}
	if w.passed {
		return w.t.s.settleIn(ctx, e, pgx.ErrNoRows, pgxQuery(ctx, w.Tx))
	}
	w.waiting = e
	return nil
}

// commit commits, with the outcome that waits for it.
func (w *userTx) commit(ctx context.Context) error {
	if w.bad != nil {
		return w.bad
	}
	t := w.t
	if err := intact(ctx, t.tx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.s.commitTimeout)
	defer cancel()
	pid := t.conn.Conn().PgConn().PID()
	fault.At(fault.CommitBefore)
	e := w.waiting
	a, err := t.committing(ctx, false, func(ctx context.Context, t *transaction) (answer, error) { return t.finish(ctx, e) })
	fault.At(fault.CommitAfter)
	switch {
	case err == nil:
		return nil
	case a.taken:
		return t.fenced(ctx, e)
	case answered(err) || errors.Is(err, pgx.ErrTxCommitRollback):
		return uncommitted(err)
	}
	t.discard() // so that the server, too, sees the end
	t.abandon()
	// Any write to a record that the transaction wrote to would wait for it.
	if ended := t.ended(pid, func(context.Context, *pgxpool.Conn) error { return nil }); ended != nil {
		err = errors.Join(err, ended)
	}
	return fmt.Errorf("%w (it may or may not have been committed)", explain("commit", err))
}

// finish sends the outcome and COMMIT. The answer is that it was taken if there was nothing
// to settle.
func (t *transaction) finish(ctx context.Context, e *ending) (a answer, err error) {
	settled := false
	var b pgx.Batch
	if e != nil {
		b.Queue(t.s.sql.finishClaim.sql, args(ended, &write{end: e})...).Exec(func(pgconn.CommandTag) error { settled = true; return nil })
	} else {
		b.Queue(t.s.sql.audible.sql)
	}
	err = t.sendCommit(ctx, &b)
	a.taken = e != nil && !settled && sqlState(err) == codeDivision
	return a, err
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

// fenced returns why there was nothing to settle. SettleTx has returned nil before, so the
// error is stet's own.
func (t *transaction) fenced(ctx context.Context, e *ending) error {
	t.abandon()
	r, err := t.s.readAlone(ctx, e.claim.ID)
	if err == nil {
		err = e.unsettled(r)
	}
	if errors.Is(err, store.ErrFenced) {
		return fmt.Errorf("%w (nothing was committed: the claim is not the newest, or was settled before)", store.ErrFenced)
	}
	return fmt.Errorf("%w (nothing was committed)", explain("settle", err))
}

// Commit refuses.
func (*userTx) Commit(context.Context) error { return errNotYours }

// Exec implements pgx.Tx.
func (w *userTx) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	if err := w.ready(ctx); err != nil {
		return tag, err
	}
	return w.Tx.Exec(ctx, sql, args...)
}

// Query implements pgx.Tx.
func (w *userTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := w.ready(ctx); err != nil {
		return failed(err).Query()
	}
	return w.Tx.Query(ctx, sql, args...)
}

// QueryRow implements pgx.Tx.
func (w *userTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := w.ready(ctx); err != nil {
		return failed(err).QueryRow()
	}
	return w.Tx.QueryRow(ctx, sql, args...)
}

// failed are results that are that error.
func failed(err error) pgx.BatchResults { return pgx.FailedBatchResults(&pgx.Batch{}, err) }

// SendBatch implements pgx.Tx.
func (w *userTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := w.ready(ctx); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return w.Tx.SendBatch(ctx, b)
}

// CopyFrom implements pgx.Tx.
func (w *userTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource) (int64, error) {
	if err := w.ready(ctx); err != nil {
		return 0, err
	}
	return w.Tx.CopyFrom(ctx, table, columns, from)
}

// Prepare implements pgx.Tx.
func (w *userTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := w.ready(ctx); err != nil {
		return nil, err
	}
	return w.Tx.Prepare(ctx, name, sql)
}

// Begin implements pgx.Tx. The statements of a savepoint do not pass through w.
func (w *userTx) Begin(ctx context.Context) (pgx.Tx, error) {
	w.passed = true
	if err := w.ready(ctx); err != nil {
		return nil, err
	}
	return w.Tx.Begin(ctx)
}

// Conn implements pgx.Tx. Statements on the connection do not pass through w. If the outcome
// cannot be sent the connection is closed, and commit returns the error.
func (w *userTx) Conn() *pgx.Conn {
	conn := w.Tx.Conn()
	if w.pass(); w.bad != nil {
		w.t.discard()
	}
	return conn
}

// LargeObjects implements pgx.Tx. Their statements do not pass through w.
func (w *userTx) LargeObjects() pgx.LargeObjects {
	w.pass()
	return w.Tx.LargeObjects()
}

// pass sends the outcome that waits; commit returns its error.
func (w *userTx) pass() {
	w.passed = true
	_ = w.ready(w.ctx)
}
