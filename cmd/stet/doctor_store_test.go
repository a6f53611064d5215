package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/sqlite"
)

// The record of the self-test is due in a second, and no process sweeps.
func TestDoctorFindsThatSweepsOfSQLiteAreLate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, found := examineJSON(t, path); !found["sweep"].OK {
		t.Errorf("got %v; want found[\"sweep\"].OK", found["sweep"])
	}
	if _, err := s.DB().ExecContext(t.Context(), `UPDATE stet_records SET due = ?`, time.Now().Add(-time.Hour).UnixMicro()); err != nil {
		t.Fatal(err)
	}
	if status, found := examineJSON(t, path); status != exitFailure || found["sweep"].OK || !strings.Contains(found["sweep"].Found, ": 1, ") ||
		!strings.Contains(found["sweep"].Found, "1h0m") {
		t.Errorf("%v", found["sweep"])
	}
}

func TestDoctorFindsThatSweepsOfPostgreSQLAreLate(t *testing.T) {
	pool := emptyDatabase(t)
	url := pool.Config().ConnString()
	must(t, "migrate", "up")
	if _, found := examineJSON(t, url); !found["sweep"].OK {
		t.Errorf("got %v; want found[\"sweep\"].OK", found["sweep"])
	}
	execSQL(t, pool, `UPDATE stet.records SET due_at = now() - interval '1 hour'`)
	if _, found := examineJSON(t, url); found["sweep"].OK || !strings.Contains(found["sweep"].Found, ": 1, ") || !strings.Contains(found["sweep"].Found, "1h0m") {
		t.Errorf("%v", found["sweep"])
	}
}

func TestDoctorListsRolesThatMayChangeRecords(t *testing.T) {
	pool := emptyDatabase(t)
	url := pool.Config().ConnString()
	must(t, "migrate", "up")
	if _, found := examineJSON(t, url); !found["rights"].OK || strings.Count(found["rights"].Found, "only the owner") != 2 {
		t.Errorf("after the migration: %v", found["rights"])
	}
	execSQL(t, pool, `DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'doctor_app') THEN CREATE ROLE doctor_app; END IF; END $$`)
	execSQL(t, pool, `GRANT EXECUTE ON FUNCTION stet.stet_begin TO doctor_app`)
	if _, found := examineJSON(t, url); !found["rights"].OK || !strings.Contains(found["rights"].Found, "called by: doctor_app;") {
		t.Errorf("with a role that may call: %v", found["rights"])
	}
	execSQL(t, pool, `GRANT UPDATE ON stet.records TO PUBLIC`)
	if status, found := examineJSON(t, url); status != exitFailure || found["rights"].OK || !strings.Contains(found["rights"].Do, "REVOKE") {
		t.Errorf("with a table that is everybody's: %v", found["rights"])
	}
}

func TestDoctor_NewerTables_AreNoMissingServer(t *testing.T) {
	pool := emptyDatabase(t)
	must(t, "migrate", "up")
	execSQL(t, pool, `INSERT INTO stet.records_schema (version) VALUES (99)`)
	path := filepath.Join(t.TempDir(), "s.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.DB().ExecContext(t.Context(), "UPDATE stet_meta SET schema = 99"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{pool.Config().ConnString(), path} {
		status, found := examineJSON(t, url)
		if version, there := found["version"]; status != exitFailure || !there || version.OK || !strings.Contains(version.Found, "version 99") || len(found) != 1 {
			t.Errorf("%v", found)
		}
	}
}

func TestDoctorChecksRoleLocksAndTLSOfPostgreSQL(t *testing.T) {
	pool := emptyDatabase(t)
	must(t, "migrate", "up")
	_, found := examineJSON(t, pool.Config().ConnString())
	for _, name := range []string{"TLS", "role", "locks", "dead rows"} {
		if f, there := found[name]; !there || !f.OK {
			t.Errorf("%s: %+v", name, f)
		}
	}
	execSQL(t, pool, `DROP ROLE IF EXISTS stet_half; CREATE ROLE stet_half LOGIN; GRANT USAGE ON SCHEMA stet TO stet_half;
		GRANT SELECT, INSERT ON stet.records, stet.records_schema TO stet_half; GRANT USAGE ON ALL SEQUENCES IN SCHEMA stet TO stet_half`)
	t.Cleanup(func() {
		_, _ = pool.Exec(context.Background(), "DROP OWNED BY stet_half; DROP ROLE stet_half", pgx.QueryExecModeSimpleProtocol)
	})
	url, mark := pool.Config().ConnString(), "?"
	if strings.Contains(url, "?") {
		mark = "&"
	}
	if _, found := examineJSON(t, url+mark+"user=stet_half"); found["role"].OK || found["role"].Found != "stet_half lacks UPDATE on the table, DELETE on the table" {
		t.Errorf("a role with half of the rights: %+v", found)
	}
	s, err := postgres.New(t.Context(), pool, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	waiting, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Release()
	if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_lock(7)"); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = waiting.Exec(t.Context(), "SELECT pg_advisory_lock(7)")
	}()
	stettest.Eventually(t, "the wait for the lock", func() bool { return !lockWaits(t.Context(), s, 0).OK })
	if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_unlock(7)"); err != nil {
		t.Error(err)
	}
	<-ended
}

func TestDoctorFindsDeadRowsAndFullRedisServers(t *testing.T) {
	if f := bloat(100_001, 1000); f.OK || f.Do == "" {
		t.Errorf("%+v", f)
	}
	if f := bloat(100_001, 200_000); !f.OK {
		t.Errorf("%+v", f)
	}
	for _, c := range []struct{ field, value, wrong string }{
		{"used_memory", "1048576", ""}, {"used_memory", "3900000", "memory"}, {"aof_last_write_status", "err", "persistence"}, {"rdb_last_bgsave_status", "err", "persistence"},
	} {
		info := map[string]string{"maxmemory_policy": "noeviction", "aof_enabled": "1", "appendfsync": "always", "maxmemory": "4194304", "aof_last_write_status": "ok"}
		info[c.field] = c.value
		var wrong []string
		for _, f := range checkServers(map[string]map[string]string{"": info}) {
			if !f.OK {
				wrong = append(wrong, f.Check)
			}
		}
		if strings.Join(wrong, " ") != c.wrong {
			t.Errorf("%s is %s: %v", c.field, c.value, wrong)
		}
	}
}

func TestDoctorFitsAScreenOf80Columns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, url := range []string{path, "memory", "postgres://app@127.0.0.1:1/none"} {
		_, out, _ := command(t, "doctor", "--store", url)
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 && strings.Contains(strings.TrimSpace(line[17:]), " ") {
				t.Errorf("%d columns: %s", n, line)
			}
		}
	}
	if got := wrapped("aa bb "+strings.Repeat("c", 90)+" d", 74); got != fmt.Sprintf("aa bb\n%s%s\n%[1]sd", strings.Repeat(" ", 74), strings.Repeat("c", 90)) {
		t.Errorf("%q", got)
	}
}

func TestSupportBundleHasNoSecrets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	req := claimOf("secret-key")
	req.Label = store.Label{Class: "secret-class", Name: "secret-name", Ref: "secret-ref"}
	if _, err := s.Claim(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{path, "postgres://app:secret@secret#word@127.0.0.1:1/none", "postgres://app:secret@127.0.0.1:1/none", "redis://:secret@secret@127.0.0.1:1/0", "secret://x", filepath.Join(t.TempDir(), "none.db")} {
		status, out, errs := command(t, "support-bundle", "--store", url)
		var got bundle
		if err := json.Unmarshal([]byte(out), &got); status != exitOK || err != nil || errs != "" {
			t.Errorf("%s: %d %v %s", url, status, err, errs)
		}
		if strings.Contains(out, "secret") || strings.Contains(out, "word@") || strings.Contains(out, "127.0.0.1") {
			t.Errorf("%s: %s", url, out)
		}
		if good := url == path; good != (got.Records["running"].Count == 1) || good && len(got.Checks) < 5 || !got.Readable {
			t.Errorf("%s: %s", url, out)
		}
	}
}
