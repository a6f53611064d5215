package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

// A person finds an operation by its key, its account or its reference, without a digest.
func TestKeysFindTakesKeyAccountAndReference(t *testing.T) {
	d := newShop(t)
	s, err := sqlite.Open(t.Context(), d.path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e := stettest.Engine(t, s, stet.Options{SweepEvery: -1, Label: func(op stet.Op) string { return "Tenant " + op.Scope },
		Classes: map[string]stet.Policy{"kept": {KeepScope: true, KeepKey: true}}})
	ids := map[string]string{}
	for name, op := range map[string]stet.Op{
		"1": {Scope: "single-tenant", Key: "k1", Ref: "order 1"}, "2": {Scope: "globex", Key: "k1", Ref: "order 2"}, "3": {Scope: "globex", Key: "k2", Ref: "order 3"},
		"stored": {Scope: "stored", Key: "k-stored", Class: "kept"},
	} {
		run, err := e.Begin(t.Context(), op)
		if err != nil {
			t.Fatal(err)
		}
		if err := run.MarkUnknown(t.Context()); err != nil {
			t.Fatal(err)
		}
		ids[name] = store.Digest("", op.Scope, op.Key).String()
	}
	config := filepath.Join(t.TempDir(), "stet.yaml")
	if err := os.WriteFile(config, []byte("scope: header:X-Account\nupstream: {url: http://127.0.0.1:1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want []string }{
		{[]string{"k1"}, []string{"1"}},
		{[]string{"k1", "--account", "globex", "--config", config}, []string{"2"}},
		{[]string{"--account", "globex", "--config", config}, []string{"2", "3"}},
		{[]string{"--account", "Tenant globex"}, []string{"2", "3"}},
		{[]string{"--account", "globex", "--ref", "order 3"}, []string{"3"}},
		{[]string{"--ref", "order 2"}, []string{"2"}},
		{[]string{"k-stored", "--config", config}, []string{"stored"}},
		{[]string{"k2", "--scope", "globex"}, []string{"3"}},
		{[]string{"no-such-key"}, nil},
		{[]string{"--ref", "order 9"}, nil},
	} {
		status, out, errs := d.run("", "find", c.args...)
		if (status == exitOK) != (len(c.want) > 0) {
			t.Errorf("%q: status %d: %s", c.args, status, errs)
		}
		for name, id := range ids {
			if strings.Contains(out, id) != slices.Contains(c.want, name) {
				t.Errorf("%q: want the operations %q without others; got %s", c.args, c.want, out)
			}
		}
	}
	if status, _, errs := d.run("", "find"); status != exitUsage || !strings.Contains(errs, "--account") {
		t.Errorf("without anything: status %d, %s", status, errs)
	}
}

func TestKeysLsSelectsByNames(t *testing.T) {
	d := newIncident(t)
	for args, want := range map[string]int{
		"ls --class mail": 4, "ls --class payments --limit 100 --sort -claimed": 31, "ls --name POST_/mail": 0, "ls --state dead --limit 100": 36,
		"ls --class payments --offset 30": 1, "ls --scope-label Acme": 0,
	} {
		if status, out, errs := d.run("", args); status != exitOK || strings.Count(out, "\n")-1 != want {
			t.Errorf("%s: status %d, want %d operations: %s%s", args, status, want, out, errs)
		}
	}
	if status, _, errs := d.run("", "ls --sort age"); status != exitUsage || !strings.Contains(errs, "none of attempt") {
		t.Errorf("an unknown order: status %d, %s", status, errs)
	}
}
