package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func sidecarSettings() settings {
	return settings{each: 50 * time.Millisecond, rounds: 1, callers: []int{2}, kept: 8}
}

func TestSidecarIsMeasuredBesideNginx(t *testing.T) {
	s := sidecarSettings()
	s.docs = t.TempDir()
	page := filepath.Join(s.docs, "endtoend.md")
	if err := os.WriteFile(page, []byte("<!-- figures sidecar -->\n<!-- end -->\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.sidecar(t.Context(), ways); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range ways {
		if _, row, ok := strings.Cut(string(b), "| "+w.says+" | "); !ok || strings.Contains(strings.SplitN(row, "\n", 2)[0], "NaN") {
			t.Errorf("%s is not in the table: %s", w.says, b)
		}
	}
}

// A service that executes a key twice fails the command.
func TestSidecarThatExecutesTwiceFailsTheCommand(t *testing.T) {
	direct := ways[0]
	direct.ours = true
	if err := sidecarSettings().sidecar(t.Context(), []way{direct}); err == nil || !strings.Contains(err.Error(), "a promise is broken") {
		t.Errorf("the error is %v", err)
	}
}
