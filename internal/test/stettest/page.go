package stettest

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var (
	pageMain    = regexp.MustCompile("(?s)```go\n(package main.*?)```")
	mainBody    = regexp.MustCompile(`(?s)\nfunc main\(\) \{\n(.*?)\n\}(?:\n|$)`)
	exampleBody = regexp.MustCompile(`(?s)\nfunc Example\(\) \{\n(.*?)\n\t// (?:Unordered output|Output):`)
)

// SameProgram tests that the first whole program of a page has the main function that is
// the Example, which runs as a test, of a Go file.
func SameProgram(t testing.TB, page, file string) {
	t.Helper()
	part := func(name, text string, e *regexp.Regexp) string {
		m := e.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("%s has nothing like %s", name, e)
		}
		return strings.TrimSpace(m[1])
	}
	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	got := part(page, part(page, read(page), pageMain), mainBody)
	if want := part(file, read(file), exampleBody); got != want {
		t.Errorf("main of the program in %s is not the Example of %s; have it be:\n%s", page, file, want)
	}
}
