package crashtest

import (
	"errors"
	"testing"
)

func TestRunThatAVerifierHasVoidedChargesNothing(t *testing.T) {
	dir := t.TempDir()
	l, err := OpenLedger(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	e := Effect{Charge: Charge{ID: "late", Scope: "a", Key: "k"}, Fence: 1}
	if _, ok, err := l.Verify("a", "k", 1); ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := l.Have(e); !errors.Is(err, ErrVoided) {
		t.Errorf("it did: %v", err)
	}
	e.Fence, e.ID = 2, "next"
	if err := l.Have(e); err != nil {
		t.Fatal(err)
	}
	other, err := OpenLedger(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if found, ok, err := other.Verify("a", "k", 2); !ok || err != nil || found != e {
		t.Error(found, ok, err)
	}
	if err := other.Have(e); err != nil { // nothing but a verifier's word keeps anybody from it
		t.Error(err)
	}
	if _, err := l.file.WriteString("{torn"); err != nil {
		t.Fatal(err)
	}
	if err := other.Add(Gave, e); err != nil {
		t.Error(err)
	}
	for kind, want := range map[string]int{Happened: 2, Gave: 1, Refused: 1, Voided: 1, Verified: 2} {
		if got, err := ReadLedger(dir, kind); len(got) != want || err != nil {
			t.Errorf("%d lines say %s; want %d; %v", len(got), kind, want, err)
		}
	}
}
