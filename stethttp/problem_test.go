package stethttp

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocumentedProblemsAreTheProblems compares docs/problems.md with the
// conditions in the source.
func TestDocumentedProblemsAreTheProblems(t *testing.T) {
	source, err := os.ReadFile("problem.go")
	if err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile("../docs/problems.md")
	if err != nil {
		t.Fatal(err)
	}
	type facts struct {
		status    string
		retryable bool
		execution string
	}
	code := make(map[string][]facts)
	executions := map[string]string{"NotExecuted": "not executed", "Executed": "executed", "MayHaveExecuted": "may have executed"}
	for _, m := range regexp.MustCompile(`= condition\{"([a-z-]+)", (\d+), "[^"]+",\s+"[^"]+", (true|false), stet\.(\w+)\}`).FindAllStringSubmatch(string(source), -1) {
		code[m[1]] = append(code[m[1]], facts{m[2], m[3] == "true", executions[m[4]]})
	}
	if n := strings.Count(string(source), "= condition{"); n != len(slices.Concat(values(code)...)) {
		t.Fatalf("%d conditions in the source, %d understood", n, len(code))
	}
	sections := strings.Split(string(docs), "\n## ")[1:]
	for _, section := range sections {
		name, text, _ := strings.Cut(section, "\n")
		for _, f := range code[name] {
			text := strings.ReplaceAll(text, "\n", " ")
			retryable := "retryable, " + f.execution
			if !f.retryable {
				retryable = "not " + retryable
			}
			if !strings.HasPrefix(strings.TrimSpace(text), f.status) || !strings.Contains(text, retryable) {
				t.Errorf("docs/problems.md: %s is not described as %s, %s", name, f.status, retryable)
			}
		}
		if len(code[name]) == 0 && !strings.HasPrefix(strings.TrimSpace(text), "Of gRPC and Connect only") {
			t.Errorf("docs/problems.md has %s, which is no problem", name)
		}
		delete(code, name)
	}
	for name := range code {
		t.Errorf("docs/problems.md does not have %s", name)
	}
}

func values[K comparable, V any](m map[K]V) (list []V) {
	for _, v := range m {
		list = append(list, v)
	}
	return list
}

func TestCORSNamesTheHeaders(t *testing.T) {
	want := fmt.Sprint(DefaultHeader, ", Prefer / ", DefaultReplayedHeader, ", ", executionHeader, ", ", expiresHeader, ", Location, Retry-After, Preference-Applied")
	if got := CORSAllowHeaders + " / " + CORSExposeHeaders; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
