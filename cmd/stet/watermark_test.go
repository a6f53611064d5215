package main

import (
	"bytes"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

// restorable is a store, a backup of it, and a restore.
type restorable struct {
	url     string
	backup  func(t *testing.T)
	restore func(t *testing.T) (url string)
}

// piped runs a program with an input, and returns its output.
func piped(t *testing.T, input []byte, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v: %s; make services installs the programs of the servers", name, err, errs.String())
	}
	return out.Bytes()
}

func sqliteCopy(t *testing.T) restorable {
	file, copied := filepath.Join(t.TempDir(), "s.db"), filepath.Join(t.TempDir(), "backup.db")
	open := func(t *testing.T, statement string) {
		t.Helper()
		s, err := sqlite.Open(t.Context(), file, sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.DB().ExecContext(t.Context(), statement); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	open(t, "SELECT 1")
	return restorable{file, func(t *testing.T) { open(t, "VACUUM INTO '"+copied+"'") }, func(*testing.T) string { return copied }}
}

func postgresDump(t *testing.T) restorable {
	pool := emptyDatabase(t)
	must(t, "migrate", "up")
	var dump []byte
	from := pool.Config().ConnString()
	return restorable{from, func(t *testing.T) { dump = piped(t, nil, "pg_dump", from) }, func(t *testing.T) string {
		to := rig.Postgres(t).Database(t)
		piped(t, dump, "psql", "-q", "-v", "ON_ERROR_STOP=1", to)
		return to
	}}
}

func mariadbDump(t *testing.T) restorable {
	server := rig.MariaDB(t)
	name := func(text string) string { return text[strings.LastIndexByte(text, '/')+1:] }
	empty := func() string { return server.URL(name(server.Database(t))) }
	from := empty()
	must(t, "migrate", "up", "--store", from)
	flags := func(t *testing.T, text string) []string {
		t.Helper()
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return []string{"--no-defaults", "--protocol=tcp", "-h", u.Hostname(), "-P", u.Port(), "-u", "root", strings.TrimPrefix(u.Path, "/")}
	}
	var dump []byte
	return restorable{from, func(t *testing.T) { dump = piped(t, nil, "mariadb-dump", flags(t, from)...) }, func(t *testing.T) string {
		to := empty()
		dump = bytes.ReplaceAll(dump, []byte("`"+name(from)+"`"), []byte("`"+name(to)+"`")) // in the view
		piped(t, dump, "mariadb", flags(t, to)...)
		return to
	}}
}

func redisAOF(t *testing.T) restorable {
	s := redisWith(t, nil)
	said, err := s.CLI(t.Context(), "CONFIG", "GET", "dir")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(said)
	log, copied := filepath.Join(lines[len(lines)-1], "appendonlydir"), filepath.Join(t.TempDir(), "aof")
	stopped := func(t *testing.T, do func() error) {
		t.Helper()
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := do(); err != nil {
			t.Fatal(err)
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	at := "redis://" + s.Addr() + "/0"
	return restorable{at, func(t *testing.T) { stopped(t, func() error { return os.CopyFS(copied, os.DirFS(log)) }) }, func(t *testing.T) string {
		stopped(t, func() error {
			files, err := os.ReadDir(copied)
			for _, f := range files { // into the files that are there, which belong to the server's user
				text, failed := os.ReadFile(filepath.Join(copied, f.Name()))
				if err = errors.Join(err, failed); failed == nil {
					err = errors.Join(err, os.WriteFile(filepath.Join(log, f.Name()), text, 0o600))
				}
			}
			return err
		})
		return at
	}}
}

// settleOne claims and settles an operation. It returns false if the operation has run before.
func settleOne(t *testing.T, url, key string) (ran bool) {
	t.Helper()
	s := mustOpen(t, "--store", url)
	req := claimOf(key)
	rec, err := s.Claim(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if rec.Owner != req.Owner {
		return false
	}
	if err := s.Settle(t.Context(), rec.Claim(), store.Settlement{State: store.Completed}, store.Retention{Result: time.Hour, Tombstone: time.Hour}); err != nil {
		t.Fatal(err)
	}
	return true
}

func TestRestoreDrill(t *testing.T) {
	for name, open := range map[string]func(*testing.T) restorable{"SQLite, VACUUM INTO": sqliteCopy, "PostgreSQL, pg_dump": postgresDump, "MariaDB, mariadb-dump": mariadbDump, "Redis, copy of the append-only file": redisAOF} {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			file := filepath.Join(t.TempDir(), "watermark.json")
			look := func(url, want string, good bool) {
				t.Helper()
				_, found := examineWith(t, "--store", url, "--watermark", file)
				if f, there := found["restored"]; !there || f.OK != good || !strings.Contains(f.Found, want) {
					t.Errorf("got %+v; want %q, %v", f, want, good)
				}
			}
			settleOne(t, r.url, "before")
			look(r.url, "first watermark", true)
			r.backup(t)
			if !settleOne(t, r.url, "after") || settleOne(t, r.url, "after") {
				t.Error("an operation did not run once")
			}
			look(r.url, "has all that it had", true) // the control: a backup alone changes nothing
			url := r.restore(t)
			if settleOne(t, url, "before") || !settleOne(t, url, "after") {
				t.Error("after the restore, an operation of before the backup ran again, or one of after it did not: then the drill shows nothing")
			}
			look(url, "older than its watermark", false)
			look(url, "older than its watermark", false) // until the operator removes the file
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			look(url, "first watermark", true)
			look(url, "has all that it had", true)
		})
	}
}

func TestWatermark_UnreadableOrReadOnly_IsAnError(t *testing.T) {
	r := sqliteCopy(t)
	file := filepath.Join(t.TempDir(), "watermark.json")
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, found := examineWith(t, "--store", r.url, "--watermark", file); found["restored"].OK || !strings.Contains(found["restored"].Found, "is no watermark") {
		t.Errorf("%+v", found["restored"])
	}
	if status, _, errs := command(t, "doctor", "--store", r.url, "--watermark", file, "--read-only"); status != exitUsage || !strings.Contains(errs, "--read-only") {
		t.Errorf("%d %s", status, errs)
	}
}
