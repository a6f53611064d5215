package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/sqlite"
)

// durability checks whether the store keeps its acknowledged writes.
func durability(ctx context.Context, s *storage) []finding {
	switch store := s.Store.(type) {
	case *sqlite.Store:
		return sqliteSettings(ctx, store)
	case *postgres.Store:
		return postgresSettings(ctx, s, store)
	default:
		if s.kind == "memory" {
			return []finding{bad("durability", "memory is forgotten with its process", "use an SQLite file, or PostgreSQL")}
		}
		return nil
	}
}

func sqliteSettings(ctx context.Context, s *sqlite.Store) []finding {
	var found []finding
	for _, want := range []struct{ pragma, value, shown, name, do string }{
		{"journal_mode", "wal", "wal", "journal", "is the file on a local disk? A network file system has no write-ahead log"},
		{"synchronous", "2", "full", "durability", "do not change the pragma: acknowledged writes could be lost"},
		{"quick_check", "ok", "ok", "integrity", "restore the file from a backup; its content is damaged"},
	} {
		var got string
		if err := s.DB().QueryRowContext(ctx, "PRAGMA "+want.pragma).Scan(&got); err != nil {
			got = err.Error()
		}
		if got == want.value {
			found = append(found, ok(want.name, "%s is %s", want.pragma, want.shown))
			continue
		}
		found = append(found, bad(want.name, want.pragma+" is "+got, want.do))
	}
	return found
}

func postgresSettings(ctx context.Context, at *storage, s *postgres.Store) []finding {
	pool := s.Pool()
	settings := map[string]string{}
	for _, name := range []string{"fsync", "full_page_writes", "synchronous_commit", "max_connections", "server_version"} {
		var v string
		if err := pool.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&v); err != nil {
			return append([]finding{}, bad("settings", err.Error(), "may this role read the settings?"))
		}
		settings[name] = v
	}
	found := []finding{ok("server", "PostgreSQL %s", settings["server_version"])}
	for _, want := range []struct{ name, do string }{
		{"fsync", "turn it on: a crash of the host loses acknowledged writes, or damages the database"},
		{"full_page_writes", "turn it on, unless the file system never tears pages"},
	} {
		if settings[want.name] == "on" {
			found = append(found, ok(want.name, "on"))
		} else {
			found = append(found, bad(want.name, settings[want.name], want.do))
		}
	}
	switch v := settings["synchronous_commit"]; v {
	case "off":
		found = append(found, bad("commit", "synchronous_commit is off", "turn it on for this role: ALTER ROLE … SET synchronous_commit = on"))
	default:
		found = append(found, ok("commit", "synchronous_commit is %s", v))
	}
	var replica bool
	if err := pool.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&replica); err != nil || replica {
		found = append(found, bad("role", "a replica, which cannot be written to", "connect to the primary; target_session_attrs=read-write finds it"))
	} else {
		found = append(found, ok("role", "primary"))
	}
	return append(found, connections(ctx, s, postgresOptions(at.options), settings["max_connections"]), idle(ctx, s, maxIdle), schema(ctx, s, postgresOptions(at.options)), rights(ctx, s, postgresOptions(at.options)))
}

// connections compares what a process may use with what the server has.
func connections(ctx context.Context, s *postgres.Store, o postgres.Options, limit string) finding {
	most, err := strconv.Atoi(limit)
	if err != nil {
		return bad("connections", err.Error(), "")
	}
	var used int
	if err := s.Pool().QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity").Scan(&used); err != nil {
		return bad("connections", err.Error(), "may this role read pg_stat_activity?")
	}
	own := 2*cmp.Or(o.Writers, 2) + cmp.Or(o.Readers, 2) + 14 + 1 // see postgres.New
	each := int(s.Pool().Config().MaxConns) + own
	if each*2 > most-used {
		return bad("connections", fmt.Sprintf("%d of %d are in use, and a process takes up to %d", used, most, each),
			"there is no room for two more processes: raise max_connections, lower pool_max_conns, or put PgBouncer between")
	}
	return ok("connections", "%d of %d are in use; a process takes up to %d", used, most, each)
}

// maxIdle is how long a transaction may wait for its client.
const maxIdle = time.Minute

// idle looks for transactions that wait for their client: their keys are in
// flight for as long, and nothing that was removed since frees its space.
func idle(ctx context.Context, s *postgres.Store, longer time.Duration) finding {
	const name = "idle"
	var n int
	var longest float64
	err := s.Pool().QueryRow(ctx, `SELECT count(*), coalesce(max(extract(epoch FROM now() - state_change)), 0)::float8 FROM pg_stat_activity
		WHERE datname = current_database() AND state LIKE 'idle in transaction%' AND now() - state_change > make_interval(secs => $1)`,
		longer.Seconds()).Scan(&n, &longest)
	switch {
	case err != nil:
		return bad(name, err.Error(), "may this role read pg_stat_activity?")
	case n > 0:
		return bad(name, fmt.Sprintf("transactions that do nothing: %d, one for %v", n, time.Duration(longest*float64(time.Second)).Round(time.Second)),
			"set idle_in_transaction_session_timeout, and look for handlers that wait within a transaction")
	}
	return ok(name, "no transaction waits for its client for long")
}

// maxLate bounds how many late records are counted.
const maxLate = 10_000

// backlog checks whether sweeps keep up: records that have been due for long are late. Redis
// removes most records by itself.
func backlog(ctx context.Context, s *storage) []finding {
	const name = "sweep"
	var late int
	var oldest time.Duration
	var err error
	switch store := s.Store.(type) {
	case *sqlite.Store:
		late, oldest, err = lateInSQLite(ctx, store)
	case *postgres.Store:
		late, oldest, err = lateInPostgres(ctx, store, postgresOptions(s.options))
	default:
		return nil
	}
	count := strconv.Itoa(late)
	if late > maxLate {
		count = fmt.Sprintf("more than %d", maxLate)
	}
	switch {
	case err != nil:
		return []finding{bad(name, err.Error(), "may the store be read?")}
	case late > 0:
		return []finding{bad(name, fmt.Sprintf("records due to be expired, removed or marked unknown: %s, the oldest for %v", count, oldest.Round(time.Second)),
			"is a process with an engine running, its Options.SweepEvery not negative, and the disk quick enough?")}
	}
	return []finding{ok(name, "nothing was due %v ago that is there yet", maxLag)}
}

func lateInSQLite(ctx context.Context, s *sqlite.Store) (late int, oldest time.Duration, err error) {
	now := time.Now()
	var first int64
	err = s.DB().QueryRowContext(ctx, `SELECT count(*), coalesce(min(due), 0) FROM (SELECT due FROM stet_records WHERE due < ? ORDER BY due LIMIT ?)`,
		now.Add(-maxLag).UnixMicro(), maxLate+1).Scan(&late, &first)
	return late, now.Sub(time.UnixMicro(first)), err
}

func lateInPostgres(ctx context.Context, s *postgres.Store, o postgres.Options) (late int, oldest time.Duration, err error) {
	var seconds float64
	table := pgx.Identifier{cmp.Or(o.Schema, "stet"), cmp.Or(o.Table, "records")}.Sanitize()
	err = s.Pool().QueryRow(ctx, `SELECT count(*), coalesce(extract(epoch FROM now() - min(due_at)), 0)::float8 FROM
		(SELECT due_at FROM `+table+` WHERE due_at < now() - make_interval(secs => $1) ORDER BY due_at LIMIT $2) AS late`,
		maxLag.Seconds(), maxLate+1).Scan(&late, &seconds)
	return late, time.Duration(seconds * float64(time.Second)), err
}

func schema(ctx context.Context, s *postgres.Store, o postgres.Options) finding {
	version, err := postgres.SchemaVersion(ctx, s.Pool(), o)
	if err != nil {
		return bad("tables", err.Error(), "run 'stet migrate status'")
	}
	steps, err := postgres.Migrations(o)
	if err != nil || version != len(steps) {
		return bad("tables", fmt.Sprintf("version %d; this program knows %d", version, len(steps)), "run 'stet migrate up', or use a stet as new as the tables")
	}
	return ok("tables", "version %d", version)
}
