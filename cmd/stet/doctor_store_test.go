package main

import (
	"strings"
	"testing"
)

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
