package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

// newIncident is a shop with 31 more operations of class payments and 4 of class mail whose runs have expired.
func newIncident(t *testing.T) *shop {
	t.Helper()
	d := newShop(t)
	s, err := sqlite.Open(t.Context(), d.path, sqlite.Options{Clock: func() time.Time { return time.Now().Add(-30 * time.Minute) }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for n := range 35 {
		class := "payments"
		if n >= 31 {
			class = "mail"
		}
		_, err := s.Claim(t.Context(), store.ClaimRequest{ID: store.Digest("", "acme", fmt.Sprint("lost ", n)), Scope: store.DigestScope("", "acme"),
			Label: store.Label{Class: class, Name: "POST /" + class}, Fingerprint: stet.NewFingerprint([]byte("x")), Owner: store.NewOwner(), Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
	}
	return d
}

const resolvePayments = "resolve --state unknown,running --class payments --older 10m --as failed --plain"

func TestSelectedOperationsAreResolvedEachWithALineOfTheAudit(t *testing.T) {
	d := newIncident(t)
	status, out, errs := d.run("", resolvePayments, "--reason", "no charge at the processor", "--dry-run", "--audit", d.audit)
	if status != exitOK || strings.Count(out, "dry run: ") != 31 || d.state("lost 0") != store.Running {
		t.Errorf("--dry-run: status %d, %d lines, lost 0 is %v: %s%s", status, strings.Count(out, "\n"), d.state("lost 0"), out, errs)
	}
	if status, _, _ := d.run("30\n", resolvePayments, "--reason", "no charge", "--audit", d.audit); status == exitOK || d.state("lost 0") != store.Running {
		t.Errorf("a wrong number was confirmed: status %d, lost 0 is %v", status, d.state("lost 0"))
	}
	status, out, errs = d.run("31\n", resolvePayments, "--reason", "no charge at the processor", "--audit", d.audit)
	if status != exitOK || strings.Count(out, "done: ") != 31 {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	for _, key := range []string{"lost 0", "lost 30"} {
		if d.state(key) != store.None { // an outcome without a response
			t.Errorf("%s is %v", key, d.state(key))
		}
	}
	for _, key := range []string{"lost 31", "dead", "running"} {
		if d.state(key) != store.Running {
			t.Errorf("%s, which was not selected, is %v", key, d.state(key))
		}
	}
	lines, err := os.ReadFile(d.audit)
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for line := range strings.Lines(string(lines)) {
		var e admin.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Why != "no charge at the processor" {
			t.Errorf("the audit has %s, %v", line, err)
		}
		if e.Result == admin.Done {
			made++
		}
	}
	if made < 31 {
		t.Errorf("the audit has %d changes", made)
	}
}

func TestSelectionIsBounded(t *testing.T) {
	d := newIncident(t)
	for args, want := range map[string]string{
		"release --state running --max 34 --yes --reason x":                 "more than 34",
		"release some-key --scope acme --state running --reason x":          "either one operation",
		"release --id 00 --state running --reason x":                        "either one operation",
		"release some-key --scope acme --max 3 --reason x":                  "--max needs --state",
		"release --state running --max 0 --reason x":                        "--max is 0",
		"release --state weird --reason x":                                  "--state",
		"resolve --state unknown --as failed --status 402 --yes --reason x": "--plain",
	} {
		if status, out, errs := d.run("", args); status == exitOK || !strings.Contains(errs, want) {
			t.Errorf("%s: status %d, want %q in: %s%s", args, status, want, out, errs)
		}
	}
	if d.state("lost 0") != store.Running {
		t.Errorf("lost 0 is %v", d.state("lost 0"))
	}
}

// lateAnswer is what an operator types, after something else has happened.
type lateAnswer struct {
	io.Reader
	before func()
}

func (l *lateAnswer) Read(p []byte) (int, error) {
	if l.before != nil {
		l.before()
		l.before = nil
	}
	return l.Reader.Read(p)
}

func TestSelectedOperationThatHasChangedIsLeftAlone(t *testing.T) {
	d := newIncident(t)
	stale := func() {
		s, err := sqlite.Open(t.Context(), d.path, sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		id := store.Digest("", "acme", "lost 7")
		rec, err := s.Read(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Settle(t.Context(), rec.Claim(), stettest.Completed("paid after all"), store.Retention{Result: time.Hour, Tombstone: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	in := &lateAnswer{strings.NewReader("31\n"), stale}
	status, out, errs := d.runFrom(in, resolvePayments, "--reason", "no charge", "--audit", d.audit)
	if status == exitOK || strings.Count(out, "done: ") != 30 || strings.Count(out, "not changed: ") != 1 || !strings.Contains(errs, "1 of 31") {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	if d.state("lost 7") != store.Completed {
		t.Errorf("the settled operation is %v", d.state("lost 7"))
	}
}
