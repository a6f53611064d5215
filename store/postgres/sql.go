package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/store"
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
// writes out unchanged: for a run of an engine, which marks its results, give
// stet.WithTx what OverSQL returns.
func (s *Store) SettleSQL(ctx context.Context, tx Querier, c store.Claim, out store.Settlement, keep store.Retention) error {
	return s.settleIn(ctx, &ending{claim: c, out: out, keep: keep}, sqlQuery(ctx, tx))
}

// SQLStore is a Store whose transactions are those of database/sql, or of a
// library on top of it. It shares everything else with the Store that it was
// made of, which is the one to close.
type SQLStore[Tx SQLTx] struct {
	*Store
	begin func(ctx context.Context) (Tx, error)
}

var _ store.TxStore[*sql.Tx] = (*SQLStore[*sql.Tx])(nil)

// OverSQL returns s with transactions that begin begins, for stet.DoTx:
//
//	postgres.OverSQL(s, func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) })
//
// The ctx of begin ends with the transaction, or if begin takes too long: a transaction that
// begins later is rolled back. A COMMIT that takes longer than 10 seconds is no longer waited
// for, and the record is read. The database must be that of s. database/sql cannot send
// statements together, so a transaction takes two more round trips at its begin and two at its
// end.
func OverSQL[Tx SQLTx](s *Store, begin func(ctx context.Context) (Tx, error)) *SQLStore[Tx] {
	return &SQLStore[Tx]{Store: s, begin: begin}
}

// Unwrap returns the Store that it was made of.
func (s *SQLStore[Tx]) Unwrap() store.Store { return s.Store }

// SettleTx is Store.SettleTx.
func (s *SQLStore[Tx]) SettleTx(ctx context.Context, tx Tx, c store.Claim, out store.Settlement, keep store.Retention) error {
	return s.SettleSQL(ctx, tx, c, out, keep)
}

// LockTx is Store.LockTx.
func (s *SQLStore[Tx]) LockTx(ctx context.Context, tx Tx, id store.ID) (bool, error) {
	return scanLocked(tx.QueryRowContext(ctx, sqlLockOther, s.locks(id, store.Fingerprint{}).key))
}

// RunTx is Store.RunTx. fn must not end the transaction. If it does, nothing can
// keep it from that, and the error is of kind ErrUnknown.
func (s *SQLStore[Tx]) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	if s.closed.Load() {
		return store.Record{}, errClosed
	}
	for try := 1; ; try++ {
		called := false
		rec, err := s.runTx(ctx, req, keep, func(ctx context.Context, tx Tx, rec store.Record) (store.Settlement, error) {
			called = true
			return fn(ctx, tx, rec)
		})
		if called || try == slowTries || !errors.Is(err, errLookAgain) {
			return rec, err
		}
	}
}

// runTx is one try of RunTx.
func (s *SQLStore[Tx]) runTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	tx, b, err := s.start(ctx)
	if err != nil {
		return store.Record{}, explain("begin", err)
	}
	defer b.rollback() // also when fn panics or calls runtime.Goexit
	t := &transaction{s: s.Store, req: &req, locks: s.locks(req.ID, req.Fingerprint)}
	rec, granted, err := t.enterSQL(ctx, b)
	if err != nil || !granted {
		return rec, err
	}
	out, err := fn(ctx, tx, rec)
	if err != nil {
		return rec, err
	}
	if !out.State.Settled() {
		return rec, fmt.Errorf("%w: an outcome is completed or failed, not %v", store.ErrInvalid, out.State)
	}
	return t.leaveSQL(ctx, b, rec, &ending{claim: rec.Claim(), out: out, keep: keep})
}

// begun is a transaction of database/sql.
type begun struct {
	SQLTx
	s      *Store
	cancel context.CancelFunc
	left   bool // its commit is in progress, and no caller waits for it
}

// start begins a transaction with a context that does not end with ctx: database/sql would
// roll back while fn runs. A transaction that has not begun when ctx ends is rolled back if it
// begins later.
func (s *SQLStore[Tx]) start(ctx context.Context) (tx Tx, b *begun, err error) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var made Tx
	err = within(ctx, func() (err error) {
		made, err = s.begin(life)
		return err
	}, func(err error) {
		if err == nil {
			_ = made.Rollback()
		}
	})
	if err != nil {
		cancel()
		return tx, nil, err
	}
	return made, &begun{SQLTx: made, s: s.Store, cancel: cancel}, nil
}

// commit commits. When ctx ends before the answer comes the transaction is left to
// itself: see standby.go.
func (b *begun) commit(ctx context.Context) error {
	done := make(chan struct{})
	err := within(ctx, b.Commit, func(error) { close(done) })
	if b.left = errors.Is(err, errUnanswered); b.left {
		go b.s.outwait(done, b.cancel)
	}
	return err
}

// rollback rolls back if nothing was committed. On a dead connection that may never return,
// unless the transaction's context ends.
func (b *begun) rollback() {
	if b.left {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	_ = within(ctx, b.Rollback, func(error) {})
	b.cancel()
}

// within calls fn, which may take permanently. When ctx ends before it has returned, the
// error is errUnanswered, and late is called with its own when it has.
func within(ctx context.Context, fn func() error, late func(error)) error {
	type result struct {
		err   error
		panic any
	}
	done, left := make(chan result), make(chan struct{})
	go func() {
		r := result{err: errGoexit}
		defer func() {
			if r.panic = recover(); r.panic != nil {
				r.err = errGoexit
			}
			select {
			case done <- r:
			case <-left:
				late(r.err)
			}
		}()
		r.err = fn()
	}()
	select {
	case r := <-done:
		if r.panic != nil {
			panic(r.panic)
		}
		return r.err
	case <-ctx.Done():
		close(left)
		return fmt.Errorf("%w: %w", errUnanswered, context.Cause(ctx))
	}
}

var errGoexit = errors.New("postgres: the function that begins transactions has not returned")

// enterSQL is transaction.enter over database/sql. The caller rolls back a transaction that
// was not granted.
func (t *transaction) enterSQL(ctx context.Context, tx *begun) (rec store.Record, granted bool, err error) {
	r, err := t.scanEntered(tx.QueryRowContext(ctx, t.s.sql.enter.sql, t.locks.key, t.locks.id, t.locks.finger, t.req.ID[:]))
	if err != nil {
		return rec, false, explain("begin", err)
	}
	rec, granted, err = t.admit(ctx, r, sqlQuery(ctx, tx), func(wait bool) {
		if wait {
			tx.rollback()
		}
	})
	if err != nil && !errors.Is(err, store.ErrMismatch) && !errors.Is(err, store.ErrNotDone) {
		err = explain("begin", err)
	}
	return rec, granted, err
}

// leaveSQL is transaction.leave over database/sql.
func (t *transaction) leaveSQL(ctx context.Context, tx *begun, rec store.Record, e *ending) (store.Record, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.s.commitTimeout)
	defer cancel()
	st, list := t.finishing()
	// The lock is this transaction's own, unless fn has ended it: then what
	// follows would be committed by itself.
	var ours bool
	if err := tx.QueryRowContext(ctx, sqlStillLocked, t.locks.keyHi, t.locks.keyLo).Scan(&ours); err != nil {
		if errors.Is(err, sql.ErrTxDone) {
			return rec, fmt.Errorf("postgres: %w: the function ended the transaction, and must not; its writes may be stored, but no record of them", store.ErrUnknown)
		}
		return rec, fmt.Errorf("%w (nothing was committed)", explain("commit", err))
	}
	if !ours {
		return rec, fmt.Errorf("postgres: %w: the function ended the transaction by an SQL command, and must not; its writes may be stored, but no record of them", store.ErrUnknown)
	}
	var at time.Time
	var ignored bool
	err := tx.QueryRowContext(ctx, st.sql, args(list, t.write(rec, e))...).Scan(&at, &ignored, &ignored)
	if isTaken(codeOf(err)) {
		tx.rollback()
		return t.lost(ctx)
	}
	if err != nil {
		return rec, fmt.Errorf("%w (nothing was committed)", explain("commit", err))
	}
	fault.At(fault.CommitBefore)
	err = tx.commit(ctx)
	fault.At(fault.CommitAfter)
	switch {
	case err == nil && t.replicated: // database/sql does not return notices
		return settled(rec, e, at), t.s.confirm(ctx)
	case err == nil:
		return settled(rec, e, at), nil
	case codeOf(err) != "" && answered(err):
		return rec, uncommitted(err)
	}
	tx.rollback()
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
