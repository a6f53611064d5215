package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet/store/mysql"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/sqlite"
)

// durability checks whether the store keeps its acknowledged writes.
func durability(ctx context.Context, s *storage) []finding {
	switch store := s.Store.(type) {
	case *sqlite.Store:
		return settingsOf(sqliteSettings, func(query string) (got string, err error) {
			return got, store.DB().QueryRowContext(ctx, query).Scan(&got)
		})
	case *postgres.Store:
		o := postgresOptions(s.options)
		found := settingsOf(postgresSettings, func(query string) (got string, err error) {
			return got, store.Pool().QueryRow(ctx, query).Scan(&got)
		})
		return append(append(found, connections(ctx, store, o), rights(ctx, store, o)), postgresServer(ctx, store, o)...)
	}
	switch s.kind {
	case "mysql":
		return mysqlServer(ctx, s.Store.(*mysql.Store))
	case "memory":
		return []finding{bad("durability", "the memory store loses all records when its process ends", "use an SQLite file, or PostgreSQL")}
	case "redis":
		found := redisServers(ctx, s.options)
		if s.outcomes != nil {
			found = append(found, durability(ctx, s.outcomes)...)
		}
		return found
	case "zookeeper":
		return []finding{ok("durability", "not known: ZooKeeper does not report forceSync; it must be yes, the default, on all servers")}
	}
	return nil
}

// serverSetting is a setting and the values that are safe.
type serverSetting struct{ check, query, safe, do string }

var sqliteSettings = []serverSetting{
	{"journal", "PRAGMA journal_mode", "wal", "is the file on a local disk? A network file system has no write-ahead log"},
	{"durability", "PRAGMA synchronous", "2", "do not change the pragma: acknowledged writes could be lost"},
	{"integrity", "PRAGMA quick_check", "ok", "restore the file from a backup; its content is damaged"},
}

var postgresSettings = []serverSetting{
	{"fsync", "SHOW fsync", "on", "turn it on: a crash of the host loses acknowledged writes, or damages the database"},
	{"full_page_writes", "SHOW full_page_writes", "on", "turn it on, unless the file system never tears pages"},
	{"commit", "SHOW synchronous_commit", "on local remote_write remote_apply", "turn it on for this role: ALTER ROLE … SET synchronous_commit = on"},
}

// settingsOf compares settings with their safe values.
func settingsOf(all []serverSetting, ask func(query string) (string, error)) (found []finding) {
	for _, s := range all {
		got, err := ask(s.query)
		_, name, _ := strings.Cut(s.query, " ")
		switch {
		case err != nil:
			found = append(found, bad(s.check, err.Error(), "may this role read it?"))
		case !slices.Contains(strings.Fields(s.safe), got):
			found = append(found, bad(s.check, name+" is "+got, s.do))
		default:
			found = append(found, ok(s.check, "%s is %s", name, got))
		}
	}
	return found
}

// connections compares what a process may use with what the server has.
func connections(ctx context.Context, s *postgres.Store, o postgres.Options) finding {
	var most, used int
	err := s.Pool().QueryRow(ctx, "SELECT current_setting('max_connections')::int, (SELECT count(*) FROM pg_stat_activity)").Scan(&most, &used)
	if err != nil {
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
	case *mysql.Store:
		late, oldest, err = lateInMySQL(ctx, store)
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

// sqlRights returns the roles beside the owner with a right to change records, by the functions of
// the SQL interface (true) or on the table itself (false).
const sqlRights = `WITH t AS (SELECT c.oid, c.relacl, c.relowner, c.relnamespace FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2)
	SELECT DISTINCT by, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee)::text END
	FROM (SELECT false AS by, relacl AS acl, relowner AS owner FROM t
		UNION ALL SELECT true, coalesce(p.proacl, acldefault('f', p.proowner)), p.proowner FROM pg_proc p, t WHERE p.pronamespace = t.relnamespace AND p.prosecdef AND p.proname LIKE $3) o,
		aclexplode(o.acl) a
	WHERE a.grantee <> o.owner AND (by OR a.privilege_type <> 'SELECT') ORDER BY 1, 2`

// rights says which roles may change records.
func rights(ctx context.Context, s *postgres.Store, o postgres.Options) finding {
	const name = "rights"
	table, prefix := cmp.Or(o.Table, "records"), "stet"
	if o.Table != "" && o.Table != "records" {
		prefix = o.Table
	}
	pattern := strings.NewReplacer(`\`, `\\`, `_`, `\_`, `%`, `\%`).Replace(prefix+"_") + "%"
	roles := map[bool][]string{}
	rows, err := s.Pool().Query(ctx, sqlRights, cmp.Or(o.Schema, "stet"), table, pattern)
	if err == nil {
		var by bool
		var role string
		_, err = pgx.ForEachRow(rows, []any{&by, &role}, func() error { roles[by] = append(roles[by], role); return nil })
	}
	if err != nil {
		return bad(name, err.Error(), "may this role read pg_class and pg_proc?")
	}
	list := func(roles []string) string { return cmp.Or(strings.Join(roles, ", "), "only the owner") }
	found := fmt.Sprintf("the functions may be called by: %s; the table may be changed by: %s", list(roles[true]), list(roles[false]))
	for _, all := range roles {
		for _, role := range all {
			if role == "PUBLIC" {
				return bad(name, found, "every role can begin and settle operations: REVOKE these rights from PUBLIC, and grant them to the service's role")
			}
		}
	}
	return ok(name, "%s", found)
}
