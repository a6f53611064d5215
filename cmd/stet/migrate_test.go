package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
)

// emptyDatabase makes a database, names it in the environment, and connects.
func emptyDatabase(t *testing.T) *pgxpool.Pool {
	t.Helper()
	url := rig.Postgres(t).Database(t)
	t.Setenv(storeVariable, "")
	t.Setenv("STET_POSTGRES_URL", url)
	t.Setenv("DATABASE_URL", "postgres://127.0.0.1:1/not-this-one")
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func execSQL(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// What the steps are, and what applying and undoing all of them says.
const (
	latest    = 5
	saysDown5 = "undid step 5, history\n"
	saysDown4 = "undid step 4, rights\n"
	saysDown3 = "undid step 3, emit\n"
	saysDown2 = "undid step 2, functions\n"
	saysDown1 = "undid step 1, records\n"
)

// undo undoes every step.
func undo(t *testing.T, args ...string) {
	t.Helper()
	for _, says := range []string{saysDown5, saysDown4, saysDown3, saysDown2, saysDown1} {
		if out := must(t, append([]string{"migrate", "down", "--yes"}, args...)...); out != says {
			t.Errorf("down: %q; want %q", out, says)
		}
	}
}

// wantVersion fails the test unless the store and the command see version.
func wantVersion(t *testing.T, pool *pgxpool.Pool, o postgres.Options, version int, args ...string) {
	t.Helper()
	got, err := postgres.SchemaVersion(t.Context(), pool, o)
	if err != nil || got != version {
		t.Errorf("SchemaVersion: %d, %v; want %d", got, err, version)
	}
	status, out, errs := command(t, append([]string{"migrate", "status"}, args...)...)
	if status != exitOK || strings.Count(out, "applied") != version || strings.Contains(out, "pending") != (errs != "") {
		t.Errorf("status: %d, %q, %q; want %d applied", status, out, errs, version)
	}
	if store, err := postgres.New(t.Context(), pool, o); (err == nil) != (version == latest) {
		t.Errorf("New at version %d: %v", version, err)
	} else if err == nil {
		_ = store.Close()
	}
}

func tables(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	const sql = `SELECT count(*) FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace
		WHERE c.relkind IN ('r', 'S') AND s.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')`
	if err := pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// must runs a command that has to succeed, and returns its stdout.
func must(t *testing.T, args ...string) string {
	t.Helper()
	status, out, errs := command(t, args...)
	if status != exitOK {
		t.Fatalf("stet %q: status %d, %q, %q", args, status, out, errs)
	}
	return out
}

func TestMigrateAndPackagePostgresTakeTurns(t *testing.T) {
	pool := emptyDatabase(t)
	for _, o := range []postgres.Options{{}, {Schema: `we"ird'; --`, Table: "Größe 表"}} {
		var names []string
		if o.Schema != "" {
			names = []string{"--store-schema", o.Schema, "--store-table", o.Table}
		}
		up, down := append([]string{"migrate", "up"}, names...), append([]string{"migrate", "down", "--yes"}, names...)
		library := func() {
			t.Helper()
			if err := postgres.Migrate(t.Context(), pool, o); err != nil {
				t.Error(err)
			}
		}
		wantVersion(t, pool, o, 0, names...)
		if out := must(t, up...); !strings.HasSuffix(out, " is at version 5\n") {
			t.Errorf("up: %q", out)
		}
		wantVersion(t, pool, o, latest, names...)
		before := tables(t, pool)
		library()
		must(t, up...)
		if n := tables(t, pool); n != before {
			t.Errorf("%d tables and sequences, after %d: there is a second record of the version", n, before)
		}
		must(t, down...)
		wantVersion(t, pool, o, latest-1, names...)
		library()
		wantVersion(t, pool, o, latest, names...)
		undo(t, names...)
		wantVersion(t, pool, o, 0, names...)
		must(t, down...)
		library()
		wantVersion(t, pool, o, latest, names...)
		must(t, up...)
		undo(t, names...)
		if n := tables(t, pool); n != 0 {
			t.Errorf("%d tables and sequences are left", n)
		}
	}
}

func TestMigratorsAtOneTimeAgree(t *testing.T) {
	pool := emptyDatabase(t)
	for range 5 {
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				if i == 0 {
					if err := postgres.Migrate(context.Background(), pool, postgres.Options{}); err != nil {
						t.Errorf("Migrate: %v", err)
					}
					return
				}
				var out bytes.Buffer
				if status := run(t.Context(), []string{"migrate", "up"}, strings.NewReader(""), &out, &out); status != exitOK || !strings.HasPrefix(out.String(), "stet.records is at version 5") {
					t.Errorf("up: %d, %s", status, out.String())
				}
			})
		}
		wg.Wait()
		wantVersion(t, pool, postgres.Options{}, latest)
		undo(t)
	}
}

// The version can change before the migrator has the lock: the step is not applied again.
func TestUpWaitsForAnotherMigratorAndThenHasNothingToDo(t *testing.T) {
	pool := emptyDatabase(t)
	steps, err := postgres.Migrations(postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), steps[0].Lock); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	ended := make(chan int, 1)
	go func() { ended <- run(t.Context(), []string{"migrate", "up"}, strings.NewReader(""), &out, &out) }()
	for waiting := false; !waiting; {
		const sql = `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`
		if err := pool.QueryRow(t.Context(), sql).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		select {
		case status := <-ended:
			t.Fatalf("up did not wait: status %d, %q", status, out.String())
		default:
		}
	}
	for _, step := range steps {
		if _, err := tx.Exec(t.Context(), step.Up, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status := <-ended; status != exitOK || out.String() != "stet.records is at version 5\n" {
		t.Errorf("status %d, %q", status, out.String())
	}
	wantVersion(t, pool, postgres.Options{}, latest)
}

func TestShowSQLChangesNothingAndPrintsTheExecutedSQL(t *testing.T) {
	pool := emptyDatabase(t)
	o := postgres.Options{Schema: "a\nb", Table: "c"}
	names := []string{"--show-sql", "--store-schema", o.Schema, "--store-table", o.Table}
	up, down := append([]string{"migrate", "up"}, names...), append([]string{"migrate", "down"}, names...)
	script := must(t, up...)
	if out := must(t, down...); out != "" {
		t.Errorf("down of nothing: %q", out)
	}
	if n := tables(t, pool); n != 0 {
		t.Fatalf("up --show-sql made %d tables and sequences", n)
	}
	execSQL(t, pool, script)
	wantVersion(t, pool, o, latest, names[1:]...)
	if out := must(t, up...); out != "" {
		t.Errorf("up when nothing is pending: %q", out)
	}
	for version := latest; version > 0; version-- {
		script = must(t, down...)
		wantVersion(t, pool, o, version, names[1:]...)
		execSQL(t, pool, script)
		wantVersion(t, pool, o, version-1, names[1:]...)
	}

	t.Setenv("STET_POSTGRES_URL", "")
	t.Setenv("DATABASE_URL", "")
	if out := must(t, "migrate", "up", "--show-sql", "--store-schema", "x"); !strings.Contains(out, `CREATE TABLE "x"."records" (`) {
		t.Errorf("up without a database: %q", out)
	}
	if out := must(t, "migrate", "down", "--show-sql", "--store-table", "y"); !strings.Contains(out, `"stet"."y_schema"`) {
		t.Errorf("down without a database: %q", out)
	}
}

func TestDownDropsRecordsOnlyOnceItIsConfirmed(t *testing.T) {
	pool := emptyDatabase(t)
	must(t, "migrate", "up")
	for range latest - 1 {
		must(t, "migrate", "down", "--yes")
	}
	ask := func(ctx context.Context, stdin io.Reader) (int, string) {
		var out bytes.Buffer
		status := run(ctx, []string{"migrate", "down"}, stdin, &out, &out)
		return status, out.String()
	}
	for _, answer := range []string{"", "\n", "y\n", "yes\n", "records\n", "stet.records2\n"} {
		status, out := ask(t.Context(), strings.NewReader(answer))
		for _, want := range []string{"every record", "Type stet.records", "nothing was changed", "--yes"} {
			if status != exitFailure || !strings.Contains(out, want) {
				t.Errorf("answer %q: status %d, %q, want %q", answer, status, out, want)
			}
		}
		wantVersion(t, pool, postgres.Options{}, 1)
	}
	ctx, cancel := context.WithCancel(t.Context())
	never, w := io.Pipe()
	defer func() { _ = w.Close() }()
	asked := readHook{never, cancel} // an interrupt while it waits for the answer
	if status, out := ask(ctx, asked); status != exitFailure || !strings.Contains(out, "nothing was changed") {
		t.Errorf("interrupted: status %d, %q", status, out)
	}
	wantVersion(t, pool, postgres.Options{}, 1)
	if status, out := ask(t.Context(), strings.NewReader("stet.records\n")); status != exitOK {
		t.Errorf("confirmed: status %d, %q", status, out)
	}
	wantVersion(t, pool, postgres.Options{}, 0)
}

func TestDown_WithAcceptedWork_IsRefusedWithoutForce(t *testing.T) {
	pool := emptyDatabase(t)
	must(t, "migrate", "up")
	s, err := postgres.New(t.Context(), pool, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Accept(t.Context(), claimOf("a"), []byte("job"), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range latest - 1 {
		must(t, "migrate", "down", "--yes") // these steps lose no record
	}
	status, _, errs := command(t, "migrate", "down", "--yes")
	if status != exitFailure || !strings.Contains(errs, "1 accepted operations and 0 unsent messages would be lost") {
		t.Errorf("status %d, %s", status, errs)
	}
	wantVersion(t, pool, postgres.Options{}, 1)
	must(t, "migrate", "down", "--yes", "--force")
	wantVersion(t, pool, postgres.Options{}, 0)
}

func TestNewerTablesInsideTheWindow_CanBeUsedAndNotUndone(t *testing.T) {
	pool := emptyDatabase(t)
	must(t, "migrate", "up")
	execSQL(t, pool, fmt.Sprintf("ALTER TABLE stet.records_schema ADD COLUMN min_compatible integer; INSERT INTO stet.records_schema (version, min_compatible) VALUES (%d, %d)", latest+1, latest))
	for args, want := range map[string]string{"up": "nothing to do", "status": "of a newer stet; this program can use it"} {
		if status, _, errs := command(t, "migrate", args); status != exitOK || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %s", args, status, errs)
		}
	}
	if status, _, errs := command(t, "migrate", "down", "--yes"); status != exitFailure || !strings.Contains(errs, "of a newer stet") {
		t.Errorf("down: %d %s", status, errs)
	}
	s, err := postgres.New(t.Context(), pool, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	execSQL(t, pool, "UPDATE stet.records_schema SET min_compatible = NULL")
	if _, err := postgres.New(t.Context(), pool, postgres.Options{}); !errors.Is(err, store.ErrNewerTables) {
		t.Errorf("without a window: %v", err)
	}
}

func TestDownReportsTheLossOfEachStep(t *testing.T) {
	pool := emptyDatabase(t)
	must(t, "migrate", "up")
	for i, want := range []string{
		"step 5, history, drops the histories of operations: why they got into\ntrouble, and who resolved them; records stay.",
		"step 4, rights, loses nothing.",
		"step 3, emit, drops its function: services that emit messages by SQL\nstop working; messages in a record stay.",
		"step 2, functions, drops its functions: services that begin and settle\noperations by SQL stop working; records stay.",
		"step 1, records, drops every record, accepted operation and unsent message;\noperations that have run already may run again.",
	} {
		status, _, errs := command(t, "migrate", "down")
		if status != exitFailure || !strings.HasPrefix(errs, "Undoing "+want+"\nType stet.records to continue: ") {
			t.Errorf("status %d, %q; want %q", status, errs, want)
		}
		wantVersion(t, pool, postgres.Options{}, latest-i)
		must(t, "migrate", "down", "--yes")
	}
}

// readHook calls f before it reads.
type readHook struct {
	io.Reader
	f func()
}

func (r readHook) Read(p []byte) (int, error) {
	r.f()
	return r.Reader.Read(p)
}

func TestMigrateExplainsErrors(t *testing.T) {
	pool := emptyDatabase(t)
	execSQL(t, pool, `CREATE SCHEMA other; CREATE TABLE other.records (x int);
		CREATE SCHEMA newer; CREATE TABLE newer.records_schema (version int); INSERT INTO newer.records_schema VALUES (99);
		CREATE SCHEMA busy; DROP ROLE IF EXISTS stet_powerless; CREATE ROLE stet_powerless LOGIN`)
	t.Cleanup(func() { _, _ = pool.Exec(context.Background(), "DROP ROLE stet_powerless") })
	must(t, "migrate", "up", "--store-schema", "busy")
	for range 4 { // history, rights, stet_emit and functions, on which no view depends
		must(t, "migrate", "down", "--yes", "--store-schema", "busy")
	}
	execSQL(t, pool, `CREATE VIEW busy.v AS SELECT * FROM busy.records`)
	url := pool.Config().ConnString()
	with := func(parameter string) string { // in the URL
		if strings.Contains(url, "?") {
			return url + "&" + parameter
		}
		return url + "?" + parameter
	}
	for _, tc := range []struct {
		status int
		args   []string
		want   []string
	}{
		{exitFailure, []string{"up", "--store-schema", "other"}, []string{"migration 1", "another kind", "--store-table"}},
		{exitFailure, []string{"up", "--store-schema", "newer"}, []string{`those of "newer"."records" have version 99`, "up to 5", "or a later one"}},
		{exitFailure, []string{"down", "--yes", "--store-schema", "newer"}, []string{"version 99"}},
		{exitFailure, []string{"status", "--store-schema", "newer"}, []string{"version 99"}},
		{exitFailure, []string{"down", "--yes", "--store-schema", "busy"}, []string{"depends on", "drop it first"}},
		{exitFailure, []string{"up", "--store", with("default_transaction_read_only=on")}, []string{"connect to the primary"}},
		{exitFailure, []string{"up", "--store", with("user=stet_powerless")}, []string{"CREATE on the database"}},
		{exitFailure, []string{"status", "--store", "postgres://u:hush@127.0.0.1:1/x"}, []string{"127.0.0.1"}},
		{exitUsage, []string{"up", "--store", "mongodb://u:hush@127.0.0.1/x"}, []string{"the database's URL", "--help"}},
		{exitUsage, []string{"status", "--store", "mysql://u:hush@127.0.0.1/x"}, []string{"the store is MySQL"}},
		{exitUsage, []string{"up", "--show-sql", "--store", "mysql://u:hush@127.0.0.1/x"}, []string{"the store is MySQL"}},
		{exitFailure, []string{"up", "--store", "mysql://u:hush@127.0.0.1:1/x"}, []string{"127.0.0.1:1"}},
		{exitUsage, []string{"up", "--store", "postgres://u:hush@[/x"}, []string{"the database's URL"}},
		{exitUsage, []string{"up", "--store-table", strings.Repeat("x", 52)}, []string{"--store-table", "51 bytes"}},
		{exitUsage, []string{"up", "now"}, []string{`"now"`}},
		{exitUsage, []string{"sideways"}, []string{`"sideways"`}},
		{exitUsage, []string{"status", "--show-sql"}, []string{"--show-sql"}},
	} {
		before := tables(t, pool)
		status, out, errs := command(t, append([]string{"migrate"}, tc.args...)...)
		if status != tc.status || out != "" || strings.Contains(errs, "hush") {
			t.Errorf("%q: status %d, stdout %q, stderr %q", tc.args, status, out, errs)
		}
		for _, want := range tc.want {
			if !strings.Contains(errs, want) {
				t.Errorf("%q: %q is missing from %q", tc.args, want, errs)
			}
		}
		if n := tables(t, pool); n != before {
			t.Errorf("%q: %d tables and sequences, after %d", tc.args, n, before)
		}
	}
	t.Setenv("STET_POSTGRES_URL", "")
	must(t, "migrate", "up", "--store", url)
	t.Setenv("DATABASE_URL", "")
	if status, _, errs := command(t, "migrate", "status"); status != exitUsage || !strings.Contains(errs, "--store") || !strings.Contains(errs, "DATABASE_URL") {
		t.Errorf("without a database: status %d, %q", status, errs)
	}
}

func TestStatusIsReadByPrograms(t *testing.T) {
	pool := emptyDatabase(t)
	read := func() (got struct {
		Schema, Table string
		Version       int
		Steps         []struct {
			Step      int
			Name      string
			State     string
			AppliedAt *time.Time `json:"applied_at"`
		}
	}) {
		t.Helper()
		d := json.NewDecoder(strings.NewReader(must(t, "migrate", "status", "-o", "json", "--store-schema", "a\nb")))
		d.DisallowUnknownFields()
		if err := d.Decode(&got); err != nil || len(got.Steps) != latest || got.Schema != "a\nb" || got.Table != "records" {
			t.Fatalf("got %+v, %v; want len(got.Steps) == latest, got.Schema == \"a\\nb\", got.Table == \"records\", no error", got, err)
		}
		return got
	}
	if got := read(); got.Version != 0 || got.Steps[0].State != "pending" || got.Steps[0].AppliedAt != nil {
		t.Errorf("before up: %+v", got)
	}
	must(t, "migrate", "up", "--store-schema", "a\nb")
	got := read()
	at, err := postgres.AppliedAt(t.Context(), pool, postgres.Options{Schema: "a\nb"})
	if err != nil || len(at) != latest {
		t.Fatalf("AppliedAt: %v, %v", at, err)
	}
	if s := got.Steps[0]; got.Version != latest || s.Step != 1 || s.Name != "records" || s.State != "applied" || s.AppliedAt == nil || !s.AppliedAt.Equal(at[1]) {
		t.Errorf("after up: %+v; it was applied at %v", got, at)
	}
	if out := must(t, "migrate", "status", "--store-schema", "a\nb"); !strings.Contains(out, at[1].UTC().Format(time.RFC3339)) {
		t.Errorf("status: %q", out)
	}
	if status, _, errs := command(t, "migrate", "status", "-o", "yaml"); status != exitUsage || !strings.Contains(errs, "json") {
		t.Errorf("-o yaml: status %d, %q", status, errs)
	}
}

// If the schema exists, the right to use it is enough.
func TestUpNeedsNoRightToCreateSchemas(t *testing.T) {
	pool := emptyDatabase(t)
	execSQL(t, pool, `DROP ROLE IF EXISTS stet_tenant; CREATE ROLE stet_tenant LOGIN; CREATE SCHEMA "a'$stet$b"; GRANT CREATE, USAGE ON SCHEMA "a'$stet$b" TO stet_tenant`)
	t.Cleanup(func() {
		_, _ = pool.Exec(context.Background(), "DROP OWNED BY stet_tenant; DROP ROLE stet_tenant", pgx.QueryExecModeSimpleProtocol)
	})
	url := strings.Replace(pool.Config().ConnString(), "postgres@", "stet_tenant@", 1)
	must(t, "migrate", "up", "--store-schema", "a'$stet$b", "--store", url)
	wantVersion(t, pool, postgres.Options{Schema: "a'$stet$b"}, latest, "--store-schema", "a'$stet$b", "--store", url)
}

func TestMigrateWorksBehindPgBouncer(t *testing.T) {
	pool := emptyDatabase(t)
	// With one connection to the server, a step must not ask for a second one.
	one := rig.PgBouncerOptions{Settings: map[string]string{"default_pool_size": "1", "query_wait_timeout": "5"}}
	bouncer := rig.PgBouncer(t, rig.Postgres(t), one)
	url := rig.Through(bouncer.Addr(), pool.Config().ConnString())
	must(t, "migrate", "up", "--store", url)
	wantVersion(t, pool, postgres.Options{}, latest, "--store", url)
	undo(t, "--store", url)
	wantVersion(t, pool, postgres.Options{}, 0, "--store", url)
}
