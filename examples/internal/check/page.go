package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Page requires that the program in the page of an adapter be the main.go of its example, in
// whose folder the test runs.
func Page(t *testing.T, adapter string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "adapters", adapter+".md"))
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(program), "\npackage main\n") // without its comment
	if !strings.Contains(string(page), "```go\npackage main\n"+text+"```") {
		t.Errorf("the program of docs/adapters/%s.md is not that of examples/%s/main.go", adapter, adapter)
	}
}
