package stetgrpc_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheProgramOfThePageRuns runs the program of docs/adapters/grpc.md.
func TestTheProgramOfThePageRuns(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "adapters", "grpc.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```go\n")
	program, _, ok := strings.Cut(rest, "```\n")
	if !ok {
		t.Fatal("the page has no program")
	}
	var want strings.Builder
	for line := range strings.Lines(program) {
		if _, text, ok := strings.Cut(line, "// prints: "); ok {
			want.WriteString(text)
		}
	}
	if err := os.MkdirAll("testdata", 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("testdata", "page") // within the module, whose packages it imports
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir); _ = os.Remove("testdata") })
	program = strings.Replace(program, `"shop/shoppb"`, `"github.com/stet-go/stet/stetgrpc/internal/shoppb"`, 1)
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "run", "./"+filepath.ToSlash(dir)).CombinedOutput()
	if err != nil || string(out) != want.String() || want.Len() == 0 {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want.String())
	}
}
