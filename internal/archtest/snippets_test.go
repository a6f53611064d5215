package archtest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	fence = regexp.MustCompile("(?ms)^```(go|python|js|ts|sql|yaml|html)\n(.*?)^```")

	// sources are the endings of files that a test compiles or runs, by language.
	sources = map[string][]string{
		"go": {".go"}, "python": {".py"}, "js": {".js"}, "ts": {".ts"}, "html": {".html"}, "yaml": {".yaml", ".go"}, "sql": {".sql", ".go", ".py"},
	}
)

// lines returns a text without indentation and empty lines.
func lines(text string) string {
	var b strings.Builder
	b.WriteByte('\n')
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// TestSnippetsOfDocsAreRun requires that each program, statement and configuration of a page is run by a
// test: its lines are those of a file that is built or run, or testdata/snippets.txt names the tests
// that take it from the page. A line there is "page count test…", where count is the number of such snippets.
func TestSnippetsOfDocsAreRun(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "git", "-C", filepath.Join("..", ".."), "ls-files", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Fatal(err)
	}
	var pages []string
	code := map[string]string{} // by ending
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		if filepath.Ext(name) == ".md" {
			pages = append(pages, name)
			continue
		}
		text, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil || !slices.Contains([]string{".go", ".py", ".js", ".ts", ".html", ".yaml", ".sql"}, filepath.Ext(name)) {
			continue // a removed file, or of another kind
		}
		code[filepath.Ext(name)] += lines(string(text))
	}
	taken, tests := takenFromPages(t)
	for _, test := range tests {
		if !strings.Contains(code[".go"], "\nfunc "+test+"(") {
			t.Errorf("testdata/snippets.txt names %s, which does not exist", test)
		}
	}
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join("..", "..", page))
		if err != nil {
			t.Fatal(err)
		}
		var loose []string
		for _, m := range fence.FindAllStringSubmatch(string(text), -1) {
			in := func(ending string) bool { return strings.Contains(code[ending], lines(m[2])) }
			if !slices.ContainsFunc(sources[m[1]], in) {
				first, _, _ := strings.Cut(m[2], "\n")
				loose = append(loose, m[1]+": "+first)
			}
		}
		if len(loose) != taken[page] {
			t.Errorf("%s has %d snippets that are in no file which a test builds or runs; testdata/snippets.txt says %d:\n%s", page, len(loose), taken[page], strings.Join(loose, "\n"))
		}
	}
}

// takenFromPages reads testdata/snippets.txt.
func takenFromPages(t *testing.T) (taken map[string]int, tests []string) {
	f, err := os.Open(filepath.Join("testdata", "snippets.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	taken = map[string]int{}
	for s := bufio.NewScanner(f); s.Scan(); {
		words := strings.Fields(s.Text())
		var n int
		if len(words) < 3 {
			t.Fatalf("testdata/snippets.txt: %q is not page, count and tests", s.Text())
		}
		if _, err := fmt.Sscan(words[1], &n); err != nil {
			t.Fatalf("testdata/snippets.txt: %q: %v", s.Text(), err)
		}
		taken[words[0]] = n
		tests = append(tests, words[2:]...)
	}
	return taken, tests
}
