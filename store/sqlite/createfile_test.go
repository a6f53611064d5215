//go:build unix

package sqlite

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

func TestNewFilesAreTheUsersAlone(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	dir := t.TempDir()
	path := filepath.Join(dir, "a&b=50%.db")
	s := openStore(t, Options{}, path)
	mustClaim(t, s, request("k"))
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Fatalf("%v, %v; want the file and the two beside it", entries, err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %v, %v", e.Name(), info.Mode(), err)
		}
	}
}

func TestOlderFileKeepsItsMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stet.db")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o640); err != nil { // whatever the umask
		t.Fatal(err)
	}
	mustClaim(t, openStore(t, Options{}, path), request("k"))
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if info, err := os.Stat(path + suffix); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("%q: %v, %v", suffix, info.Mode(), err)
		}
	}
}

// Each name would have a log of its own, and the same key be granted twice.
func TestFileWithSeveralNamesIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stet.db")
	s := openStore(t, Options{}, path)
	other := filepath.Join(t.TempDir(), "stet.db")
	if err := os.Link(path, other); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), other, Options{}); err == nil || !strings.Contains(err.Error(), "hard links") {
		t.Errorf("Open: %v", err)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, other); err != nil { // which SQLite follows
		t.Fatal(err)
	}
	rec := mustClaim(t, s, request("k"))
	if got := mustRead(t, openStore(t, Options{}, other), rec.ID); got.Owner != rec.Owner {
		t.Errorf("by a symbolic link: %+v", got)
	}
}

// inTheCallers are what a caller does in transactions of its own.
func inTheCallers(t *testing.T, s *Store) map[string]func(*sql.Tx) error {
	rec := mustClaim(t, s, request(stet.NewKey()))
	return map[string]func(*sql.Tx) error{
		"SettleTx": func(tx *sql.Tx) error { return s.SettleTx(t.Context(), tx, rec.Claim(), completed("done"), keep) },
		"SaveTx": func(tx *sql.Tx) error {
			return s.SaveTx(t.Context(), tx, rec.Claim(), store.Notes{Version: 1, Data: []byte("notes")}, false)
		},
		"AcceptTx": func(tx *sql.Tx) error {
			_, err := s.AcceptTx(t.Context(), tx, request(stet.NewKey()), []byte("work"), 0)
			return err
		},
	}
}

func TestTransactionThatMayBeLostWithThePowerIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stet.db")
	s := openStore(t, Options{}, path)
	for level, fine := range map[string]bool{"OFF": false, "NORMAL": false, "FULL": true, "EXTRA": true} {
		db, err := sql.Open("sqlite", path+"?_txlock=immediate&_pragma=synchronous("+level+")")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		for name, call := range inTheCallers(t, s) {
			tx, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			if err := call(tx); (err == nil) != fine || !fine && (!errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), "synchronous")) {
				t.Errorf("%s with synchronous=%s: %v", name, level, err)
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Files that are attached are not committed as one.
func TestTransactionOfAnotherFileIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stet.db")
	s := openStore(t, Options{}, path)
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "orders.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("ATTACH ? AS stet", path); err != nil {
		t.Fatal(err)
	}
	for name, call := range inTheCallers(t, s) {
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if err := call(tx); !errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), "orders.db") {
			t.Errorf("%s: %v", name, err)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFileBehindADanglingLinkIsPrivate(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o022))
	dir := t.TempDir()
	link := filepath.Join(dir, "stet.db")
	if err := os.Symlink(filepath.Join(dir, "data.db"), link); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, Options{}, link)
	mustClaim(t, s, request("k"))
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := os.Stat(filepath.Join(dir, e.Name())); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 0600", e.Name(), info.Mode(), err)
		}
	}
}
