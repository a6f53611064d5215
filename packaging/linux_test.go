package main

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestRPMIsMade does not install it.
func TestRPMIsMade(t *testing.T) {
	first, _ := packages(t)
	found, err := filepath.Glob(filepath.Join(first, "*.rpm"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%v, %v", found, err)
	}
	out, err := exec.CommandContext(t.Context(), "head", "-c", "4", found[0]).Output()
	if err != nil || string(out) != "\xed\xab\xee\xdb" {
		t.Errorf("%q, %v", out, err)
	}
}
