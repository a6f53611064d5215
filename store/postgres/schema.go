package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store/internal/rules"
)

// schemaVersion is the version of the tables that this code reads and writes.
const schemaVersion = 5

//go:embed migrations/*.sql
var migrations embed.FS

const (
	defaultSchema = "stet"
	defaultTable  = "records"

	maxIdentifier = 63 // bytes, of PostgreSQL
	longestSuffix = "_fingerprint"
)

// names are the identifiers of a store, quoted.
type names struct {
	schema, table        string // of Options, unquoted
	records, fence, meta string // schema-qualified and quoted
	history              string // of the records
	view                 string // of the records, unquoted
	channel              string // of notifications, unquoted
}

func newNames(o Options) (n names, err error) {
	n.schema, n.table = o.Schema, o.Table
	if n.schema == "" {
		n.schema = defaultSchema
	}
	if n.table == "" {
		n.table = defaultTable
	}
	for what, name := range map[string]string{"Schema": n.schema, "Table": n.table} {
		limit := maxIdentifier
		if what == "Table" {
			limit -= len(longestSuffix)
		}
		if len(name) > limit || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
			return n, fmt.Errorf("postgres: Options.%s is %q; it must be valid UTF-8 of at most %d bytes, without NUL", what, name, limit)
		}
	}
	n.records = pgx.Identifier{n.schema, n.table}.Sanitize()
	n.fence = pgx.Identifier{n.schema, n.table + "_fence"}.Sanitize()
	n.history = pgx.Identifier{n.schema, n.table + "_history"}.Sanitize()
	n.meta = pgx.Identifier{n.schema, n.table + "_schema"}.Sanitize()
	// In a schema of the service's, "operations" may be a table of its own.
	if n.view = "operations"; n.schema != defaultSchema || n.table != defaultTable {
		n.view = n.table + "_view"
	}
	n.channel = fmt.Sprintf("stet_%016x", hash64("channel", n.schema, n.table))
	return n, nil
}

// literal quotes s as a string constant.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// replacer puts the store's names into an SQL file, in one pass, so that no
// name is mistaken for another.
func (n names) replacer() *strings.Replacer {
	quoted := func(s string) string { return pgx.Identifier{s}.Sanitize() }
	pairs := []string{
		`'"` + defaultSchema + `"."` + defaultTable + `_fence"'`, literal(n.fence),
		`'"` + defaultSchema + `"."operations"'`, literal(pgx.Identifier{n.schema, n.view}.Sanitize()),
		`"` + defaultSchema + `"`, quoted(n.schema),
		`'` + defaultSchema + `'`, literal(n.schema),
		`$` + defaultSchema + `$`, fmt.Sprintf("$stet_%016x$", hash64("body", n.schema, n.table)), // in no name
		`"records"`, quoted(n.table),
		`"records_pkey"`, quoted(n.table + "_pkey"),
		`"records_fence"`, quoted(n.table + "_fence"),
		`"records_due"`, quoted(n.table + "_due"),
		`"records_open"`, quoted(n.table + "_open"),
		`"records_run"`, quoted(n.table + "_run"),
		`"records_relay"`, quoted(n.table + "_relay"),
		`"operations"`, quoted(n.view),
		`"records_schema"`, quoted(n.table + "_schema"),
		`"records_emitted"`, quoted(n.table + "_emitted"),
		`"records_empty"`, quoted(n.table + "_empty"),
		`"records_history"`, quoted(n.table + "_history"),
		`'` + defaultTable + `'`, literal(n.table),
	}
	for _, f := range functions {
		name := "stet_" + f
		if n.table != defaultTable { // there may be several tables in a schema
			name = n.table + "_" + f
		}
		pairs = append(pairs, `"stet_`+f+`"`, quoted(name), `'"`+defaultSchema+`"."stet_`+f+`"'`, literal(pgx.Identifier{n.schema, name}.Sanitize()))
	}
	return strings.NewReplacer(pairs...)
}

// functions are those of migrations 2 to 4, without what their names begin with; unsettled is a constraint.
var functions = []string{"begin", "begin_raw", "claim", "digest", "emit", "fenced", "fields", "fingerprint", "head", "id", "number", "own", "part", "release", "settle", "settle_raw", "sweep", "tell", "unsent", "unsettled", "wait_lock"}

// Migration is one step of the tables' history. Up and Down are plain SQL of
// several statements, to be executed in one transaction; each keeps the table
// of versions up to date itself, so that any migrator may apply it.
type Migration struct {
	Version int    // 1 for the first
	Name    string // such as "records"
	// Lock is one statement, which waits until Migrate, or anything else that
	// uses it on these tables, has ended its transaction. A migrator with no lock
	// of its own executes it first in its transaction, and then reads the version.
	Lock string
	// Up waits for a lock of a table for 2 seconds at most, as every reader of the table waits
	// behind it: error 55P03 then. The migrator tries again, in a new transaction.
	Up   string
	Down string // loses what Up made room for
}

// Migrations returns the steps in order, with the names of o put in.
func Migrations(o Options) ([]Migration, error) {
	n, err := newNames(o)
	if err != nil {
		return nil, err
	}
	files, err := fs.Glob(migrations, "migrations/*.up.sql")
	if err != nil {
		return nil, err
	}
	replace := n.replacer()
	var all []Migration
	for _, up := range files { // in order: Glob sorts
		number, name, _ := strings.Cut(strings.TrimSuffix(path.Base(up), ".up.sql"), "_")
		version, err := strconv.Atoi(number)
		if err != nil || version != len(all)+1 {
			return nil, fmt.Errorf("postgres: the embedded file %s is out of order", up)
		}
		m := Migration{Version: version, Name: name, Lock: n.migrateLock()}
		for file, into := range map[string]*string{up: &m.Up, strings.TrimSuffix(up, ".up.sql") + ".down.sql": &m.Down} {
			text, err := migrations.ReadFile(file)
			if err != nil {
				return nil, err
			}
			*into = replace.Replace(string(text))
		}
		m.Up = lockTimeout + m.Up
		all = append(all, m)
	}
	return all, nil
}

const (
	lockTimeout   = "SET LOCAL lock_timeout = '2s';\n"
	migrateTries  = 60
	migratePause  = time.Second
	lockNotInTime = "55P03"
)

// Migrate brings the tables up to the version that this package uses, in one
// transaction. Any number of processes may call it at a time; where there is
// nothing to do it changes nothing. Tables of a newer version are refused, unless they have a
// min_compatible that this version has reached. Behind a long
// reader of the tables it tries again, every 3 seconds for 3 minutes, and lets the
// service's calls pass in between.
func Migrate(ctx context.Context, pool *pgxpool.Pool, o Options) error {
	n, err := newNames(o)
	if err != nil {
		return err
	}
	steps, err := Migrations(o)
	if err != nil {
		return err
	}
	return n.migrateAll(ctx, pool, steps)
}

// migrateAll applies the steps that are missing. Behind a long reader of a table it tries again.
func (n names) migrateAll(ctx context.Context, pool *pgxpool.Pool, steps []Migration) error {
	for try := 1; ; try++ {
		err := n.migrate(ctx, pool, steps)
		if sqlState(err) != lockNotInTime || try == migrateTries || !timer.Sleep(ctx, migratePause) {
			return explain("migrate", err)
		}
	}
}

func (n names) migrate(ctx context.Context, pool *pgxpool.Pool, steps []Migration) error {
	// Above READ COMMITTED the version would be read as of before the lock.
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		// Through the connection itself: several statements in one need
		// the simple protocol, whatever the pool's mode is.
		conn := tx.Conn().PgConn()
		if _, err := conn.Exec(ctx, n.migrateLock()).ReadAll(); err != nil {
			return err
		}
		w, err := readWindow(ctx, tx, n)
		if err != nil {
			return err
		}
		if err := w.Refuse(n.records, schemaVersion); err != nil {
			return err
		}
		for _, m := range steps[min(w.Version, len(steps)):] {
			if _, err := conn.Exec(ctx, m.Up).ReadAll(); err != nil {
				return fmt.Errorf("migration %d, %s: %w", m.Version, m.Name, err)
			}
		}
		return nil
	})
}

// migrateLock lets one migrator of these tables work at a time, and asks no more
// of a connection than a transaction, so that it holds behind PgBouncer too.
func (n names) migrateLock() string {
	return fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", int64(hash64("migrate", n.schema, n.table)))
}

// SchemaVersion returns the version of the tables that there are; 0 if there
// are none. If this program cannot use them, the error wraps store.ErrNewerTables.
//
// q is a pool, a connection or a transaction; a migrator that holds Migration.Lock reads it in
// that transaction, or it would need a second connection.
func SchemaVersion(ctx context.Context, q rowQuerier, o Options) (int, error) {
	n, err := newNames(o)
	if err != nil {
		return 0, err
	}
	w, err := readWindow(ctx, q, n)
	if err == nil {
		err = w.Refuse(n.records, schemaVersion)
	}
	return w.Version, explain("read the version of the tables", err)
}

// AppliedAt returns when each step was applied, by its version; nothing if there
// are no tables.
func AppliedAt(ctx context.Context, pool *pgxpool.Pool, o Options) (map[int]time.Time, error) {
	at := make(map[int]time.Time)
	n, err := newNames(o)
	if err != nil {
		return nil, err
	}
	version, err := SchemaVersion(ctx, pool, o)
	if err != nil || version == 0 {
		return at, err
	}
	rows, err := pool.Query(ctx, "SELECT version::int4, applied_at FROM "+n.meta)
	if err != nil {
		return nil, explain("read the history of the tables", err)
	}
	var when time.Time
	_, err = pgx.ForEachRow(rows, []any{&version, &when}, func() error { at[version] = when; return nil })
	return at, explain("read the history of the tables", err)
}

// rowQuerier is a pool, a connection or a transaction of pgx.
type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func readWindow(ctx context.Context, q rowQuerier, n names) (w rules.Window, err error) {
	// Not by to_regclass: within a transaction, it answers from before the lock of migrateLock.
	var there bool
	err = q.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE relname = "+literal(n.table+"_schema")+
		" AND relnamespace IN (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = "+literal(n.schema)+"))").Scan(&there)
	if err != nil || !there {
		return w, err
	}
	// By to_jsonb, because there is no such column before a migration needs it.
	err = q.QueryRow(ctx, "SELECT coalesce(max(version), 0)::int4, coalesce(max(coalesce((to_jsonb(s) ->> 'min_compatible')::int4, version)), 0)::int4 FROM "+n.meta+" AS s").Scan(&w.Version, &w.Min)
	return w, err
}

// check refuses tables that this code does not know, and servers that cannot
// be written to.
func (n names) check(ctx context.Context, q rowQuerier) error {
	var replica bool
	if err := q.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&replica); err != nil {
		return err
	}
	if replica {
		return errReplica
	}
	w, err := readWindow(ctx, q, n)
	version := w.Version
	if err == nil {
		err = w.Refuse(n.records, schemaVersion)
	}
	switch {
	case err != nil:
		return err
	case version == 0:
		return fmt.Errorf("there is no table %s: call postgres.Migrate, run 'stet migrate up', or apply the files of its folder migrations", n.records)
	case version < schemaVersion:
		return fmt.Errorf("the tables of %s have version %d, and this program needs version %d: call postgres.Migrate, or run 'stet migrate up'", n.records, version, schemaVersion)
	}
	return n.checkFences(ctx, q)
}

// checkFences refuses a sequence that is behind the fences of records: logical replication
// copies rows and no sequences, and a claim with an old fence would fail. It looks at the
// newest records that an index finds, and at some others.
func (n names) checkFences(ctx context.Context, q rowQuerier) error {
	var last, greatest int64
	sample := fmt.Sprintf(`greatest((SELECT max(fence) FROM (SELECT fence FROM %[1]s LIMIT 1000) AS first),
		(SELECT max(fence) FROM (SELECT fence FROM %[1]s WHERE due_at IS NOT NULL ORDER BY due_at DESC LIMIT 1000) AS newest),
		(SELECT max(fence) FROM %[1]s WHERE open_state = 1))`, n.records)
	err := q.QueryRow(ctx, "SELECT coalesce(pg_sequence_last_value("+literal(n.fence)+"::regclass), 0), coalesce("+sample+", 0)").Scan(&last, &greatest)
	if err == nil && last == 0 && greatest > 0 { // never drawn from, perhaps since RESTART WITH
		if err = q.QueryRow(ctx, "SELECT last_value - 1 FROM "+n.fence).Scan(&last); sqlState(err) == "42501" {
			return nil // a role that may only draw from it cannot tell
		}
	}
	if err != nil || greatest <= last {
		return err
	}
	return fmt.Errorf("the sequence %s is at %d, and a record has the fence %d, as after logical replication, which copies no sequences: run SELECT setval(%s, (SELECT max(fence) FROM %s)) while no process uses the tables",
		n.fence, last, greatest, literal(n.fence), n.records)
}

// errLossy refuses a server that promises less than the store does.
var errLossy = errors.New("the server may lose commits that it has acknowledged")

// errReplica refuses a server that only follows another one.
var errReplica = errors.New("the server is a read replica (pg_is_in_recovery): connect to the primary, for instance with target_session_attrs=read-write")
