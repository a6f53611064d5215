package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

// write is the record that a transaction writes.
func (t *transaction) write(rec store.Record, e *ending) *write {
	w := &write{req: t.req, end: e, rec: rec, waiters: t.locks.waiters}
	if t.old != nil {
		w.was = t.old.Fence
	}
	return w
}

// settled is the record that a commit has made of rec.
func settled(rec store.Record, e *ending, at time.Time) store.Record {
	rec.State, rec.Result, rec.Gone, rec.LeaseLeft = e.out.State, e.out.Result, e.out.Gone, 0
	if rec.Gone {
		rec.Result = store.Result{}
	}
	rec.SettledAt = at
	rec.ExpiresAt = at.Add(time.Duration(micros(e.keep.Result)) * time.Microsecond)
	if d, ever := e.forget(); ever {
		rec.ForgetAt = at.Add(time.Duration(micros(d)) * time.Microsecond)
	}
	return rec
}

// leave writes the record and commits.
func (t *transaction) leave(ctx context.Context, rec store.Record, e *ending) (store.Record, error) {
	if err := intact(ctx, t.tx); err != nil {
		return rec, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.s.commitTimeout)
	defer cancel()
	pid := t.conn.Conn().PgConn().PID()
	fault.At(fault.CommitBefore)
	a, err := t.committing(ctx, !t.replicated, func(ctx context.Context, t *transaction) (answer, error) { return t.commit(ctx, rec, e) })
	fault.At(fault.CommitAfter)
	switch {
	case err == nil && !a.taken:
		return settled(rec, e, a.at), nil
	case a.taken:
		return t.lost(ctx)
	case errors.Is(err, store.ErrUnknown):
		return rec, fmt.Errorf("postgres: %w", err)
	case answered(err) || errors.Is(err, pgx.ErrTxCommitRollback):
		return rec, uncommitted(err)
	}
	t.discard() // ends the session on the server too
	t.rollBack()
	return t.lookUp(rec, err, pid)
}

// intact reports what fn has done to the transaction if that keeps it from being
// committed.
func intact(ctx context.Context, tx pgx.Tx) error {
	switch tx.Conn().PgConn().TxStatus() {
	case 'T':
		return nil
	case 'E':
		return &store.AbortedError{Cause: errors.New("postgres: a statement of the function failed, which aborts the transaction, but the function returned no error; nothing was committed (use a savepoint, tx.Begin, around what may fail)")}
	default:
		if _, err := tx.Exec(ctx, ""); errors.Is(err, pgx.ErrTxClosed) { // ended through pgx
			return &store.AbortedError{Cause: fmt.Errorf("postgres: the function rolled the transaction back, and returned no error; nothing was committed: %w", err)}
		}
		return fmt.Errorf("postgres: %w: the function ended the transaction by an SQL command, and must not; its writes may be stored", store.ErrUnknown)
	}
}

// close has pgx know that the transaction is over, which was ended past it: what
// fn has left behind must not write on a connection that is the pool's again. A
// context that has ended keeps pgx from sending anything.
func (t *transaction) close() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = t.tx.Commit(ended)
}

// finishing is the statement that writes the record, and its parameters. It fails where
// there is another record, and keeps the transaction from being committed.
func (t *transaction) finishing() (*statement, []param) {
	if t.old != nil {
		return t.s.sql.finishOld, finishedOld
	}
	return t.s.sql.finish, finishedNew
}

// isTaken reports whether the error of finishing says that there is another record.
func isTaken(code string) bool { return code == codeUnique || code == codeDivision }

// commit sends the record and the commit in one go. The answer is that it was taken if
// there is a record already.
func (t *transaction) commit(ctx context.Context, rec store.Record, e *ending) (a answer, err error) {
	st, list := t.finishing()
	var b pgx.Batch
	var ignored bool
	b.Queue(st.sql, args(list, t.write(rec, e))...).QueryRow(func(row pgx.Row) error { return row.Scan(&a.at, &ignored, &ignored) })
	err = t.sendCommit(ctx, &b)
	if a.at.IsZero() && isTaken(sqlState(err)) {
		return answer{taken: true}, nil
	}
	return a, err
}

// lost answers when another caller has claimed the key, or finished, while fn
// ran.
func (t *transaction) lost(ctx context.Context) (store.Record, error) {
	t.rollBack()
	r, err := t.s.readAlone(ctx, t.req.ID)
	if err != nil {
		return store.Record{}, fmt.Errorf("%w (another caller has claimed the key in the meantime; nothing was committed)", explain("read", err))
	}
	rec, next, err := onClaim(t.req, r)
	if next != rules.None {
		return store.Record{}, errors.New("postgres: another caller has claimed and released the key in the meantime; nothing was committed")
	}
	if err == nil {
		err = t.s.ensureReplicated(ctx, r, t.req.Owner)
	}
	return rec, err
}

// lookUp finds out what became of a commit that was not acknowledged. What the
// driver says about it proves nothing. The transaction holds the key's lock until
// it has ended, so once that is free the record is there or never will be.
//
// pid is of the transaction's process on the server, 0 if it is not known.
func (t *transaction) lookUp(rec store.Record, cause error, pid uint32) (store.Record, error) {
	var r *row
	err := t.ended(pid, func(ctx context.Context, c *pgxpool.Conn) error {
		return t.s.send(ctx, c, t.s.readCall([]store.ID{t.req.ID}, func(got *row) { r = got }))
	})
	switch {
	case err != nil:
		return rec, fmt.Errorf("postgres: %w: the commit was not acknowledged (%w), and what became of it could not be found out in %v: %w",
			store.ErrUnknown, cause, t.s.commitTimeout, err)
	case r != nil && r.Owner == rec.Owner && r.Fence == rec.Fence && r.State.Settled():
		return r.record(), t.s.ensureReplicated(context.Background(), r, rec.Owner)
	}
	return rec, fmt.Errorf("%w (read afterwards: nothing was committed)", explain("commit", cause))
}

// ended waits until the transaction has ended, for at most the time of a commit, and then
// calls look. If the transaction is still open after half of that time, and pid is not 0, it
// terminates that server process, but only if it waits for this client, whose connection is
// gone, and not while it commits.
func (t *transaction) ended(pid uint32, look func(context.Context, *pgxpool.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), t.s.commitTimeout)
	defer cancel()
	begun := time.Now()
	for pause := execBackoff; ; pause = min(2*pause, maxLookPause) {
		end := pid
		if t.s.o.PgBouncer || time.Since(begun) < t.s.commitTimeout/2 {
			end = 0 // it may still be at work; give it time
		}
		if err := t.endedNow(ctx, end, look); err == nil || !timer.Sleep(ctx, pause) {
			return err
		}
	}
}

// endedNow is one try of ended. It waits for nothing on the server, so that many
// take turns in their lane.
func (t *transaction) endedNow(ctx context.Context, pid uint32, look func(context.Context, *pgxpool.Conn) error) error {
	return t.s.limited(ctx, t.s.commits, func() error {
		c, err := t.s.own.Acquire(ctx)
		if err != nil {
			return err
		}
		defer giveBack(c)
		results, err := c.Conn().PgConn().Exec(ctx, t.sqlEnded(pid)).ReadAll()
		if err != nil {
			return err
		}
		if len(results[len(results)-1].Rows) > 0 {
			return errAtWork
		}
		return look(ctx, c)
	})
}

var errAtWork = errors.New("the server is still at work on it")

// sqlIdle reports whether a server process is idle, or waits for the rest of a message. While
// it holds the lock, it has not received the commit.
const sqlIdle = `EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = %d AND (a.state LIKE 'idle%%' OR a.wait_event = 'ClientRead'))`

// sqlEnded returns a row if the transaction still holds its lock.
func (t *transaction) sqlEnded(pid uint32) string {
	sql := fmt.Sprintf("SELECT true WHERE NOT pg_try_advisory_xact_lock_shared(%d)", t.locks.key)
	if pid != 0 {
		sql = fmt.Sprintf(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE pid = %d AND locktype = 'advisory' AND objsubid = 1
			AND classid = %d AND objid = %d AND granted AND `+sqlIdle+`; `, pid, t.locks.keyHi, t.locks.keyLo, pid) + sql
	}
	return sql
}

// SettleTx implements store.TxStore. It settles a claim inside the caller's transaction, which
// may be a savepoint. The caller's commit ends the claim. Until then the record is locked: its
// lease is not renewed; another claim of the key returns running, or waits after the lease has
// expired; another settle waits. Other keys are not affected.
func (s *Store) SettleTx(ctx context.Context, tx pgx.Tx, c store.Claim, out store.Settlement, keep store.Retention) error {
	if conn := tx.Conn(); conn != nil && conn.PgConn().TxStatus() == 'I' { // the outcome would be committed by itself
		return intact(ctx, tx)
	}
	return s.settleIn(ctx, &ending{claim: c, out: out, keep: keep}, pgxQuery(ctx, tx))
}

// settleIn settles in a transaction.
func (s *Store) settleIn(ctx context.Context, e *ending, q txQuery) error {
	if !e.out.State.Settled() {
		return fmt.Errorf("%w: an outcome is completed or failed, not %v", store.ErrInvalid, e.out.State)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	var id []byte
	var ignored bool
	err := q.row(s.sql.endOne, args(ended, &write{end: e})...).Scan(&id, &ignored)
	if !errors.Is(err, q.noRows) {
		return explain("settle (roll back)", err)
	}
	r, err := scanRow(q.row(s.sql.load, e.claim.ID[:]), q.noRows)
	if err == nil {
		err = e.unsettled(r)
	}
	if errors.Is(err, store.ErrFenced) {
		return err
	}
	return explain("settle (roll back)", err)
}

// unsettled says why a transaction could not settle r.
func (e *ending) unsettled(r *row) error {
	switch next, err := onEnding(e, r); {
	case next != rules.None:
		return errLookAgain // it was free just now, and was not when we tried
	case err == nil:
		// Settled already, perhaps by a transaction of this very run whose commit
		// was not acknowledged: what this one wrote would be there twice.
		return store.ErrFenced
	default:
		return err
	}
}
