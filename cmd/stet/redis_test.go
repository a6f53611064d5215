package main

import (
	"cmp"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
)

func TestRedisIsAStoreLikeTheOthers(t *testing.T) {
	url := "redis://" + rig.Redis(t).Addr() + "/0"
	if status, found := examineJSON(t, url); !found["connects"].OK || !found["final"].OK || !found["replay"].OK {
		t.Errorf("doctor: status %d, %v", status, found)
	}
	if status, out, errs := command(t, "keys", "ls", "--store", url, "-o", "json"); status != exitOK || !strings.Contains(out, `"records":`) {
		t.Errorf("keys: status %d, %s%s", status, out, errs)
	}
	for url, want := range map[string]string{"redis://%zz": "redis URL", "redis://127.0.0.1:1": "refused"} {
		if status, _, errs := command(t, "keys", "ls", "--store", url); status == exitOK || !strings.Contains(errs, want) {
			t.Errorf("%s: status %d, %s", url, status, errs)
		}
	}
}

func TestRedisWithOutcomesInSQL(t *testing.T) {
	url := "redis://" + rig.Redis(t).Addr() + "/0"
	file := filepath.Join(t.TempDir(), "outcomes.db")
	for _, outcomes := range []string{file, rig.Postgres(t).Database(t)} {
		if outcomes != file {
			if status, _, errs := command(t, "migrate", "up", "--store", outcomes); status != exitOK {
				t.Fatalf("migrate: status %d, %s", status, errs)
			}
		}
		_, found := examineWith(t, "--store", url, "--store-outcomes", outcomes)
		of := map[string]string{file: "journal"}[outcomes] // a check of SQLite
		if !found["replay"].OK || !found[cmp.Or(of, "fsync")].OK || !strings.Contains(found["connects"].Found, "outcomes in") {
			t.Errorf("doctor of Redis with outcomes in %s: %v", outcomes, found)
		}
	}
	for outcomes, want := range map[string]string{url: "postgres:// URL", "memory": "postgres:// URL", "postgres://127.0.0.1:1/none": "--store-outcomes"} {
		if status, _, errs := command(t, "keys", "ls", "--store", url, "--store-outcomes", outcomes); status == exitOK || !strings.Contains(errs, want) {
			t.Errorf("outcomes in %s: status %d, %s", outcomes, status, errs)
		}
	}
	if status, _, errs := command(t, "keys", "ls", "--store", file, "--store-outcomes", file); status == exitOK || !strings.Contains(errs, "Redis") {
		t.Errorf("outcomes of an SQLite store: status %d, %s", status, errs)
	}
}
