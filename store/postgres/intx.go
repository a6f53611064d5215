package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

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
// When that was not acknowledged, InTx waits up to 10 seconds for the transaction to
// have ended on the server.
//
// It works at READ COMMITTED, whatever the server's default is: above it, what heartbeats
// write would keep a run that is longer than a third of its lease from being committed.
// With Options.TxOptions above it InTx is store.ErrInvalid, and nothing is done.
//
// To save round trips BEGIN is sent with the first statement of fn. And if SettleTx
// is called with fn's transaction, and nothing else after it, then it is sent with
// COMMIT: it returns nil, and InTx returns the error, of kind store.ErrFenced for one.
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
	w := &worked{t: t, ctx: ctx, conn: t.conn.Conn()}
	defer w.end() // also when fn panics or calls runtime.Goexit
	if err := fn(ctx, w); err != nil {
		return err
	}
	return w.commit(ctx)
}

// someLock is a lock that no other transaction has, by which a transaction is told from
// others.
func someLock() (l locks) {
	l.key = rand.Int64()
	l.keyHi, l.keyLo = l.key>>32, l.key&0xffffffff
	return l
}

// worked is the transaction of InTx. It begins with its first statement. An outcome
// waits to be sent with COMMIT, as long as no statement can pass it on its way.
type worked struct {
	t       *transaction // without its tx until it has begun
	ctx     context.Context
	conn    *pgx.Conn
	waiting *ending
	passed  bool  // statements may reach the server without our knowing
	unread  bool  // there are rows of the first statement that have not been closed, or could not be read
	bad     error // why nothing can be committed
}

// begin begins the transaction, in one round trip.
func (t *transaction) begin(ctx context.Context) error {
	results, err := t.beginWith(ctx, nil)
	if results == nil {
		return err
	}
	return results.Close()
}

// beginWith begins the transaction, and sends what add has queued in the same round
// trip: its results are those that are left. They are nil if the transaction has not
// begun. Where the end of the server's process would not be its end, it has a lock.
func (t *transaction) beginWith(ctx context.Context, add func(*pgx.Batch)) (results pgx.BatchResults, err error) {
	if !t.session {
		if t.process, err = t.s.processOf(ctx, t.conn.Conn()); err != nil {
			return nil, err
		}
	}
	var b pgx.Batch
	b.BeginTx(t.options)
	if t.process == nil && !t.session {
		t.locks = someLock()
		b.Queue(sqlLock, t.locks.key)
	}
	queued := b.Len()
	if add != nil {
		add(&b)
	}
	results = t.conn.SendBatch(ctx, &b)
	t.tx = results.Tx()
	for range queued {
		if _, err = results.Exec(); err != nil {
			_ = results.Close()
			if sqlState(err) == codeNoStatement && !t.session { // which cannot be had on another connection; pgx knows now
				t.discard() // as in enter
			}
			return nil, err
		}
	}
	t.begun = time.Now()
	return results, nil
}

// ready has everything sent that has waited for a next statement.
func (w *worked) ready(ctx context.Context) error {
	if w.bad == nil && w.t.tx == nil {
		err := explain("begin", w.t.begin(ctx))
		if err != nil && ctx.Err() != nil && !w.conn.IsClosed() && !w.conn.PgConn().IsBusy() && w.conn.PgConn().TxStatus() == 'I' {
			w.t.tx = nil // nothing was sent: ctx had ended before
			return err
		}
		w.bad = err
	}
	if e := w.waiting; w.bad == nil && e != nil {
		w.waiting = nil
		w.bad = w.t.s.settleIn(ctx, e, pgx.ErrNoRows, pgxQuery(ctx, w.t.tx))
	}
	return w.bad
}

// first begins the transaction together with its first statements, which queue queues, if
// they can be in a batch. If there are no results and no error, then they have to be sent by themselves.
func (w *worked) first(ctx context.Context, can bool, queue func(*pgx.Batch)) (pgx.BatchResults, error) {
	if w.t.tx != nil || w.bad != nil || w.waiting != nil || !w.t.s.batched || !can {
		return nil, w.ready(ctx)
	}
	results, err := w.t.beginWith(ctx, queue)
	if err == nil {
		return results, nil
	}
	// Perhaps pgx could not prepare the statement, or encode its arguments, and has
	// sent nothing of it. By itself, its error is that of any transaction.
	_, unsent := errors.AsType[pgx.ErrPreprocessingBatch](err)
	switch closed := w.conn.IsClosed(); {
	case closed && unsent && !w.t.session:
		w.bad = w.reconnect(ctx)
	case closed || w.conn.PgConn().TxStatus() != 'I':
		w.bad = explain("begin", err)
	default:
		w.t.tx = nil
	}
	return nil, w.ready(ctx)
}

// reconnect starts anew on another connection.
func (w *worked) reconnect(ctx context.Context) error {
	w.t.abandon()
	conn, err := w.t.s.pool.Acquire(ctx)
	if err != nil {
		return explain("begin", err)
	}
	w.t.conn, w.t.tx, w.conn = conn, nil, conn.Conn()
	return nil
}

// batchable reports whether Exec of a statement comes to the same in a batch: pgx sends
// one without arguments by another protocol, which takes several at a time. And one that ends
// the transaction must be seen to have done so.
func batchable(sql string, args []any) bool {
	if len(args) > 0 {
		return plain(args)
	}
	words := strings.Fields(sql)
	return len(words) > 0 && !strings.Contains(sql, ";") && slices.Contains([]string{"INSERT", "UPDATE", "DELETE", "SELECT", "WITH", "LOCK", "SET"}, strings.ToUpper(words[0]))
}

// plain reports whether a statement with these arguments is the same in a batch, which
// takes no options.
func plain(args []any) bool {
	if len(args) == 0 {
		return true
	}
	switch args[0].(type) {
	case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID, pgx.QueryRewriter:
		return false
	}
	return true
}

// settle has the outcome wait, if it can.
func (w *worked) settle(ctx context.Context, e *ending) error {
	if err := e.settleable(ctx); err != nil {
		return err
	}
	if w.t.conn == nil {
		return pgx.ErrTxClosed
	}
	if w.waiting != nil || w.passed || w.t.s.o.TxOptions.CommitQuery != "" {
		if err := w.ready(ctx); err != nil {
			return err
		}
	}
	if w.passed || w.t.s.o.TxOptions.CommitQuery != "" {
		return w.t.s.settleIn(ctx, e, pgx.ErrNoRows, pgxQuery(ctx, w.t.tx))
	}
	w.waiting = e
	return w.bad
}

// commit commits, with the outcome that waits for it.
func (w *worked) commit(ctx context.Context) error {
	switch err := w.spoiled(); {
	case err != nil:
		return err
	case w.t.tx == nil && w.waiting == nil:
		return nil // nothing was done
	case w.t.tx == nil:
		if err := w.t.begin(ctx); err != nil {
			return explain("begin", err)
		}
	}
	t := w.t
	if err := intact(ctx, t.tx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.s.commitTimeout)
	defer cancel()
	pid := w.conn.PgConn().PID()
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
	t.discard() // so that the server, too, hears that it is over
	t.abandon()
	// Whatever writes to a record that the transaction wrote to would wait for it.
	if ended := t.ended(pid, func(context.Context, *pgxpool.Conn) error { return nil }); ended != nil {
		err = errors.Join(err, ended)
	}
	return fmt.Errorf("%w (it may or may not have been committed)", explain("commit", err))
}

// finish sends COMMIT and what has waited for it, if anything has. The answer is that it
// was taken if there was nothing to settle.
func (t *transaction) finish(ctx context.Context, e *ending) (a answer, err error) {
	settled := false
	finish := call{statement: t.s.sql.audible}
	switch {
	case e != nil:
		finish = call{t.s.sql.finishClaim, packOne(ended, &write{end: e}), func([][]byte) error { settled = true; return nil }}
	case t.options.CommitQuery != "":
		if _, err := t.tx.Exec(ctx, t.s.sql.audible.sql); err != nil {
			return a, err
		}
		return a, t.tx.Commit(ctx)
	}
	tag, err := sendAll(ctx, t.conn.Conn(), t.s.prepare, []call{finish, {statement: t.s.sql.commit}})
	switch {
	case sqlState(err) == codeNoStatement:
		t.discard() // as in enter
	case err == nil && tag.String() == "ROLLBACK":
		err = pgx.ErrTxCommitRollback
	}
	a.taken = e != nil && !settled && sqlState(err) == codeDivision
	return a, err
}

// fenced tells why there was nothing to settle. It is an error of stet's own, because
// SettleTx has told its caller nothing of it.
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

// end gives the connection back, rolls back what was not committed, and has pgx know
// that it is over: what fn has left behind gets pgx.ErrTxClosed.
func (w *worked) end() {
	w.close()
	w.waiting = nil
	w.t.abandon()
}

// close has pgx know that nothing begins any more.
func (w *worked) close() {
	if w.t.tx == nil {
		var b pgx.Batch
		b.BeginTx(pgx.TxOptions{})
		w.t.tx = pgx.FailedBatchResults(&b, pgx.ErrTxClosed).Tx()
	}
}

var errUnread = errors.New("postgres: rows of the function's first statement were left open, or its connection was lost while they were read; nothing was committed")

// spoiled is why nothing can be committed, and nothing was.
func (w *worked) spoiled() error {
	if c := w.conn.PgConn(); w.bad == nil && w.unread && (c.IsBusy() || c.IsClosed() && c.TxStatus() == 'I') {
		return errUnread // its state is that of before
	}
	return w.bad
}

// Commit refuses.
func (*worked) Commit(context.Context) error { return errNotYours }

// Rollback implements pgx.Tx.
func (w *worked) Rollback(ctx context.Context) error {
	if w.t.tx == nil {
		if err := w.ready(ctx); err != nil {
			return err
		}
	}
	return w.t.tx.Rollback(ctx)
}

// Exec implements pgx.Tx.
func (w *worked) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	results, err := w.first(ctx, batchable(sql, args), func(b *pgx.Batch) { b.Queue(sql, args...) })
	switch {
	case err != nil:
		return tag, err
	case results == nil:
		return w.t.tx.Exec(ctx, sql, args...)
	}
	tag, err = results.Exec()
	if closed := results.Close(); err == nil {
		err = closed
	}
	return tag, err
}

// Query implements pgx.Tx.
func (w *worked) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	results, err := w.first(ctx, plain(args) && sql != "", func(b *pgx.Batch) { b.Queue(sql, args...) })
	switch {
	case err != nil:
		return failed(err).Query()
	case results == nil:
		return w.t.tx.Query(ctx, sql, args...)
	}
	rows, err := results.Query()
	if err != nil {
		_ = results.Close()
		return rows, err
	}
	w.unread = true
	return &firstRows{Rows: rows, w: w, results: results}, nil
}

// QueryRow implements pgx.Tx.
func (w *worked) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	results, err := w.first(ctx, plain(args) && sql != "", func(b *pgx.Batch) { b.Queue(sql, args...) })
	switch {
	case err != nil:
		return failed(err).QueryRow()
	case results == nil:
		return w.t.tx.QueryRow(ctx, sql, args...)
	}
	w.unread = true
	return firstRow{w, results}
}

// failed are results that are that error.
func failed(err error) pgx.BatchResults { return pgx.FailedBatchResults(&pgx.Batch{}, err) }

// SendBatch implements pgx.Tx.
func (w *worked) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	results, err := w.first(ctx, b.Len() > 0, func(all *pgx.Batch) {
		for _, q := range b.QueuedQueries { // copies: pgx writes into what it fails to send
			all.QueuedQueries = append(all.QueuedQueries, &pgx.QueuedQuery{SQL: q.SQL, Arguments: q.Arguments, Fn: q.Fn})
		}
	})
	switch {
	case err != nil:
		return pgx.FailedBatchResults(b, err)
	case results == nil:
		return w.t.tx.SendBatch(ctx, b)
	}
	return results
}

// CopyFrom implements pgx.Tx.
func (w *worked) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource) (int64, error) {
	if err := w.ready(ctx); err != nil {
		return 0, err
	}
	return w.t.tx.CopyFrom(ctx, table, columns, from)
}

// Prepare implements pgx.Tx.
func (w *worked) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := w.ready(ctx); err != nil {
		return nil, err
	}
	return w.t.tx.Prepare(ctx, name, sql)
}

// Begin implements pgx.Tx. A savepoint's statements go past w.
func (w *worked) Begin(ctx context.Context) (pgx.Tx, error) {
	w.passed = true
	if err := w.ready(ctx); err != nil {
		return nil, err
	}
	return w.t.tx.Begin(ctx)
}

// Conn implements pgx.Tx. What is done with the connection goes past w: if there is
// no transaction to do it in, the connection is closed.
func (w *worked) Conn() *pgx.Conn {
	if w.pass(); w.bad != nil && w.t.conn != nil {
		w.t.discard()
	}
	return w.conn
}

// pass is ready for what goes past w and is told of no error: commit tells.
func (w *worked) pass() {
	w.passed = true
	if err := w.ready(w.ctx); err != nil {
		w.bad = err
		w.close()
	}
}

// LargeObjects implements pgx.Tx. Their statements go past w.
func (w *worked) LargeObjects() pgx.LargeObjects {
	w.pass()
	return w.t.tx.LargeObjects()
}
