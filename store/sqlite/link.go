package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
)

// query is a statement that is prepared once per connection.
type query uint8

const (
	qBegin query = iota
	qCommit
	qRollback
	qFence
	qInsert
	qSelect
	qGrant
	qPark
	qExtend
	qSettle
	qRelease
	qDue
	qExpire
	qPurge
	qBrowse
	qBrowseUnknown
	qAccept
	qRead
	qLook
	qTake
	qReturn
	qCancel
	qCancelRun
	qSave
	qNameFrom
	qWaitsRun
	qWaitsRelay
	qDueRun
	qDueRelay
	qAgainRun
	qAgainRelay
	qPutOff
	qBury
	qDrop
	qRelayed
	qTrust
	queries // how many there are
)

const (
	// bare removes a result.
	bare = `status = NULL, content_type = NULL, head = NULL, body = NULL`
	// marked is whether a run is repeatable.
	marked  = `state = 1 AND run_due IS NOT NULL`
	columns = `scope, fingerprint, owner, state, fence, attempt, gone, claimed, lease, settled, expires, forget, status, content_type, head, body, class, name, ref, ` + marked
	// shown are columns without the result, and whose they are.
	shown = `scope, fingerprint, owner, state, fence, attempt, gone, claimed, lease, settled, expires, forget, NULL, NULL, NULL, NULL, class, name, ref, ` + marked + `, id`
)

var sqlText = [queries]string{
	qBegin:    `BEGIN IMMEDIATE`,
	qCommit:   `COMMIT`,
	qRollback: `ROLLBACK`,

	qFence: `SELECT max(fence, coalesce((SELECT max(fence) FROM stet_records), 0)) FROM stet_meta WHERE one = 1`,

	qInsert: `INSERT INTO stet_records (fence, id, scope, fingerprint, owner, state, attempt, claimed, lease, due, class, name, ref)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING`,
	qSelect: `SELECT ` + columns + ` FROM stet_records WHERE id = ?`,

	// The writes below name the fence that was read or is claimed, and so
	// can never touch a record that another caller has claimed since.
	qGrant: `UPDATE stet_records SET scope = ?, fingerprint = ?, owner = ?, class = ?, name = ?, ref = ?, state = ?, fence = ?, attempt = ?, gone = 0,
		claimed = ?, lease = ?, due = ?, settled = NULL, expires = NULL, forget = NULL, ` + bare + `,
		notes = CASE WHEN forget > ? THEN notes END, run_due = ?, work = ? WHERE fence = ? AND id = ?`,
	qPark: `UPDATE stet_records SET state = CASE WHEN run_due IS NULL THEN 5 ELSE 6 END, settled = ?,
		lease = CASE WHEN run_due IS NOT NULL THEN ? END, due = NULL
		WHERE fence = ? AND id = ? AND state = 1 AND lease <= ?`,
	qExtend: `UPDATE stet_records SET lease = ?, due = ?, run_due = max(run_due, ?) -- NULL if it is NULL
		WHERE fence = ? AND id = ? AND state = 1`,
	qSettle: `UPDATE stet_records SET state = ?, gone = ?, status = ?, content_type = ?, head = ?, body = ?, settled = ?, expires = ?, forget = ?, due = ?, lease = NULL,
		work = ?, relay_due = ?, run_due = NULL, notes = NULL, cancelling = NULL
		WHERE fence = ? AND id = ? AND state IN (1, 5)`,
	qRelease: `UPDATE stet_records SET state = 4, settled = ?, forget = ?, due = ?, lease = NULL
		WHERE fence = ? AND id = ? AND state IN (1, 5) AND work IS NULL`,

	qDue: `SELECT ` + shown + ` FROM stet_records WHERE due <= ? ORDER BY due LIMIT ?`,
	qExpire: `UPDATE stet_records SET gone = 1, ` + bare + `, due = forget,
		expires = CASE WHEN gone THEN expires ELSE min(expires, ?) END WHERE fence = ? AND id = ?`,
	qPurge: `DELETE FROM stet_records WHERE fence = ? AND id = ?`,

	qBrowse:        `SELECT ` + shown + ` FROM stet_records WHERE id > ? AND id <= ? ORDER BY id LIMIT ?`,
	qBrowseUnknown: `SELECT ` + shown + ` FROM stet_records WHERE id > ? AND id <= ? AND state = 5 ORDER BY id LIMIT ?`,

	qAccept: `INSERT INTO stet_records (fence, id, scope, fingerprint, owner, state, attempt, claimed, lease, run_due, work, class, name, ref)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING`,
	qRead: `SELECT ` + columns + `, cancelling FROM stet_records WHERE id = ?`,
	qLook: `SELECT ` + columns + `, cancelling, notes, work FROM stet_records WHERE id = ?`,
	qTake: `UPDATE stet_records SET owner = ?, state = ?, fence = ?, attempt = ?, claimed = ?, lease = ?, due = ?,
		settled = NULL, run_due = ? WHERE fence = ? AND id = ? AND state IN (1, 6)`,
	qReturn: `UPDATE stet_records SET state = 6, settled = ?, run_due = ?, lease = ?, due = NULL
		WHERE fence = ? AND id = ? AND state IN (1, 5) AND work IS NOT NULL`,
	qCancel: `UPDATE stet_records SET state = 3, gone = ?, status = ?, content_type = ?, head = ?, body = ?, settled = ?, expires = ?, forget = ?, due = ?,
		lease = NULL, run_due = NULL, work = NULL, notes = NULL, cancelling = NULL WHERE fence = ? AND id = ? AND state = 6`,
	qCancelRun: `UPDATE stet_records SET cancelling = 1 WHERE fence = ? AND id = ? AND state = 1 AND work IS NOT NULL`,
	qSave: `UPDATE stet_records SET notes = ?, run_due = CASE WHEN ? AND work IS NOT NULL THEN coalesce(run_due, lease) END
		WHERE fence = ? AND id = ? AND state = ? AND coalesce(substr(notes, 1, 8), x'') < ?`,

	qNameFrom:   `SELECT name FROM stet_records WHERE run_due IS NOT NULL AND name >= ? ORDER BY name LIMIT 1`,
	qWaitsRun:   `SELECT EXISTS (SELECT 1 FROM stet_records WHERE name = ? AND run_due <= ?)`,
	qWaitsRelay: `SELECT EXISTS (SELECT 1 FROM stet_records WHERE relay_due <= ?)`,
	qDueRun:     `SELECT ` + columns + `, NULL, NULL, work, id, run_due FROM stet_records WHERE name = ? AND run_due <= ? ORDER BY run_due LIMIT ?`,
	qDueRelay:   `SELECT ` + columns + `, NULL, NULL, work, id, relay_due FROM stet_records WHERE relay_due <= ? ORDER BY relay_due LIMIT ?`,
	qAgainRun:   `UPDATE stet_records SET run_due = ? WHERE fence = ?`, // as was selected, readable or not
	qAgainRelay: `UPDATE stet_records SET relay_due = ? WHERE fence = ?`,
	qPutOff:     `UPDATE stet_records SET due = ? WHERE fence = ?`,

	// Attempt 0 would say that it was never run.
	qBury: `UPDATE stet_records SET fence = CASE WHEN fence > 0 THEN fence ELSE ? END, scope = ?, fingerprint = ?, owner = ?, state = 3,
		attempt = max(attempt, 1), gone = 1, ` + bare + `, settled = ?, expires = ?, forget = ?, due = ?, lease = NULL,
		run_due = NULL, relay_due = NULL, cancelling = NULL, notes = NULL, work = NULL WHERE fence = ? AND id = ?`,
	qDrop: `DELETE FROM stet_records WHERE fence = ? AND length(id) <> 32`,

	qRelayed: `UPDATE stet_records SET work = NULL, relay_due = NULL, forget = ?, due = CASE WHEN gone THEN ? ELSE min(expires, ?) END
		WHERE fence = ? AND id = ? AND state IN (2, 3) AND work IS NOT NULL`,

	qTrust: `SELECT s.synchronous, d.file FROM pragma_synchronous AS s, pragma_database_list AS d WHERE d.name = 'main'`,
}

// session runs statements: on a connection of the store's own, or in a
// transaction of database/sql.
type session interface {
	// exec returns how many rows the statement changed.
	exec(q query, args ...any) (int64, error)
	// rows calls each for every row; the values are valid until it returns.
	rows(q query, each func([]driver.Value) error, args ...any) error
}

// link is a connection below database/sql, whose pooling, locking and argument
// checks cost as much as a short statement does. One goroutine uses it at a time.
type link struct {
	conn  driver.Conn
	stmts [queries]driver.Stmt
	args  []driver.NamedValue
	row   []driver.Value
}

func dial(ctx context.Context, c driver.Connector) (*link, error) {
	conn, err := c.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &link{conn: conn}, nil
}

func (l *link) close() error {
	var errs []error
	for _, s := range l.stmts {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(append(errs, l.conn.Close())...)
}

// stmt returns the prepared statement of q and its arguments.
func (l *link) stmt(q query, args []any) (driver.Stmt, []driver.NamedValue, error) {
	if l.stmts[q] == nil {
		s, err := l.conn.Prepare(sqlText[q])
		if err != nil {
			return nil, nil, err
		}
		l.stmts[q] = s
	}
	l.args = l.args[:0]
	for i, a := range args {
		l.args = append(l.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return l.stmts[q], l.args, nil
}

func (l *link) exec(q query, args ...any) (int64, error) {
	s, named, err := l.stmt(q, args)
	if err != nil {
		return 0, err
	}
	// Not the caller's context: a batch serves many callers, and cutting a
	// write off in the middle rolls all of it back.
	res, err := s.(driver.StmtExecContext).ExecContext(context.Background(), named)
	clear(l.args)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (l *link) rows(q query, each func([]driver.Value) error, args ...any) (err error) {
	s, named, err := l.stmt(q, args)
	if err != nil {
		return err
	}
	rows, err := s.(driver.StmtQueryContext).QueryContext(context.Background(), named)
	clear(l.args)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	if n := len(rows.Columns()); cap(l.row) < n {
		l.row = make([]driver.Value, n)
	} else {
		l.row = l.row[:n]
	}
	for {
		switch err := rows.Next(l.row); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := each(l.row); err != nil {
			return err
		}
	}
}

// txSession runs statements in a transaction of database/sql. stmts, if not nil, are
// some of them, prepared on the pool that the transaction comes from.
type txSession struct {
	ctx   context.Context
	tx    *sql.Tx
	stmts *[queries]*sql.Stmt
}

func (t txSession) exec(q query, args ...any) (int64, error) {
	var res sql.Result
	var err error
	if t.stmts != nil && t.stmts[q] != nil {
		res, err = t.tx.StmtContext(t.ctx, t.stmts[q]).ExecContext(t.ctx, args...)
	} else {
		res, err = t.tx.ExecContext(t.ctx, sqlText[q], args...)
	}
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (t txSession) rows(q query, each func([]driver.Value) error, args ...any) (err error) {
	var rows *sql.Rows
	if t.stmts != nil && t.stmts[q] != nil {
		rows, err = t.tx.StmtContext(t.ctx, t.stmts[q]).QueryContext(t.ctx, args...)
	} else {
		rows, err = t.tx.QueryContext(t.ctx, sqlText[q], args...)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	names, err := rows.Columns()
	if err != nil {
		return err
	}
	values := make([]driver.Value, len(names))
	into := make([]any, len(names))
	for i := range values {
		into[i] = (*any)(&values[i])
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		if err := each(values); err != nil {
			return err
		}
	}
	return rows.Err()
}

// one reads the single integer that q selects.
func one(s session, q query, args ...any) (n int64, err error) {
	found := false
	err = s.rows(q, func(row []driver.Value) error {
		n, found = row[0].(int64)
		return nil
	}, args...)
	if err == nil && !found {
		err = fmt.Errorf("%w: %s gave no number", errDamaged, sqlText[q])
	}
	return n, err
}
