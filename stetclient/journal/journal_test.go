package journal_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetclient"
	"github.com/stet-go/stet/stetclient/journal"
)

func openIn(path string) (*journal.Journal, error) {
	return journal.Open(context.Background(), path, journal.Options{})
}

func open(t *testing.T, path string, o journal.Options) *journal.Journal {
	t.Helper()
	j, err := journal.Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func TestJournalIsForOneProcessAndItsOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a journal?#%")
	j, err := journal.Open(t.Context(), path, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v; want st.Mode().Perm() == 0o600, no error", st.Mode(), err)
	}
	if second, err := journal.Open(t.Context(), path, journal.Options{}); err == nil {
		_ = second.Close()
		t.Error("a second one could be opened")
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := journal.Open(t.Context(), path, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
	for _, path := range []string{"", ":memory:", "file:x", "a\x00b", filepath.Join(path, "x")} {
		if _, err := journal.Open(t.Context(), path, journal.Options{}); err == nil {
			t.Errorf("%q could be opened", path)
		}
	}
	alien := filepath.Join(t.TempDir(), "alien")
	if err := os.WriteFile(alien, []byte(strings.Repeat("not a database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Open(t.Context(), alien, journal.Options{}); err == nil {
		t.Error("a file of something else could be opened")
	}
}

func TestJournalRemovesOldAnswers(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "journal"), journal.Options{})
	now := time.Now()
	for i := range 3 {
		in := stetclient.Intent{Name: fmt.Sprint(i), Key: fmt.Sprint("k", i), Method: "POST", URL: "http://service.test/", Created: now}
		if _, _, err := j.Add(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		if err := j.Settle(t.Context(), in.Name, in.Key, stetclient.Answer{Status: 201, At: now.Add(time.Duration(i) * 2 * journal.Keep)}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := j.List(t.Context(), "", 10)
	if err != nil || len(all) != 1 || all[0].Name != "2" || all[0].Answer == nil {
		t.Errorf("got %+v, %v; want len(all) == 1, all[0].Name == \"2\", all[0].Answer != nil, no error", all, err)
	}
	if err := j.Settle(t.Context(), "2", "k2", stetclient.Answer{Status: 500, At: now}); err != nil {
		t.Error(err)
	}
	if all, _ := j.List(t.Context(), "", 10); len(all) != 1 || all[0].Answer.Status != 201 {
		t.Errorf("the first answer was replaced: %+v", all)
	}
	_, settled := j.Mark(t.Context(), "2", "k2", stet.NotExecuted)
	_, none := j.Mark(t.Context(), "none", "k", stet.NotExecuted)
	for _, err := range []error{
		j.Settle(t.Context(), "2", "other", stetclient.Answer{At: now}),
		j.Settle(t.Context(), "none", "k", stetclient.Answer{At: now}),
		settled, none,
	} {
		if !errors.Is(err, stetclient.ErrNoIntent) {
			t.Errorf("got %v, want ErrNoIntent", err)
		}
	}
	if err := j.Forget(t.Context(), "none"); err != nil {
		t.Error(err)
	}
}

func TestMarkReturnsTheValueBefore(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "journal"), journal.Options{})
	in := stetclient.Intent{Name: "order 1", Key: "k", Method: "POST", URL: "http://service.test/", Created: time.Now(), Execution: stet.MayHaveExecuted}
	if _, _, err := j.Add(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	want := stet.MayHaveExecuted
	for _, x := range []stet.Execution{stet.NotExecuted, stet.NotExecuted, stet.MayHaveExecuted, stet.MayHaveExecuted, stet.NotExecuted} {
		if was, err := j.Mark(t.Context(), "order 1", "k", x); err != nil || was != want {
			t.Errorf("got %v, %v, want %v", was, err, want)
		}
		want = x
	}
	if _, err := j.Mark(t.Context(), "order 1", "other", stet.NotExecuted); !errors.Is(err, stetclient.ErrNoIntent) {
		t.Errorf("with another key: %v, want ErrNoIntent", err)
	}
}

func TestJournalIsMadeReadableForItsOwnerOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := open(t, path, journal.Options{})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o664); err != nil {
		t.Fatal(err)
	}
	j = open(t, path, journal.Options{})
	if _, _, err := j.Add(t.Context(), stetclient.Intent{Name: "order 1", Key: "k", Method: "POST", URL: "http://service.test/", Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob(path + "*")
	if err != nil || len(all) < 2 {
		t.Errorf("the files are %v, %v", all, err)
	}
	for _, file := range all {
		if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", file, st.Mode(), err)
		}
	}
}
