package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/store/postgres"
)

// maxLockWait is how long a statement may wait for a lock.
const maxLockWait = 5 * time.Second

// postgresServer checks the connection, the role, waits for locks, and dead rows.
func postgresServer(ctx context.Context, s *postgres.Store, o postgres.Options) []finding {
	schema, table := cmp.Or(o.Schema, "stet"), cmp.Or(o.Table, "records")
	return []finding{encrypted(ctx, s), grants(ctx, s, schema, table), lockWaits(ctx, s, maxLockWait), deadRows(ctx, s, schema, table)}
}

// encrypted checks whether the connection has TLS.
func encrypted(ctx context.Context, s *postgres.Store) finding {
	const name = "TLS"
	host := s.Pool().Config().ConnConfig.Host
	local := strings.HasPrefix(host, "/") || admin.LoopbackName(host)
	var is bool
	err := s.Pool().QueryRow(ctx, "SELECT coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false)").Scan(&is)
	switch {
	case err != nil:
		return bad(name, err.Error(), "may this role read pg_stat_ssl?")
	case is:
		return ok(name, "the connection is encrypted")
	case local:
		return ok(name, "the connection is not encrypted, and stays on this host")
	}
	return bad(name, "the connection is not encrypted: stored responses can be read on the network", "set ssl = on in the server, and sslmode=verify-full in the URL")
}

// grants checks whether the role has the rights that the store needs.
func grants(ctx context.Context, s *postgres.Store, schema, table string) finding {
	const name = "role"
	var role, missing string
	var super bool
	err := s.Pool().QueryRow(ctx, `SELECT current_user::text, (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
		concat_ws(', ', CASE WHEN NOT has_schema_privilege($1, 'USAGE') THEN 'USAGE on the schema' END,
			(SELECT string_agg(p || ' on the table', ', ') FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p WHERE NOT has_table_privilege(format('%I.%I', $1::text, $2::text), p)),
			CASE WHEN NOT has_sequence_privilege(format('%I.%I', $1::text, $2 || '_fence'), 'USAGE') THEN 'USAGE on the sequence' END)`, schema, table).Scan(&role, &super, &missing)
	switch {
	case err != nil:
		return bad(name, err.Error(), "may this role read pg_roles?")
	case missing != "":
		return bad(name, role+" lacks "+missing, "the owner of the tables grants it: docs/operate/roles.md")
	case super:
		return ok(name, "%s is a superuser; a service needs less: docs/operate/roles.md", role)
	}
	return ok(name, "%s has the rights that the store needs", role)
}

// lockWaits checks whether statements wait for locks for longer than a time.
func lockWaits(ctx context.Context, s *postgres.Store, longest time.Duration) finding {
	const name = "locks"
	var n int
	var seconds float64
	err := s.Pool().QueryRow(ctx, `SELECT count(*), coalesce(extract(epoch FROM max(clock_timestamp() - query_start)), 0)::float8 FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > make_interval(secs => $1)`, longest.Seconds()).Scan(&n, &seconds)
	switch {
	case err != nil:
		return bad(name, err.Error(), "may this role read pg_stat_activity?")
	case n > 0:
		return bad(name, fmt.Sprintf("%d statements wait for locks, one of them for %v", n, time.Duration(seconds*float64(time.Second)).Round(time.Second)),
			"pg_blocking_pids(pid) of pg_stat_activity names the sessions that hold them; end long transactions")
	}
	return ok(name, "no statement has waited for a lock for %v", longest)
}

// deadRows checks whether autovacuum keeps up.
func deadRows(ctx context.Context, s *postgres.Store, schema, table string) finding {
	var dead, live int64
	err := s.Pool().QueryRow(ctx, "SELECT coalesce(sum(n_dead_tup), 0)::bigint, coalesce(sum(n_live_tup), 0)::bigint FROM pg_stat_all_tables WHERE schemaname = $1 AND relname = $2", schema, table).Scan(&dead, &live)
	if err != nil {
		return bad("dead rows", err.Error(), "may this role read pg_stat_all_tables?")
	}
	return bloat(dead, live)
}

// maxDead is how many dead rows a table may have, or as many as it has live ones.
const maxDead = 100_000

func bloat(dead, live int64) finding {
	if dead > max(maxDead, live) {
		return bad("dead rows", fmt.Sprintf("%d dead rows beside %d live ones", dead, live), "is autovacuum on? End old transactions and replication slots, which keep dead rows, and run VACUUM")
	}
	return ok("dead rows", "%d beside %d live ones", dead, live)
}
