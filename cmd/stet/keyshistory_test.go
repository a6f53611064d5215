package main

import (
	"strings"
	"testing"
)

func TestKeysGetShowsTheHistory(t *testing.T) {
	d := newShop(t)
	if status, out, errs := d.run("", "get unknown --scope acme"); status != exitOK || !strings.Contains(out, "\nHISTORY\n") || !strings.Contains(out, "lease_expired  process_gone") {
		t.Errorf("before a resolution: %d, %s%s", status, out, errs)
	}
	if status, out, errs := d.run("", "release unknown --scope acme --yes", "--reason", "case 7", "--actor", "mia"); status != exitOK {
		t.Fatalf("release: %d, %s%s", status, out, errs)
	}
	if _, out, errs := d.run("", "get unknown --scope acme"); !strings.Contains(out, "operator") || !strings.Contains(out, "mia  case 7 (it did not happen)") {
		t.Errorf("after the resolution: %s%s", out, errs)
	}
	if _, out, _ := d.run("", "get completed --scope acme"); strings.Contains(out, "HISTORY") {
		t.Errorf("without trouble: %s", out)
	}
}
