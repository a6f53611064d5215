package main

import (
	"path/filepath"
	"testing"
)

// TestEveryDefectIsStillInItsPlace keeps the table true: what a defect changes
// must be in its file once.
func TestEveryDefectIsStillInItsPlace(t *testing.T) {
	names := map[string]bool{}
	for _, d := range all() {
		if _, err := d.broken(filepath.Join("..", "..", "..", "..")); err != nil {
			t.Errorf("%s: %v", d.name, err)
		}
		if names[d.name] || d.old == d.new || len(d.tests) == 0 {
			t.Errorf("%s: named twice, changes nothing, or has no tests", d.name)
		}
		names[d.name] = true
	}
	if len(names) < 20 {
		t.Errorf("there are %d defects", len(names))
	}
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
