package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestEvery503StatesThatNothingWasExecuted: stetclient and other clients read a
// 503 with Retry-After as not executed.
func TestEvery503StatesThatNothingWasExecuted(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "problems.md"))
	if err != nil {
		t.Fatal(err)
	}
	said := regexp.MustCompile(`(?m)^503[^.]*\.`).FindAllString(string(text), -1)
	if len(said) < 3 {
		t.Fatalf("found %d problems with 503", len(said))
	}
	for _, s := range said {
		if !strings.Contains(s, "not executed") {
			t.Errorf("docs/problems.md: %s", s)
		}
	}
}
