package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stet-go/stet/store"
)

// A server with synchronous standbys confirms a COMMIT when they have received it. Until then no
// reader sees its writes. If the wait ends early (by a cancel request, the end of the process, or
// a restart of the server), the writes become visible although no standby has them. Therefore:
//   - This package never ends the wait: commits are sent with a context that does not end, on a
//     connection without cancel requests. Their callers do not wait for them.
//   - A reply with a notice does not count: the notice says that the wait was interrupted.
//   - A record that was read is returned as an outcome after a later commit was confirmed,
//     because standbys receive commits in order.

// errUnconfirmed: the record may be on this server alone.
var errUnconfirmed = fmt.Errorf("%w: no synchronous standby has confirmed the stored record", store.ErrUnknown)

// sqlConfirm is a commit that writes nothing that stays, if commits wait for a standby.
const sqlConfirm = `SELECT CASE WHEN ` + replicated + ` THEN pg_logical_emit_message(true, 'stet', '') END::text`

// replicated is whether commits wait for a standby.
const replicated = `(current_setting('synchronous_standby_names') <> '')`

// confirm returns when everything that the server has shown is as durable as it
// promises. Concurrent calls share commits. The error is of kind store.ErrUnknown.
func (s *Store) confirm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.commitTimeout)
	defer cancel()
	if _, err := s.confirms.do(ctx, struct{}{}); err != nil {
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	}
	return nil
}

func (s *Store) runConfirms(ctx context.Context, batch []*op[struct{}]) {
	err := s.exec(ctx, func() []call { return []call{{statement: s.sql.confirm}} })
	for _, o := range batch {
		o.err = err
	}
}

// ensureReplicated returns nil if r can be returned to the caller owner. Records in flight,
// unknown or free to run can always be returned, because every consequence needs a commit.
func (s *Store) ensureReplicated(ctx context.Context, r *row, owner store.Owner) error {
	if !r.binding(owner) {
		return nil
	}
	return s.confirm(ctx)
}

// binding reports whether a caller would rely on r, while no standby has confirmed its commit.
func (r *row) binding(owner store.Owner) bool {
	return r != nil && r.replicated && (r.State.Settled() || r.State == store.Accepted || r.Owner == owner)
}

// hush makes the driver's requests to cancel what the connection does void, until loud
// is called. The driver sends one whenever it loses a connection.
func hush(c *pgconn.PgConn) (loud func()) {
	key := c.SecretKey() // not a copy
	kept := slices.Clone(key)
	clear(key)
	return func() { copy(key, kept) }
}

// notices listens for messages beside the answer, on a connection whose configuration
// is the service's.
type notices struct{ heard bool }

// Write implements io.Writer for pgproto3's trace.
func (n *notices) Write(b []byte) (int, error) {
	n.heard = n.heard || bytes.Contains(b, []byte("NoticeResponse"))
	return len(b), nil
}

// wasNoticed is the name under which a connection of the store's own keeps that there
// was a notice since it was looked at last.
const wasNoticed = "stet/store/postgres: notice"

func onNotice(c *pgconn.PgConn, n *pgconn.Notice) {
	if n.SeverityUnlocalized == "WARNING" && n.Routine != "GetNewTransactionId" { // which warns of a table that needs VACUUM
		c.CustomData()[wasNoticed] = true
	}
}

// audible has the server send warnings, for the rest of the transaction.
const audible = `(CASE WHEN current_setting('client_min_messages') = 'error' THEN set_config('client_min_messages', 'warning', true) END) IS NULL`

// waitsThere returns errUnconfirmed if commits wait for a standby: a write with a notice is then
// repeated, and finds its record.
func waitsThere(ctx context.Context, c *pgconn.PgConn) error {
	results, err := c.Exec(ctx, "SELECT "+replicated).ReadAll()
	if err == nil && len(results) == 1 && len(results[0].Rows) == 1 && string(results[0].Rows[0][0]) == "f" {
		return nil
	}
	return errUnconfirmed
}

// noticed reports whether there was a notice, and forgets it.
func noticed(c *pgconn.PgConn) bool {
	_, was := c.CustomData()[wasNoticed]
	delete(c.CustomData(), wasNoticed)
	return was
}

// errUnanswered: the server has not answered yet, and the write may still take effect.
var errUnanswered = errors.New("the server has not answered yet, and it may still take effect")

// answer is the result of a commit on a connection of the service's.
type answer struct {
	at    time.Time // when it was settled
	taken bool      // nothing was committed: the record is another's, or the claim not the newest
}

// committing calls send, which sends a COMMIT, and returns the server's answer, unless ctx ends
// before. Then t has no connection any more: send has its own copy of t, and uses the connection
// until the answer comes, none can come, or the store is closed.
//
// If commits wait for no standby (alone), no wait can end early, and send is called directly.
// A standby that is configured while the transaction runs counts from the next one on.
func (t *transaction) committing(ctx context.Context, alone bool, send func(context.Context, *transaction) (answer, error)) (answer, error) {
	if alone || t.conn.Conn().IsClosed() { // a closed connection sends nothing, and pgx still uses it
		return send(ctx, t)
	}
	type result struct {
		answer
		err error
	}
	rest := *t
	conn := t.conn.Conn().PgConn()
	noticed := new(notices)
	answered, left, done := make(chan result), make(chan struct{}), make(chan struct{})
	life, end := context.WithCancel(t.s.background)
	go func() {
		defer close(done)
		loud := hush(conn)
		conn.Frontend().Trace(noticed, pgproto3.TracerOptions{SuppressTimestamps: true})
		a, err := send(life, &rest)
		if !conn.IsClosed() { // or pgx still uses both
			conn.Frontend().Untrace()
			loud()
		}
		select {
		case answered <- result{a, err}:
		case <-left:
			rest.rollBack()
		}
	}()
	select {
	case r := <-answered:
		end()
		if r.err == nil && noticed.heard {
			r.err = t.s.confirm(ctx)
		}
		return r.answer, r.err
	case <-ctx.Done():
		close(left)
		go t.s.outwait(done, end)
		t.conn = nil
		return answer{}, fmt.Errorf("%w: %w", errUnanswered, context.Cause(ctx))
	}
}
