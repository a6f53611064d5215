package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/child"
)

func TestMain(m *testing.M) {
	child.Main(childEnv, serve) // the test is its own service
	os.Exit(m.Run())
}

// TestStetPassesAllScenariosInATransaction runs the service in Go, which needs no packages of other languages.
func TestStetPassesAllScenariosInATransaction(t *testing.T) {
	patience = 2 * time.Minute // on a machine under load
	c, err := choose("^stet_tx$", "")
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPlace(t.Context(), c.contenders, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	r, err := p.compare(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for name, finding := range r.findings["stet_tx"] {
		if finding != passed {
			t.Errorf("%s: %s", name, finding)
		}
	}
	if n := r.count("stet_tx", passed); n < 20 {
		t.Errorf("%d scenarios have passed; want 20 at least", n)
	}
	page := filepath.Join(t.TempDir(), "page.md")
	const short, tables = "<!-- short: made by make compare -->\nold\n<!-- end of short -->\n", "<!-- tables: made by make compare -->\n<!-- end of tables -->\n"
	if err := os.WriteFile(page, []byte("before\n"+short+"between\n"+tables+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.write(page); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(page); err != nil || strings.Contains(string(text), "old") || !strings.Contains(string(text), "between\n") || !strings.Contains(string(text), "| killed after the write | ✓ |") {
		t.Errorf("the page is %s, %v", text, err)
	}
}
