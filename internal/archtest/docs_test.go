package archtest

import (
	"errors"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docPages returns the pages of docs and its folders.
func docPages(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "*.md"))
	below, err2 := filepath.Glob(filepath.Join("..", "..", "docs", "*", "*.md"))
	if err = errors.Join(err, err2); err != nil || len(pages) < 4 || len(below) < 4 {
		t.Fatalf("%d and %d pages, %v", len(pages), len(below), err)
	}
	return append(pages, below...)
}

var namedTest = regexp.MustCompile("`((?:Test|Fuzz|Benchmark|Example)[A-Z][A-Za-z0-9]*)`")

// TestTestsThatDocsNameExist keeps promises and their proofs together.
func TestTestsThatDocsNameExist(t *testing.T) {
	there := map[string]bool{}
	for _, f := range files(t) {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test() {
				there[fn.Name.Name] = true
			}
		}
	}
	pages := docPages(t)
	named := 0
	for _, page := range append(pages, filepath.Join("..", "..", "README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range namedTest.FindAllStringSubmatch(string(text), -1) {
			if named++; !there[m[1]] {
				t.Errorf("%s names %s, which does not exist", strings.TrimPrefix(page, "../../"), m[1])
			}
		}
	}
	if named == 0 {
		t.Error("no test is named anywhere")
	}
}

// TestDecisionsAreShort: those in force, and links to them lead to one.
func TestDecisionsAreShort(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "maintainers", "decisions.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(strings.Fields(string(text))); n > 6000 {
		t.Errorf("docs/maintainers/decisions.md has %d words; at most 6,000", n)
	}
	anchors := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^### (.+)$`).FindAllStringSubmatch(string(text), -1) {
		slug := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(m[1]), "")
		anchors["#"+strings.ReplaceAll(slug, " ", "-")] = true
	}
	for _, page := range docPages(t) {
		linked, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`decisions\.md(#[\w-]+)\)`).FindAllStringSubmatch(string(linked), -1) {
			if !anchors[m[1]] {
				t.Errorf("%s: no decision is at %s", strings.TrimPrefix(page, "../../"), m[1])
			}
		}
	}
}

var rootName = regexp.MustCompile(`(^|[^\w./"])stet\.([A-Z]\w*)`)

// TestTextsNameOnlyExportsOfTheRoot finds names in comments, messages and pages that have
// moved or gone.
func TestTextsNameOnlyExportsOfTheRoot(t *testing.T) {
	there, err := os.ReadFile(filepath.Join("testdata", "exports", "stet.txt"))
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, f := range files(t) {
		text, err := os.ReadFile(filepath.Join("..", "..", f.path))
		if err != nil {
			t.Fatal(err)
		}
		texts[f.path] = string(text)
	}
	pages := docPages(t)
	for _, page := range append(pages, filepath.Join("..", "..", "README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		texts[strings.TrimPrefix(page, "../../")] = string(text)
	}
	named := 0
	for path, text := range texts {
		for _, m := range rootName.FindAllStringSubmatch(text, -1) {
			if named++; !regexp.MustCompile(`(?m)^(const|func|type|var) ` + m[2] + `$`).Match(there) {
				t.Errorf("%s names stet.%s, which the root does not export", path, m[2])
			}
		}
	}
	if named < 1000 {
		t.Errorf("%d names were looked at; want at least 1,000", named)
	}
}

// TestLinksOfDocsExist follows the links between pages.
func TestLinksOfDocsExist(t *testing.T) {
	root := filepath.Join("..", "..")
	link := regexp.MustCompile(`\]\(([\w./-]+\.(?:md|go|py|js|json|svg|yaml))(?:#[\w-]*)?\)`)
	pages := append(docPages(t), filepath.Join(root, "README.md"), filepath.Join(root, "CONTRIBUTING.md"))
	followed := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			followed++
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), filepath.FromSlash(m[1]))); err != nil {
				t.Errorf("%s: %v", strings.TrimPrefix(page, "../../"), err)
			}
		}
	}
	if followed < 30 {
		t.Errorf("%d links were followed; want 30 at least", followed)
	}
}
