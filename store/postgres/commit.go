package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
)

// args are the parameters of the statements that write a finished record.
func (t *transaction) args(rec stet.Record, e *ending) []any {
	result := e.out.Result
	if e.out.Gone {
		result = nil
	} else if result == nil {
		result = []byte{}
	}
	forget, due := e.spans()
	args := []any{rec.ID[:], rec.Scope[:], rec.Fingerprint[:], rec.Owner[:], rec.Fence, int32(rec.Attempt), int16(e.out.State), e.out.Gone, result,
		rec.ClaimedAt, micros(e.keep.Result), forget, due, t.locks.waiters, e.out.Outbox}
	if t.old != nil {
		args = append(args, t.old.Fence)
	}
	return args
}

// spans are when the record is forgotten, and when the sweep has to look at it, in
// microseconds; nil for never.
func (e *ending) spans() (forget, due *int64) {
	span := func(d time.Duration, ever bool) *int64 {
		if n := micros(d); ever {
			return &n
		}
		return nil
	}
	return span(e.forget()), span(e.due())
}

// settled is the record that a commit has made of rec.
func settled(rec stet.Record, e *ending, at time.Time) stet.Record {
	rec.State, rec.Result, rec.Gone, rec.LeaseLeft = e.out.State, e.out.Result, e.out.Gone, 0
	if rec.Gone {
		rec.Result = nil
	}
	rec.SettledAt = at
	rec.ExpiresAt = at.Add(time.Duration(micros(e.keep.Result)) * time.Microsecond)
	if d, ever := e.forget(); ever {
		rec.ForgetAt = at.Add(time.Duration(micros(d)) * time.Microsecond)
	}
	return rec
}

// leave writes the record and commits.
func (t *transaction) leave(ctx context.Context, rec stet.Record, e *ending) (stet.Record, error) {
	if err := intact(ctx, t.tx); err != nil {
		return rec, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.s.commitTimeout)
	defer cancel()
	fault.At(fault.CommitBefore)
	at, taken, err := t.commit(ctx, rec, e)
	fault.At(fault.CommitAfter)
	switch {
	case err == nil && !taken:
		return settled(rec, e, at), nil
	case taken:
		return t.lost(ctx)
	case answered(err):
		return rec, fmt.Errorf("%w (nothing was committed)", explain("commit", err))
	}
	pid := t.conn.Conn().PgConn().PID()
	t.discard() // so that the server, too, hears that it is over
	t.abandon()
	return t.lookUp(rec, err, pid)
}

// intact reports what fn has done to the transaction if that keeps it from being
// committed.
func intact(ctx context.Context, tx pgx.Tx) error {
	switch tx.Conn().PgConn().TxStatus() {
	case 'T':
		return nil
	case 'E':
		return errors.New("postgres: a statement of the function failed, which aborts the transaction, but the function returned no error; nothing was committed (use a savepoint, tx.Begin, around what may fail)")
	default:
		if _, err := tx.Exec(ctx, ""); errors.Is(err, pgx.ErrTxClosed) { // ended through pgx
			return errors.New("postgres: the function rolled the transaction back, and returned no error; nothing was committed")
		}
		return fmt.Errorf("postgres: %w: the function ended the transaction by an SQL command, which is not its to end; what it wrote may stand", stet.ErrUnknown)
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

// commit sends the record and the commit in one go. taken means that there is a
// record already; nothing was committed then.
func (t *transaction) commit(ctx context.Context, rec stet.Record, e *ending) (at time.Time, taken bool, err error) {
	var ignored bool
	if t.old != nil {
		// Whether anything was updated has to be known before the commit.
		err = t.tx.QueryRow(ctx, t.s.sql.commitOld, t.args(rec, e)...).Scan(&at, &ignored)
		if errors.Is(err, pgx.ErrNoRows) {
			return at, true, nil
		}
		if err != nil {
			return at, false, err
		}
		return at, false, t.tx.Commit(ctx)
	}
	finish := call{t.s.sql.finish, t.params(rec, e), func(values [][]byte) error {
		f := fields{values: values}
		at = instant(f.time())
		return f.err()
	}}
	tag, err := sendAll(ctx, t.conn.Conn(), t.s.prepare, []call{finish, {statement: t.s.sql.commit}})
	switch {
	case at.IsZero() && sqlState(err) == codeUnique:
		return at, true, nil
	case sqlState(err) == codeNoStatement:
		t.discard() // as in enter
	case err == nil && tag.String() == "ROLLBACK":
		err = pgx.ErrTxCommitRollback
	}
	return at, false, err
}

// params are args in the binary format, of a record that is new.
func (t *transaction) params(rec stet.Record, e *ending) (p params) {
	p.buf = make([]byte, 0, 256+e.size())
	p.starts = make([]int, 0, 15)
	for _, b := range [][]byte{rec.ID[:], rec.Scope[:], rec.Fingerprint[:], rec.Owner[:]} {
		p.raw(b)
	}
	p.rawInt64(rec.Fence)
	p.raw(binary.BigEndian.AppendUint32(nil, uint32(rec.Attempt)))
	p.raw([]byte{0, byte(e.out.State)})
	gone := byte(0)
	if e.out.Gone {
		gone = 1
	}
	p.raw([]byte{gone})
	p.rawUnless(e.out.Gone, e.out.Result)
	p.rawInt64(rec.ClaimedAt.UnixMicro() - epoch)
	p.rawInt64(micros(e.keep.Result))
	forget, ever := e.forget()
	p.rawUnless(!ever, binary.BigEndian.AppendUint64(nil, uint64(micros(forget))))
	due, ever := e.due()
	p.rawUnless(!ever, binary.BigEndian.AppendUint64(nil, uint64(micros(due))))
	p.rawInt64(t.locks.waiters)
	p.rawUnless(e.out.Outbox == nil, e.out.Outbox)
	return p
}

// lost answers when somebody else has claimed the key, or finished, while fn
// ran.
func (t *transaction) lost(ctx context.Context) (stet.Record, error) {
	t.abandon()
	r, err := t.s.readAlone(ctx, t.req.ID)
	if err != nil {
		return stet.Record{}, fmt.Errorf("%w (somebody else has claimed the key meanwhile; nothing was committed)", explain("read", err))
	}
	rec, next, err := onClaim(t.req, r)
	if next != stepNone {
		return stet.Record{}, errors.New("postgres: somebody else has claimed the key meanwhile and given it back; nothing was committed")
	}
	return rec, err
}

// lookUp finds out what became of a commit that was not acknowledged. What the
// driver says about it proves nothing. The transaction holds the key's lock until
// it has ended, so once that is free the record is there or never will be.
//
// pid is of the transaction's process on the server, 0 if it is not known.
func (t *transaction) lookUp(rec stet.Record, cause error, pid uint32) (stet.Record, error) {
	var r *row
	err := t.ended(pid, func(ctx context.Context, c *pgxpool.Conn) error {
		return t.s.send(ctx, c, t.s.readCall([]stet.ID{t.req.ID}, func(got *row) { r = got }))
	})
	switch {
	case err != nil:
		return rec, fmt.Errorf("postgres: %w: the commit was not acknowledged (%w), and what became of it could not be found out in %v: %w",
			stet.ErrUnknown, cause, t.s.commitTimeout, err)
	case r != nil && r.Owner == rec.Owner && r.Fence == rec.Fence && r.State.Settled():
		return r.record(), nil
	}
	return rec, fmt.Errorf("%w (looked up since: nothing was committed)", explain("commit", cause))
}

// ended waits until the transaction has ended, for as long as a commit may take, and
// then calls look. If the transaction is still there after half of that time, and pid
// is not 0, the server is told to end that process of its own: its client, which was
// this one, is gone.
func (t *transaction) ended(pid uint32, look func(context.Context, *pgxpool.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), t.s.commitTimeout)
	defer cancel()
	begun := time.Now()
	for pause := execBackoff; ; pause = min(2*pause, time.Second) {
		end := pid
		if t.s.o.PgBouncer || time.Since(begun) < t.s.commitTimeout/2 {
			end = 0 // it may still be at work; give it time
		}
		if err := t.endedNow(ctx, end, look); err == nil || !sleep(ctx, pause) {
			return err
		}
	}
}

// endedNow is one try of ended.
func (t *transaction) endedNow(ctx context.Context, pid uint32, look func(context.Context, *pgxpool.Conn) error) error {
	c, err := t.s.own.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	results, err := c.Conn().PgConn().Exec(ctx, t.sqlEnded(pid)).ReadAll()
	if err != nil {
		return err
	}
	if t.process != nil && len(results[len(results)-1].Rows) > 0 {
		return errAtWork
	}
	return look(ctx, c)
}

// sqlEnded waits a while for the transaction's end, by its lock, or looks whether its
// process has ended.
func (t *transaction) sqlEnded(pid uint32) string {
	if t.process != nil {
		return t.process.sqlGone(pid != 0)
	}
	sql := fmt.Sprintf("BEGIN; SET LOCAL lock_timeout = %d; SELECT pg_advisory_xact_lock(%d); COMMIT",
		max(1, t.s.commitTimeout.Milliseconds()/4), t.locks.key)
	if pid != 0 {
		sql = fmt.Sprintf(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE pid = %d AND locktype = 'advisory' AND objsubid = 1
			AND classid = %d AND objid = %d AND granted; `, pid, t.locks.keyHi, t.locks.keyLo) + sql
	}
	return sql
}

// SettleTx implements stet.TxStore: it settles a claim inside a transaction of
// the caller's, which may be a savepoint. The claim ends when the caller commits.
// Until then the record is locked: its lease is not renewed, and who claims the
// key waits. In a transaction of InTx's it may be put off until that commits: see
// there. Until then the outcome must not be changed.
func (s *Store) SettleTx(ctx context.Context, tx pgx.Tx, c stet.Claim, out stet.Outcome, keep stet.Retention) error {
	e := &ending{claim: c, out: out, keep: keep}
	if w, ok := tx.(*worked); ok && w.t.s == s {
		return w.settle(ctx, e)
	}
	return s.settleIn(ctx, e, pgx.ErrNoRows, pgxQuery(ctx, tx))
}

// settleable reports why e cannot be tried.
func (e *ending) settleable(ctx context.Context) error {
	if !e.out.State.Settled() {
		return fmt.Errorf("%w: an outcome is completed or failed, not %v", stet.ErrInvalid, e.out.State)
	}
	return ctx.Err()
}

// settleIn settles through a driver that says by none that there is no row.
func (s *Store) settleIn(ctx context.Context, e *ending, none error, query queryRow) error {
	if err := e.settleable(ctx); err != nil {
		return err
	}
	out, result := &e.out, e.out.Result
	if out.Gone {
		result = nil
	} else if result == nil {
		result = []byte{}
	}
	forget, due := e.spans()
	var ignored bool
	err := query(s.sql.settleTx, e.claim.ID[:], e.claim.Fence, int16(out.State), out.Gone, result,
		micros(e.keep.Result), forget, due, out.Outbox).Scan(&ignored)
	if !errors.Is(err, none) {
		return explain("settle (roll back)", err)
	}
	r, err := scanRow(query(s.sql.load, e.claim.ID[:]), none)
	if err == nil {
		err = e.unsettled(r)
	}
	if errors.Is(err, stet.ErrFenced) {
		return err
	}
	return explain("settle (roll back)", err)
}

// unsettled says why a transaction could not settle r.
func (e *ending) unsettled(r *row) error {
	switch next, err := onEnding(e, r); {
	case next == stepWrite:
		return errLookAgain // it was free just now, and was not when we tried
	case err == nil:
		// Settled already, perhaps by a transaction of this very run whose commit
		// was not acknowledged: what this one wrote would be there twice.
		return stet.ErrFenced
	default:
		return err
	}
}
