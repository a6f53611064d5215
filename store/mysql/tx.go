package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

// Querier has the methods of a transaction of database/sql: *sql.Tx, *sqlx.Tx, GORM's
// tx.Statement.ConnPool.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// SQLTx is a Querier that can be ended.
type SQLTx interface {
	Querier
	Commit() error
	Rollback() error
}

// SQLStore is a Store whose transactions are those of a library on top of database/sql. It shares
// everything else with the Store that it was made of, which is the one to close.
type SQLStore[Tx SQLTx] struct {
	*Store
	begin func(ctx context.Context, forClaims bool) (Tx, error)
}

var _ store.WorkTxStore[*sql.Tx] = (*SQLStore[*sql.Tx])(nil)

// OverSQL returns s with transactions that begin begins, on any pool of the same server:
//
//	mysql.OverSQL(s, func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) })
//
// The ctx of begin ends with the transaction. A COMMIT that takes longer than 10 seconds is no longer
// waited for, and the record is read.
func OverSQL[Tx SQLTx](s *Store, begin func(ctx context.Context) (Tx, error)) *SQLStore[Tx] {
	return &SQLStore[Tx]{s, func(ctx context.Context, _ bool) (Tx, error) { return begin(ctx) }}
}

// over is s with transactions of DB. A transaction for claims is at READ COMMITTED: at a higher level
// MariaDB may refuse to write a row that a heartbeat has written since the transaction began.
func (s *Store) over() *SQLStore[*sql.Tx] {
	return &SQLStore[*sql.Tx]{s, func(ctx context.Context, forClaims bool) (*sql.Tx, error) {
		var o sql.TxOptions
		if forClaims {
			o.Isolation = sql.LevelReadCommitted
		}
		return s.db.BeginTx(ctx, &o)
	}}
}

// Unwrap returns the Store that it was made of.
func (s *SQLStore[Tx]) Unwrap() store.Store { return s.Store }

// RunTx implements store.TxStore, with a transaction of DB at the server's default level.
//
// The transaction inserts the record as running before it calls fn, and settles it afterwards. Others
// can see that it runs, and do not wait. If two begin within the same moment, one waits for the other's
// end. ctx bounds the time until fn is called; its end does not interrupt the commit. If the answer to a
// commit is lost, the record is read for 10 seconds, after the server has ended the transaction.
//
// fn must not end the transaction. It must return each error of a statement that it does not expect:
// MySQL rolls back that statement alone. After a deadlock MySQL rolls back the whole transaction; if fn
// ignores that, RunTx returns store.ErrUnknown, because later statements of fn are committed.
func (s *Store) RunTx(ctx context.Context, req store.ClaimRequest, keep store.Retention,
	fn func(context.Context, *sql.Tx, store.Record) (store.Settlement, error)) (store.Record, error) {
	return s.over().RunTx(ctx, req, keep, fn)
}

// SettleTx implements store.TxStore. Until the transaction ends the record is locked: its lease is not
// renewed, and other writes of this record wait.
func (s *Store) SettleTx(ctx context.Context, tx *sql.Tx, c store.Claim, out store.Settlement, keep store.Retention) error {
	return s.settleIn(ctx, tx, c, out, keep)
}

// InTx implements store.WorkTxStore, with a transaction of DB at READ COMMITTED. fn must not end it.
func (s *Store) InTx(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	return s.over().InTx(ctx, fn)
}

// AcceptTx implements store.WorkTxStore. Until the transaction ends, other writes of this record wait.
func (s *Store) AcceptTx(ctx context.Context, tx *sql.Tx, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	return s.acceptIn(ctx, tx, claiming{&req, notNil(work), after})
}

// SaveTx implements store.WorkTxStore, like SettleTx.
func (s *Store) SaveTx(ctx context.Context, tx *sql.Tx, c store.Claim, notes store.Notes, repeatable bool) error {
	return s.saveIn(ctx, tx, c, notes, repeatable)
}

// SettleTx is Store.SettleTx.
func (s *SQLStore[Tx]) SettleTx(ctx context.Context, tx Tx, c store.Claim, out store.Settlement, keep store.Retention) error {
	return s.settleIn(ctx, tx, c, out, keep)
}

// AcceptTx is Store.AcceptTx.
func (s *SQLStore[Tx]) AcceptTx(ctx context.Context, tx Tx, req store.ClaimRequest, work []byte, after time.Duration) (store.Record, error) {
	return s.acceptIn(ctx, tx, claiming{&req, notNil(work), after})
}

// SaveTx is Store.SaveTx.
func (s *SQLStore[Tx]) SaveTx(ctx context.Context, tx Tx, c store.Claim, notes store.Notes, repeatable bool) error {
	return s.saveIn(ctx, tx, c, notes, repeatable)
}

// settleIn settles in a transaction.
func (s *Store) settleIn(ctx context.Context, tx Querier, c store.Claim, out store.Settlement, keep store.Retention) error {
	if err := s.checkOutcome(out); err != nil {
		return err
	}
	if err := checkOpen(ctx, tx); err != nil {
		return err
	}
	return s.changeIn(ctx, tx, c.ID, "settle", func(now micros, r *row) error {
		change, err := rules.OnSettle(r.whole(now), c, out, instant(now))
		if err == nil && change == rules.None {
			// It was settled before, perhaps by an unacknowledged commit of this run: the writes of this
			// transaction would be there twice.
			return store.ErrFenced
		}
		if err == nil {
			r.settle(now, out, keep)
		}
		return err
	})
}

// saveIn saves in a transaction.
func (s *Store) saveIn(ctx context.Context, tx Querier, c store.Claim, notes store.Notes, repeatable bool) error {
	if err := checkOpen(ctx, tx); err != nil {
		return err
	}
	return s.changeIn(ctx, tx, c.ID, "save", func(now micros, r *row) error {
		change, err := rules.OnSave(r.whole(now), c, notes, store.Running)
		if err == nil && change != rules.None {
			r.save(notes, repeatable)
		}
		return err
	})
}

// acceptIn accepts in a transaction.
func (s *Store) acceptIn(ctx context.Context, tx Querier, c claiming) (rec store.Record, err error) {
	if err := checkOpen(ctx, tx); err != nil {
		return rec, err
	}
	if _, err := tx.ExecContext(ctx, s.t.reserve, c.ID[:]); err != nil {
		return rec, explain("accept (roll back)", err)
	}
	var r *row
	var at micros
	err = s.changeIn(ctx, tx, c.ID, "accept", func(now micros, found *row) error {
		r, at = found, now
		err := r.claim(now, c)
		return err
	})
	if err != nil && !errors.Is(err, store.ErrMismatch) {
		return rec, err
	}
	if rec = r.at(at); err == nil && !r.dirty {
		err = s.confirmRead(ctx, r, at)
	}
	return rec, err
}

// checkOpen returns errLeft if tx has ended: after a deadlock, the server has rolled back its writes and commits each
// later statement.
func checkOpen(ctx context.Context, tx Querier) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, "SAVEPOINT stet_open")
	if err == nil {
		_, err = tx.ExecContext(ctx, "RELEASE SAVEPOINT stet_open")
	}
	if numberOf(err) == errNoSavepoint {
		return fmt.Errorf("mysql: %w", errLeft)
	}
	return explain("check the transaction (roll back)", err)
}

// changeIn reads and locks a row in a transaction, and writes it if do changes it.
func (s *Store) changeIn(ctx context.Context, tx Querier, id store.ID, step string, do func(now micros, r *row) error) error {
	step += " (roll back)"
	began := time.Now()
	a, err := s.answer(ctx, tx, s.t.lockOne, id[:])
	if err != nil {
		return explain(step, err)
	}
	now := a.now
	if waited := time.Since(began); waited > 50*time.Millisecond {
		now += span(waited) // it waited for the row, and the server's time is that of its begin
	}
	r := a.row(id)
	if r.broken != nil {
		return r.broken
	}
	if !r.stored {
		now = 0
	}
	if err := do(now, r); err != nil || !r.dirty {
		return err
	}
	if err := a.refusal(); err != nil {
		return err
	}
	return explain(step, s.writeIn(ctx, tx, r))
}

// writeIn writes a row that is locked in the transaction.
func (s *Store) writeIn(ctx context.Context, tx Querier, r *row) error {
	if r.drawn {
		res, err := tx.ExecContext(ctx, s.t.replace+rowMarks, r.values()...)
		if err == nil {
			r.Fence, err = res.LastInsertId()
		}
		return err
	}
	values := slices.Delete(r.values(), connColumn, connColumn+1)
	res, err := tx.ExecContext(ctx, s.t.update, append(values[2:], r.State.Settled(), r.ID[:], r.Fence)...)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return errors.Join(errLeft, err)
	}
	return nil
}

// errLeft: the row that the transaction had locked is not there.
var errLeft = fmt.Errorf("the transaction has ended before: %w", store.ErrFenced)
