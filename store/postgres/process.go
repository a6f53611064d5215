package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// process is the process of the server that a connection has to itself. When that has
// ended, so has whatever the connection began.
type process struct {
	pid   uint32
	start string // microseconds since 1970: another process may get its number
}

// ownProcess is the name of what a connection keeps of its process: a *process, nil if
// it has none to itself.
const ownProcess = "stet/store/postgres: the server's process"

const sqlStart = `(extract(epoch FROM backend_start) * 1000000)::bigint::text`

// processOf returns the process of a connection that has no transaction; nil if it has
// none to itself, because of PgBouncer or another go-between, whether we were told of
// it or not: the number of the process that it was promised is not the one it has. It
// asks once for each connection.
func (s *Store) processOf(ctx context.Context, conn *pgx.Conn) (*process, error) {
	if s.o.PgBouncer {
		return nil, nil
	}
	c := conn.PgConn()
	if p, ok := c.CustomData()[ownProcess].(*process); ok {
		return p, nil
	}
	results, err := c.Exec(ctx, `SELECT pid::text, `+sqlStart+` FROM pg_stat_activity WHERE pid = pg_backend_pid()`).ReadAll()
	if err != nil && !answered(err) {
		return nil, err
	}
	var p *process // nil if the server does not say
	if err == nil && len(results) == 1 && len(results[0].Rows) == 1 {
		row := results[0].Rows[0]
		if pid, err := strconv.ParseUint(string(row[0]), 10, 32); err == nil && uint32(pid) == c.PID() && row[1] != nil {
			p = &process{uint32(pid), string(row[1])}
		}
	}
	c.CustomData()[ownProcess] = p
	return p, nil
}

var errAtWork = errors.New("the server is still at work on it")

// sqlGone asks whether p is still at work on a transaction that began age ago, or
// earlier. A pooler may have given p to another client since, whose transaction is
// younger. end has the server end it first, if it is idle in that transaction, or waits for
// the rest of what it was sent. Before PostgreSQL 15 no more than 35 minutes can be written as interval 'N us'.
func (p *process) sqlGone(end bool, age time.Duration) string {
	ours := fmt.Sprintf(`pid = %d AND coalesce(%s, '%s') = '%[3]s' AND coalesce(clock_timestamp() - xact_start, %d * interval '1 us') >= %[4]d * interval '1 us'`,
		p.pid, sqlStart, p.start, age.Microseconds())
	sql := `SELECT true FROM pg_stat_activity WHERE ` + ours + ` AND (xact_start IS NOT NULL OR state IS NULL)`
	if end {
		sql = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE ` + ours + ` AND (state LIKE 'idle in transaction%' OR state = 'active' AND wait_event = 'ClientRead'); ` + sql
	}
	return sql
}
