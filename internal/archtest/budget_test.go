package archtest

import (
	"bufio"
	"fmt"
	"go/ast"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// tooling are the folders whose code no user of stet runs.
var tooling = []string{"bench/", "examples/", "internal/test/", "internal/echotest/", "internal/crash/", "internal/child/",
	"internal/matrix/", "internal/archtest/", "internal/release/", "packaging/", "store/storetest/", "stethttp/adaptertest/", "stettest/"}

// budgeted are the folders with a budget of their own, in lines without tests.
var budgeted = []string{"store/postgres", "store/redis", "store/sqlite", "store/mysql", "stethttp", "internal/proxy", "cmd", "stetclient", "stetmsg", "stetwork", "internal/demo"}

// TestBudgets holds each figure of testdata/budgets.txt to its limit. `make size` prints all
// of them. Lower a limit when its figure is lower; the aim is where it must end.
func TestBudgets(t *testing.T) {
	got := sizes(t)
	seen := 0
	for _, row := range budgets(t) {
		n, ok := got[row.name]
		seen++
		switch {
		case !ok:
			t.Errorf("testdata/budgets.txt has %q, which is not measured", row.name)
		case n > row.limit:
			t.Errorf("%s: %d; the limit is %d, the aim %d", row.name, n, row.limit, row.aim)
		}
		t.Logf("%-34s %7d   limit %7d   aim %7d", row.name, n, row.limit, row.aim)
	}
	if seen != len(got) {
		t.Errorf("%d figures are measured, testdata/budgets.txt has %d: %v", len(got), seen, slices.Sorted(maps.Keys(got)))
	}
}

type budget struct {
	name       string
	limit, aim int
}

func budgets(t *testing.T) (rows []budget) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "budgets.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		name, rest, ok := strings.Cut(lines.Text(), ": ")
		fields := strings.Fields(rest)
		if !ok || len(fields) != 2 {
			t.Fatalf("testdata/budgets.txt: %q", lines.Text())
		}
		limit, err := strconv.Atoi(fields[0])
		aim, err2 := strconv.Atoi(fields[1])
		if err != nil || err2 != nil {
			t.Fatalf("testdata/budgets.txt: %q", lines.Text())
		}
		rows = append(rows, budget{name, limit, aim})
	}
	return rows
}

// sizes returns every figure by its name.
func sizes(t *testing.T) map[string]int {
	t.Helper()
	n := map[string]int{"structs over 12 fields": 0, "functions over 60 lines": 0, "functions over 5 parameters": 0, "docs for maintainers, words": 0}
	for _, f := range files(t) {
		lines := f.set.File(f.ast.FileStart).LineCount()
		switch {
		case f.test():
			n["tests, Go lines"] += lines
			continue
		case slices.ContainsFunc(tooling, func(folder string) bool { return strings.HasPrefix(f.path, folder) }):
			n["tooling, Go lines"] += lines
			continue
		}
		n["shipped, Go lines"] += lines
		if !strings.Contains(f.path, "/") {
			n["root, Go lines"] += lines
			n["root, files"]++
		}
		for _, folder := range budgeted {
			if strings.HasPrefix(f.path, folder+"/") {
				n[folder+", Go lines"] += lines
			}
		}
		shapes(f, n)
	}
	for _, page := range pages(t, "docs") {
		n["docs for users, words"] += page
	}
	for _, page := range pages(t, "docs/maintainers") {
		n["docs for maintainers, words"] += page
	}
	words, err := outWords()
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range words {
		n["words that are out"] += len(w.places)
	}
	return n
}

// shapes counts functions and structs above the limits, and the fields of options.
func shapes(f file, n map[string]int) {
	ast.Inspect(f.ast, func(node ast.Node) bool {
		switch d := node.(type) {
		case *ast.FuncDecl:
			if lines := f.set.Position(d.End()).Line - f.set.Position(d.Pos()).Line + 1; lines > 60 {
				n["functions over 60 lines"]++
			}
			if d.Type.Params.NumFields() > 5 {
				n["functions over 5 parameters"]++
			}
		case *ast.TypeSpec:
			s, ok := d.Type.(*ast.StructType)
			if !ok {
				return true
			}
			if s.Fields.NumFields() > 12 {
				n["structs over 12 fields"]++
			}
			if strings.HasSuffix(d.Name.Name, "Options") && d.Name.IsExported() {
				n["fields of Options structs"] += s.Fields.NumFields()
				if strings.HasPrefix(f.path, "stethttp/") && !strings.HasPrefix(f.path, "stethttp/webhook/") && d.Name.Name == "Options" {
					n["fields of stethttp.Options"] = s.Fields.NumFields()
				}
			}
		}
		return true
	})
}

// pages counts words: of each page in a folder, without its subfolders but docs/adapters.
func pages(t *testing.T, folder string) (words []int) {
	t.Helper()
	patterns := []string{folder + "/*.md"}
	if folder == "docs" {
		patterns = append(patterns, "docs/adapters/*.md", "README.md")
	}
	for _, pattern := range patterns {
		names, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(fmt.Errorf("%s: %w", name, err))
			}
			words = append(words, len(strings.Fields(string(text))))
		}
	}
	return words
}
