package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/stet-go/stet/store"
)

// prepared are the statements of the store, prepared on a pool.
type prepared [queries]*sql.Stmt

// prepareOn prepares all statements on a pool, which closes them.
func prepareOn(ctx context.Context, db *sql.DB) (p *prepared, err error) {
	p = &prepared{}
	for q, text := range sqlText {
		if p[q], err = db.PrepareContext(ctx, text); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// session runs statements: in a transaction, or to read without one.
type session struct {
	ctx     context.Context
	tx      *sql.Tx   // nil to read
	stmts   *prepared // nil in a transaction of another pool
	now     micros
	changed int64 // rows
}

// read calls do with a session on the connections for reading.
func (s *Store) read(ctx context.Context, do func(*session) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.reading.RLock()
	defer s.reading.RUnlock()
	err := do(&session{ctx: ctx, stmts: s.readStmts, now: s.o.Clock().UnixMicro()})
	switch {
	case err == nil || errors.Is(err, store.ErrDamaged):
		return err
	case s.w.isClosed():
		return errClosed
	case ctx.Err() != nil:
		return fmt.Errorf("sqlite: read: %w", context.Cause(ctx))
	}
	return s.explain("read", err, s.path)
}

func (s *session) stmt(q query) (*sql.Stmt, error) {
	switch {
	case s.stmts == nil:
		return s.tx.PrepareContext(s.ctx, sqlText[q]) // the end of the transaction closes it
	case s.tx == nil:
		return s.stmts[q], nil
	}
	return s.tx.StmtContext(s.ctx, s.stmts[q]), nil
}

// exec returns how many rows the statement has changed.
func (s *session) exec(q query, args ...any) (int64, error) {
	stmt, err := s.stmt(q)
	if err != nil {
		return 0, err
	}
	res, err := stmt.ExecContext(s.ctx, args...)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	s.changed += n
	return n, err
}

// rows calls each for every row.
func (s *session) rows(q query, each func([]any) error, args ...any) (err error) {
	stmt, err := s.stmt(q)
	if err != nil {
		return err
	}
	rows, err := stmt.QueryContext(s.ctx, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	names, err := rows.Columns()
	if err != nil {
		return err
	}
	for rows.Next() {
		values := make([]any, len(names))
		into := make([]any, len(names))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return err
		}
		if err := each(values); err != nil {
			return err
		}
	}
	return rows.Err()
}

// nextFence returns a fence that is greater than all before. Only a row makes it durable.
func (s *session) nextFence() (fence int64, err error) {
	found := false
	err = s.rows(qFence, func(v []any) error {
		fence, found = v[0].(int64)
		return nil
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: the table stet_meta is empty", errDamaged)
	}
	return fence + 1, err
}
