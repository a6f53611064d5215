package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the module's folder.
var root = filepath.Join("..", "..", "..", "..")

// TestEveryDefectIsStillInItsPlace keeps the table true: what a defect changes
// must be in its file once, and the tests that must notice must exist.
func TestEveryDefectIsStillInItsPlace(t *testing.T) {
	names := map[string]bool{}
	for _, d := range all() {
		if _, err := d.broken(root); err != nil {
			t.Errorf("%s: %v", d.name, err)
		}
		if names[d.name] || d.old == d.new || len(d.tests) == 0 {
			t.Errorf("%s: named twice, changes nothing, or has no tests", d.name)
		}
		names[d.name] = true
		if !d.selects(t) {
			t.Errorf("%s: %v selects no test", d.name, d.tests)
		}
	}
	if len(names) < 20 {
		t.Errorf("there are %d defects", len(names))
	}
}

// testFunc is the beginning of a test.
var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// selects reports whether the pattern of -run, if there is one, matches a test.
func (d defect) selects(t *testing.T) bool {
	t.Helper()
	flag := slices.Index(d.tests, "-run")
	if flag < 0 {
		return true
	}
	pattern, _, _ := strings.Cut(d.tests[flag+1], "/")
	matches := regexp.MustCompile(pattern)
	for _, folder := range slices.Delete(slices.Clone(d.tests), flag, flag+2) {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(strings.TrimSuffix(folder, "/...")), "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(testFunc.FindAllSubmatch(text, -1), func(m [][]byte) bool { return matches.Match(m[1]) }) {
				return true
			}
		}
	}
	return false
}

func TestFailuresAreNamed(t *testing.T) {
	for report, want := range map[string]string{
		"x\n--- FAIL: TestThis (0.1s)\n y": "TestThis",
		"panic: nil map\n\ngoroutine 1":    "nil map",
		"exit status 2":                    "a failure without a name",
	} {
		if got := firstFailure(report); got != want {
			t.Errorf("%q: %q; want %q", report, got, want)
		}
	}
}

func TestTimeoutAloneCatchesNothing(t *testing.T) {
	const timeout = "panic: test timed out after 8m0s\n\trunning tests:\n\t\tTestThis (1s)\n"
	if !undecided(timeout) {
		t.Error("a machine that is slow counts as a test that noticed")
	}
	if undecided("--- FAIL: TestThis (0.1s)\n" + timeout) {
		t.Error("a test that had failed does not count")
	}
}
