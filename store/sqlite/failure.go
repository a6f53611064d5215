package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/stet-go/stet/store"
)

// failures are the connections of RunTx and InTx. They remember that a statement of the
// function failed: SQLite itself would commit the statements around it, and a function that
// dropped the error would store a success whose write is missing.
type failures struct {
	driver.Connector
	err error // of the first statement that failed in this transaction; guarded by Store.w
}

// check refuses to commit a transaction in which a statement failed.
func (f *failures) check() error {
	if f.err == nil {
		return nil
	}
	return &store.AbortedError{Cause: fmt.Errorf("sqlite: a statement of the transaction failed, and the function returned no error (nothing was committed): "+
		"return the error, or put a SAVEPOINT around a statement that may fail: %w", f.err)}
}

// note remembers the error of a statement.
func (f *failures) note(err error) {
	if err != nil && f.err == nil {
		f.err = err
	}
}

// before is called with each statement of a function, as PostgreSQL treats it after a
// failure: ROLLBACK TO undoes the failed statement, and a new savepoint could not.
func (f *failures) before(statement string) error {
	if f.err == nil {
		return nil
	}
	words := strings.Fields(strings.ToUpper(statement))
	switch {
	case len(words) == 0:
	case words[0] == "SAVEPOINT":
		return f.check()
	case words[0] == "ROLLBACK" && strings.Contains(strings.Join(words, " "), " TO "):
		f.err = nil
	}
	return nil
}

// Connect implements driver.Connector.
func (f *failures) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := f.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &watchedConn{conn.(fullConn), f}, nil
}

// fullConn are the methods of a connection that database/sql uses if they are there.
type fullConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

type watchedConn struct {
	fullConn
	failures *failures
}

func (c *watchedConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	c.failures.err = nil
	return c.fullConn.BeginTx(ctx, o)
}

func (c *watchedConn) ExecContext(ctx context.Context, statement string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.failures.before(statement); err != nil {
		return nil, err
	}
	res, err := c.fullConn.ExecContext(ctx, statement, args)
	c.failures.note(err)
	return res, err
}

func (c *watchedConn) QueryContext(ctx context.Context, statement string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.failures.before(statement); err != nil {
		return nil, err
	}
	rows, err := c.fullConn.QueryContext(ctx, statement, args)
	c.failures.note(err)
	return rows, err
}

func (c *watchedConn) PrepareContext(ctx context.Context, statement string) (driver.Stmt, error) {
	if err := c.failures.before(statement); err != nil {
		return nil, err
	}
	stmt, err := c.fullConn.PrepareContext(ctx, statement)
	c.failures.note(err)
	if err != nil {
		return nil, err
	}
	return &watchedStmt{stmt.(fullStmt), c.failures}, nil
}

// fullStmt is fullConn's for statements.
type fullStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type watchedStmt struct {
	fullStmt
	failures *failures
}

func (s *watchedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	res, err := s.fullStmt.ExecContext(ctx, args)
	s.failures.note(err)
	return res, err
}

func (s *watchedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := s.fullStmt.QueryContext(ctx, args)
	s.failures.note(err)
	return rows, err
}
