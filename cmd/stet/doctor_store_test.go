package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/proxy"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/sqlite"
)

// What the doctor leaves behind is due in a second, and nobody sweeps.
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
	if _, found := examineJSON(t, url); !found["sweep"].OK || !found["idle"].OK {
		t.Errorf("got %v, %v; want found[\"sweep\"].OK, found[\"idle\"].OK", found["sweep"], found["idle"])
	}
	execSQL(t, pool, `UPDATE stet.records SET due_at = now() - interval '1 hour'`)
	if _, found := examineJSON(t, url); found["sweep"].OK || !strings.Contains(found["sweep"].Found, ": 1, ") || !strings.Contains(found["sweep"].Found, "1h0m") {
		t.Errorf("%v", found["sweep"])
	}
}

func TestDoctorFindsTransactionsThatWaitForTheirClient(t *testing.T) {
	pool := emptyDatabase(t)
	must(t, "migrate", "up")
	s, err := openStore(t.Context(), proxy.Store{URL: pool.Config().ConnString()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	store := s.Store.(*postgres.Store)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if f := idle(t.Context(), store, time.Hour); !f.OK {
		t.Errorf("got %v; want f.OK", f)
	}
	if f := idle(t.Context(), store, 0); f.OK || !strings.Contains(f.Found, ": 1, ") {
		t.Errorf("got %v; want not f.OK, strings.Contains(f.Found, \": 1, \")", f)
	}
}
