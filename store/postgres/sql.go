package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
)

// Querier is a transaction of database/sql, by whatever name: *sql.Tx,
// *sqlx.Tx, the *sql.Tx in a bun.Tx, GORM's tx.Statement.ConnPool.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// SQLTx is a Querier that can be ended.
type SQLTx interface {
	Querier
	Commit() error
	Rollback() error
}

// SettleSQL is Store.SettleTx for transactions of database/sql. Like that it
// writes out as it is: for a run of an engine, which marks its results, give
// stet.SettleTx what OverSQL returns.
func (s *Store) SettleSQL(ctx context.Context, tx Querier, c stet.Claim, out stet.Outcome, keep stet.Retention) error {
	return s.settleIn(ctx, &ending{claim: c, out: out, keep: keep}, sql.ErrNoRows, sqlQuery(ctx, tx))
}

// SQLStore is a Store whose transactions are those of database/sql, or of a
// library on top of it. It shares everything else with the Store that it was
// made of, which is the one to close.
type SQLStore[Tx SQLTx] struct {
	*Store
	begin func(ctx context.Context) (Tx, error)
}

var _ stet.TxStore[*sql.Tx] = (*SQLStore[*sql.Tx])(nil)

// OverSQL returns s with transactions that begin begins, for stet.DoTx:
//
//	postgres.OverSQL(s, func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) })
//
// begin's ctx ends only with the transaction. The database must be the one that
// s is in. database/sql cannot send statements together, so that entering takes
// two round trips and leaving two.
func OverSQL[Tx SQLTx](s *Store, begin func(ctx context.Context) (Tx, error)) *SQLStore[Tx] {
	return &SQLStore[Tx]{Store: s, begin: begin}
}

// SettleTx is Store.SettleTx.
func (s *SQLStore[Tx]) SettleTx(ctx context.Context, tx Tx, c stet.Claim, out stet.Outcome, keep stet.Retention) error {
	return s.SettleSQL(ctx, tx, c, out, keep)
}

// RunTx is Store.RunTx. fn must not end the transaction. If it does, nobody can
// keep it from that, and the error is of kind ErrUnknown.
func (s *SQLStore[Tx]) RunTx(ctx context.Context, req stet.ClaimRequest, keep stet.Retention,
	fn func(context.Context, Tx, stet.Record) (stet.Outcome, error)) (stet.Record, error) {
	if err := ctx.Err(); err != nil {
		return stet.Record{}, err
	}
	if s.closed.Load() {
		return stet.Record{}, errClosed
	}
	// Without cancellation: database/sql would roll back beneath fn.
	background := context.WithoutCancel(ctx)
	tx, err := s.begin(background)
	if err != nil {
		return stet.Record{}, explain("begin", err)
	}
	defer func() { _ = tx.Rollback() }() // also when fn panics or calls runtime.Goexit
	t := &transaction{s: s.Store, req: &req, locks: s.locks(req.ID, req.Fingerprint)}
	rec, granted, err := t.enterSQL(ctx, tx)
	if err != nil || !granted {
		return rec, err
	}
	out, err := fn(ctx, tx, rec)
	if err != nil {
		return rec, err
	}
	if !out.State.Settled() {
		return rec, fmt.Errorf("%w: an outcome is completed or failed, not %v", stet.ErrInvalid, out.State)
	}
	return t.leaveSQL(background, tx, rec, &ending{claim: rec.Claim(), out: out, keep: keep})
}

// enterSQL is transaction.enter over database/sql. The caller rolls back what
// was not granted.
func (t *transaction) enterSQL(ctx context.Context, tx SQLTx) (rec stet.Record, granted bool, err error) {
	row := tx.QueryRowContext(ctx, t.s.sql.enter, t.locks.key, t.locks.id, t.locks.finger, t.req.ID[:])
	r, err := scanRow(row, sql.ErrNoRows, &t.fence, &t.claimed)
	if err != nil {
		return rec, false, explain("begin", err)
	}
	rec, next, err := onClaim(t.req, r)
	switch {
	case err != nil:
		return rec, false, err
	case next == stepPark:
		_ = tx.Rollback()
		rec, ok, err := t.s.change(ctx, &write{req: t.req}, r, next)
		if err == nil && !ok {
			err = errLookAgain
		}
		return rec, false, explain("park", err)
	case next == stepNone && rec.State == stet.Running && rec.Owner == t.req.Owner:
		return rec, false, fmt.Errorf("postgres: this owner holds a claim from an earlier call already, whose fate is open: %w", stet.ErrUnknown)
	case next == stepNone:
		return rec, false, nil
	case t.fence <= 0:
		rec, err = t.busy(ctx, func(q string, args ...any) scanner { return tx.QueryRowContext(ctx, q, args...) })
		return rec, false, err
	case r != nil && r.Fence >= t.fence:
		return rec, false, explain("begin", errLookAgain)
	}
	t.old = r
	return t.granted(), true, nil
}

// leaveSQL is transaction.leave over database/sql.
func (t *transaction) leaveSQL(ctx context.Context, tx SQLTx, rec stet.Record, e *ending) (stet.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, t.s.commitTimeout)
	defer cancel()
	write := t.s.sql.commitNew
	if t.old != nil {
		write = t.s.sql.commitOld
	}
	// The lock is this transaction's own, unless fn has ended it: then what
	// follows would be committed by itself.
	var ours bool
	if err := tx.QueryRowContext(ctx, sqlStillLocked, t.locks.keyHi, t.locks.keyLo).Scan(&ours); err != nil {
		if errors.Is(err, sql.ErrTxDone) {
			return rec, fmt.Errorf("postgres: %w: the function ended the transaction, which is not its to end; what it wrote may stand, and no record of it does", stet.ErrUnknown)
		}
		return rec, fmt.Errorf("%w (nothing was committed)", explain("commit", err))
	}
	if !ours {
		return rec, fmt.Errorf("postgres: %w: the function ended the transaction by an SQL command, which is not its to end; what it wrote may stand, and no record of it does", stet.ErrUnknown)
	}
	var at time.Time
	var ignored bool
	err := tx.QueryRowContext(ctx, write, t.args(rec, e)...).Scan(&at, &ignored)
	if errors.Is(err, sql.ErrNoRows) || codeOf(err) == codeUnique {
		_ = tx.Rollback()
		return t.lost(ctx)
	}
	if err != nil {
		return rec, fmt.Errorf("%w (nothing was committed)", explain("commit", err))
	}
	fault.At(fault.CommitBefore)
	err = tx.Commit()
	fault.At(fault.CommitAfter)
	switch {
	case err == nil:
		return settled(rec, e, at), nil
	case codeOf(err) != "" && answered(err):
		return rec, fmt.Errorf("%w (nothing was committed)", explain("commit", err))
	}
	_ = tx.Rollback()
	return t.lookUp(rec, err, 0)
}

// codeOf is sqlState for the errors of other drivers, too.
func codeOf(err error) string {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return e.SQLState()
	}
	return ""
}

const sqlStillLocked = `
SELECT EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objsubid = 1 AND granted
	AND mode = 'ExclusiveLock' AND classid = $1::bigint::oid AND objid = $2::bigint::oid)`
