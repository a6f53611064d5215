package stettest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// Migrations compares the copies of PostgreSQL's migrations in a folder of a client package, which can pack only files of
// its own folder. With -update it writes them.
func Migrations(t *testing.T, folder string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(ModuleRoot(t), "store", "postgres", "migrations", "*.up.sql"))
	if err != nil || len(files) < 4 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		own := filepath.Join(folder, filepath.Base(file))
		if *Update {
			if err := os.WriteFile(own, want, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(own); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not a copy of %s (%v); run the test with -run Migrations -update", own, file, err)
		}
	}
	if own, err := os.ReadDir(folder); err != nil || len(own) != len(files) {
		t.Errorf("%s has %d files, %v; want %d", folder, len(own), err, len(files))
	}
}
