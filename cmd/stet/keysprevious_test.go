package main

import (
	"strings"
	"testing"
)

// The records have the previous namespace, which is "".
func TestKeysFindsOperationsOfThePreviousNamespace(t *testing.T) {
	d := newShop(t)
	for _, step := range []struct{ args, want string }{
		{"get completed --scope acme", "completed"},
		{"ls --scope acme --state failed", "failed"},
		{"release --state unknown --scope acme --reason checked --yes", "retryable, was unknown"},
		{"resolve dead --scope acme --as failed --plain --reason checked --yes", "failed, was running"},
	} {
		if status, out, errs := d.run("", step.args, "--namespace", "v2"); strings.Contains(out, step.want) {
			t.Errorf("keys %s, without the previous namespace: %d, %s%s", step.args, status, out, errs)
		}
		if status, out, errs := d.run("", step.args, "--namespace", "v2", "--previous-namespace", ""); status != 0 || !strings.Contains(out, step.want) {
			t.Errorf("keys %s: %d, %s%s; want %q", step.args, status, out, errs, step.want)
		}
	}
}
