package archtest

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	quoted = regexp.MustCompile("`([^`]+)`")
	hop    = regexp.MustCompile("`([a-z0-9/_]+\\.go)`: ((?:`[A-Za-z]+`(?:, )?)+)")
)

// TestArchitectureIsAsWritten compares docs/maintainers/architecture.md with the code.
func TestArchitectureIsAsWritten(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "maintainers", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := make(map[string]bool)
	for _, m := range quoted.FindAllStringSubmatch(string(text), -1) {
		named[m[1]] = true
	}
	functions := make(map[string][]string) // by file
	for _, f := range files(t) {
		if p := f.pkg(); !f.test() && other(p) == "" && p != "stet" && !named[p+"/"] {
			t.Errorf("docs/maintainers/architecture.md does not name the package %s", p)
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				functions[f.path] = append(functions[f.path], fn.Name.Name)
			}
		}
	}
	for name := range named {
		if strings.HasSuffix(name, "/") || strings.HasSuffix(name, ".go") {
			if _, err := os.Stat(filepath.Join("..", "..", name)); err != nil {
				t.Errorf("docs/maintainers/architecture.md names %s: %v", name, err)
			}
		}
	}
	hops := hop.FindAllStringSubmatch(string(text), -1)
	if len(hops) < 20 {
		t.Errorf("docs/maintainers/architecture.md has %d hops with functions, want 20 or more", len(hops))
	}
	for _, h := range hops {
		for _, fn := range quoted.FindAllStringSubmatch(h[2], -1) {
			if !slices.Contains(functions[h[1]], fn[1]) {
				t.Errorf("docs/maintainers/architecture.md names %s in %s, which has no such function", fn[1], h[1])
			}
		}
	}
	for _, way := range strings.Split(string(text), "\n## ")[1:] {
		if n := len(regexp.MustCompile(`(?m)^\d+\. `).FindAllString(way, -1)); strings.HasPrefix(way, "The way of") && (n < 3 || n > 8) {
			t.Errorf("docs/maintainers/architecture.md: %.40q has %d hops, want at most 8", way, n)
		}
	}
}
