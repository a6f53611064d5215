package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store/mysql"
)

func TestCommandsWorkOnMySQL(t *testing.T) {
	server := rig.MariaDB(t)
	name, err := server.CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	url := server.URL(name)
	if status, found := examineJSON(t, url); status != exitFailure || !strings.Contains(found["connects"].Found, "stet migrate up") {
		t.Errorf("doctor without tables: %d, %v", status, found)
	}
	for range 2 {
		if out := must(t, "migrate", "up", "--store", url); !strings.Contains(out, "database "+name) {
			t.Errorf("migrate up: %s", out)
		}
	}
	if status, found := examineJSON(t, url); status != 0 || !found["commit"].OK || !found["binary log"].OK || !found["pages"].OK || !found["connections"].OK || !found["sweep"].OK {
		t.Errorf("doctor: %d, %v", status, found)
	}
	s, err := mysql.Open(t.Context(), url, mysql.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.DB().ExecContext(t.Context(), "UPDATE stet_records SET due = ?", time.Now().Add(-time.Hour).UnixMicro()); err != nil {
		t.Fatal(err)
	}
	if status, found := examineJSON(t, url); status != exitFailure || found["sweep"].OK || !strings.Contains(found["sweep"].Found, ": 1, ") || !strings.Contains(found["sweep"].Found, "1h0m") {
		t.Errorf("doctor beside a late record: %v", found["sweep"])
	}
}
