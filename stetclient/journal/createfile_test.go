package journal_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stet-go/stet/stetclient"
	"github.com/stet-go/stet/stetclient/journal"
)

// otherProcess names the journal that this program is to open and say whether it could.
const otherProcess = "STET_JOURNAL_OTHER"

// otherIntent names the intent that it is to add before it dies, if any.
const otherIntent = "STET_JOURNAL_INTENT"

func TestMain(m *testing.M) {
	if path := os.Getenv(otherProcess); path != "" {
		if j, err := openIn(path); err == nil {
			if name := os.Getenv(otherIntent); name != "" {
				in := stetclient.Intent{Name: name, Key: "k", Method: "POST", URL: "http://service.test/", Created: time.Now()}
				if _, added, _ := j.Add(context.Background(), in); added {
					_, _ = os.Stdout.WriteString("added")
				}
				if self, err := os.FindProcess(os.Getpid()); err == nil {
					_ = self.Kill()
					select {}
				}
			}
			_ = j.Close()
			_, _ = os.Stdout.WriteString("opened")
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func TestJournalCanBeOpenOnce(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "journal")
	j := open(t, path, journal.Options{})
	link, hard := filepath.Join(dir, "link"), filepath.Join(dir, "hard")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(path, hard); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, link, hard, filepath.Join(dir, ".", "x", "..", "journal")} {
		if second, err := openIn(name); err == nil {
			_ = second.Close()
			t.Errorf("%s could be opened again", name)
		}
	}
	_ = os.Remove(hard)
	if second, err := openIn(link); err == nil {
		_ = second.Close()
		t.Error("the journal could be opened again through a symbolic link")
	}
	moved := filepath.Join(dir, "moved")
	if err := os.Rename(path, moved); err != nil {
		t.Fatal(err)
	}
	if second, err := openIn(path); err == nil { // the first one's log lies beside it
		_ = second.Close()
		t.Error("a new file could be opened where the log of another lies")
	}
	_ = os.Remove(path)
	if err := os.Rename(moved, path); err != nil {
		t.Fatal(err)
	}
	if openedElsewhere(t, path) {
		t.Error("another process opened the journal that this one has open")
	}
	if _, added, err := j.Add(t.Context(), stetclient.Intent{Name: "order 1", Key: "k", Method: "POST", URL: "http://service.test/", Created: time.Now()}); !added {
		t.Error(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if !openedElsewhere(t, path) {
		t.Error("another process cannot open a journal that was closed")
	}
	open(t, path, journal.Options{})
}

func TestJournalStoresHeadersThatAreNoText(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "journal"), journal.Options{})
	for name, header := range map[string]http.Header{
		"text":    {"X-Name": {"José", "=", ""}},
		"no text": {"X-Name": {"Jos\xe9", "plain"}, "X-Other": {"\xff"}},
		"none":    nil,
	} {
		if _, _, err := j.Add(t.Context(), stetclient.Intent{Name: name, Key: "k", Method: "POST", URL: "http://service.test/", Header: header, Created: time.Now()}); err != nil {
			t.Fatal(err)
		}
		if err := j.Settle(t.Context(), name, "k", stetclient.Answer{Status: 201, Header: header, At: time.Now()}); err != nil {
			t.Fatal(err)
		}
		got, _, err := j.Add(t.Context(), stetclient.Intent{Name: name})
		if err != nil || !reflect.DeepEqual(got.Header, header) || !reflect.DeepEqual(got.Answer.Header, header) {
			t.Errorf("%s: %q and %q, %v; want %q", name, got.Header, got.Answer.Header, err, header)
		}
	}
}

// openedElsewhere reports whether another process can open the journal.
func openedElsewhere(t *testing.T, path string) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), otherProcess+"="+path)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out) == "opened"
}

// SQLite's log lies beside the name under which the file was opened.
func TestJournalWithASecondNameIsRefused(t *testing.T) {
	dir := t.TempDir()
	path, hard := filepath.Join(dir, "journal"), filepath.Join(dir, "hard")
	in := stetclient.Intent{Name: "order 1", Key: "k", Method: "POST", URL: "http://service.test/", Created: time.Now()}
	if !addedAndDied(t, path, in.Name) {
		t.Fatal("the intent was not acknowledged")
	}
	if err := os.Link(path, hard); err != nil {
		t.Skip(err)
	}
	for _, name := range []string{hard, path} {
		if j, err := openIn(name); err == nil {
			_, added, _ := j.Add(t.Context(), in)
			t.Errorf("%s: opened; the intent is missing: %v", filepath.Base(name), added)
			_ = j.Close()
		}
	}
	if err := os.Remove(hard); err != nil {
		t.Fatal(err)
	}
	if _, added, err := open(t, path, journal.Options{}).Add(t.Context(), in); added || err != nil {
		t.Errorf("the intent is missing: %v, %v", added, err)
	}
}

// addedAndDied has another process add an intent and die.
func addedAndDied(t *testing.T, path, intent string) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), otherProcess+"="+path, otherIntent+"="+intent)
	out, _ := cmd.Output() // it dies
	return string(out) == "added"
}

// SQLite would delete the log of a file that is new.
func TestNewFileBesideTheLogOfAnotherJournalIsRefused(t *testing.T) {
	dir := t.TempDir()
	path, moved := filepath.Join(dir, "journal"), filepath.Join(dir, "moved")
	j := open(t, path, journal.Options{})
	if err := os.Rename(path, moved); err != nil {
		t.Skip(err)
	}
	for range 2 { // the first leaves an empty file
		if openedElsewhere(t, path) {
			t.Error("another process opened a new file in the place of an open log")
		}
	}
	in := stetclient.Intent{Name: "order 1", Key: "k", Method: "POST", URL: "http://service.test/", Created: time.Now()}
	if _, added, err := j.Add(t.Context(), in); !added {
		t.Error(err)
	}
	if err := os.Rename(moved, path); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, added, err := open(t, path, journal.Options{}).Add(t.Context(), in); added || err != nil {
		t.Errorf("the intent is missing: %v, %v", added, err)
	}
}

func TestLogOfAJournalBehindASymlinkIsReadByItsOwnerOnly(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	path, link := filepath.Join(elsewhere, "journal"), filepath.Join(dir, "link")
	if err := open(t, path, journal.Options{}).Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(path, 0o644), os.Symlink(path, link)); err != nil {
		t.Skip(err)
	}
	open(t, link, journal.Options{})
	for _, name := range []string{path, path + "-wal"} {
		if st, err := os.Stat(name); err != nil || st.Mode().Perm()&0o077 != 0 {
			t.Errorf("got %v, %v; want st.Mode().Perm()&0o077 == 0, no error", st, err)
		}
	}
}
