package postgres

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/internal/timer"
)

const (
	execTries   = 4
	execBackoff = 5 * time.Millisecond
)

// exec has calls executed in one transaction, on a connection of the store's
// own. make makes them, and forgets what the rows of a try before have said.
// Lost races and connections are tried again, which is harmless: every call
// may be repeated. If the whole table is locked it waits for that, but not for
// a row: that is the caller's to do.
func (s *Store) exec(ctx context.Context, make func() []call) error {
	for pause := execBackoff; ; pause = min(2*pause, rowPatience) {
		err := s.execOnRow(ctx, make)
		if sqlState(err) != codeLocked || lockedRow(err) || s.closed.Load() || !timer.Sleep(ctx, timer.Around(pause)) {
			return err
		}
	}
}

// execOnRow is exec without waiting for anything that is locked, longer than
// rowPatience.
func (s *Store) execOnRow(ctx context.Context, make func() []call) (err error) {
	for try, pause := 1, execBackoff; ; try, pause = try+1, 4*pause {
		if err = s.execOnce(ctx, make()); err == nil || try == execTries || !transient(err) || s.closed.Load() {
			return err
		}
		if ctx.Err() != nil || !timer.Sleep(ctx, timer.Around(pause)) {
			return err
		}
		if try == execTries-1 && !answered(err) {
			s.own.Reset() // so many have died that others may have: a restart, a time-out of idle sessions
		}
	}
}

func (s *Store) execOnce(ctx context.Context, calls []call) error {
	if slices.ContainsFunc(calls, func(c call) bool { return !c.reads }) {
		return s.writeOnce(ctx, calls)
	}
	c, err := s.own.Acquire(ctx)
	if err != nil {
		return err
	}
	defer giveBack(c)
	return s.send(ctx, c, calls...)
}

// statement is one SQL text.
type statement struct {
	sql   string
	reads bool // and writes nothing
}

// call is one execution of a statement.
type call struct {
	*statement
	args []any
	row  func(scanner) error // is called for each row
}

// send executes calls in one round trip and, unless there is a transaction, in
// one transaction. The values of rows count only if it returns nil.
func (s *Store) send(ctx context.Context, c *pgxpool.Conn, calls ...call) error {
	if s.o.PgBouncer { // the session is not ours
		calls = append([]call{{statement: patience}}, calls...)
	}
	if len(calls) == 1 {
		rows, err := c.Query(ctx, calls[0].sql, calls[0].args...)
		if err != nil {
			return err
		}
		return calls[0].read(rows)
	}
	var b pgx.Batch
	for _, call := range calls {
		b.Queue(call.sql, call.args...).Query(call.read)
	}
	return c.SendBatch(ctx, &b).Close()
}

// read reads the rows of a result to the end.
func (c call) read(rows pgx.Rows) error {
	defer rows.Close()
	var bad error
	for rows.Next() {
		if bad == nil && c.row != nil {
			bad = c.row(rows)
		}
	}
	return cmp.Or(rows.Err(), bad)
}

// giveBack returns a connection to the store's own pool. A broken connection takes up to 15
// seconds to close. It does not count during that time, so that others can use its place.
func giveBack(c *pgxpool.Conn) {
	if c.Conn().IsClosed() {
		c.Hijack()
		return
	}
	c.Release()
}
