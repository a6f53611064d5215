package store

import (
	"crypto/rand"
	"os"
	"testing"
)

func TestOwnerNamesItsProcess(t *testing.T) {
	host, pid, ok := NewOwner().Process()
	if !ok || pid != os.Getpid() {
		t.Errorf("the owner of this process is of %q, %d, %v", host, pid, ok)
	}
	for of, want := range map[string]string{
		"payments-7d9f8b6c5-x2x4z": "…5-x2x4z", "db1.example.com": "db1", "IP_10": "ip-10", "": "", "seven-7": "…seven-7",
	} {
		var o Owner
		o.name(packProcess(of, 4_194_303))
		if host, pid, ok := o.Process(); host != want || pid != 4_194_303 || !ok {
			t.Errorf("the process of %q is %q, %d, %v; want %q", of, host, pid, ok, want)
		}
	}
	if one, other := NewOwner(), NewOwner(); one == other {
		t.Error("two owners are equal")
	}
}

func TestOwnerOfAnotherProgramNamesNoProcess(t *testing.T) {
	named := 0
	for range 10_000 {
		var o Owner
		_, _ = rand.Read(o[:])
		if _, _, ok := o.Process(); ok {
			named++
		}
	}
	if named > 20 { // 1.2 are expected
		t.Errorf("%d of 10,000 random owners name a process", named)
	}
}
