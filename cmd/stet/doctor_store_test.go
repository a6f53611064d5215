package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

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
