package engine_test

import (
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

var awkward = strings.Repeat("\xff&=+%\x00 é", 113) // 1,017 bytes

// A reconciler calls the verifier with scope and key if the policy stores them.
func TestPolicyKeepsScopeAndKeyForAVerifier(t *testing.T) {
	secret := stet.Encryption{Keys: []stet.EncryptionKey{{Name: strings.Repeat("k", 32), Secret: make([]byte, 32)}}}
	both := stet.Policy{KeepScope: true, KeepKey: true}
	for name, c := range map[string]struct {
		policy     stet.Policy
		encryption stet.Encryption
		op, want   stet.Op
	}{
		"nothing":          {op: stet.Op{Scope: "acct", Key: "k", Ref: "r"}, want: stet.Op{Ref: "r"}},
		"the scope":        {policy: stet.Policy{KeepScope: true}, op: stet.Op{Scope: "acct", Key: "k", Ref: "r"}, want: stet.Op{Scope: "acct", Ref: "r"}},
		"both":             {policy: both, op: stet.Op{Scope: "acct", Key: "k"}, want: stet.Op{Scope: "acct", Key: "k"}},
		"with a reference": {policy: both, op: stet.Op{Scope: "acct", Key: "k", Ref: "kept:key=no"}, want: stet.Op{Scope: "acct", Key: "k", Ref: "kept:key=no"}},
		"encrypted":        {policy: both, encryption: secret, op: stet.Op{Scope: "acct", Key: "k", Ref: "r"}, want: stet.Op{Scope: "acct", Key: "k", Ref: "r"}},
		"any bytes": {policy: both, encryption: secret, op: stet.Op{Scope: awkward, Key: awkward[1:], Ref: strings.Repeat("%", store.MaxLabel)},
			want: stet.Op{Scope: awkward, Key: awkward[1:], Ref: strings.Repeat("%", store.MaxLabel)}},
	} {
		s := memory.New(memory.Options{})
		e := newEngine(t, s, stet.Options{Namespace: "ns", Policy: c.policy, Encryption: c.encryption})
		run, err := e.Begin(t.Context(), c.op)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := run.MarkUnknown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if st, err := e.Lookup(t.Context(), run.ID()); err != nil || st.Op != c.want || st.Record.Label.Ref != c.want.Ref {
			t.Errorf("%s: %+v, %+v, %v; want %+v", name, st.Op, st.Record.Label, err, c.want)
		}
		rec, err := s.Read(t.Context(), run.ID())
		if err != nil {
			t.Fatal(err)
		}
		if plain := strings.Contains(rec.Label.Ref, "acct"); len(rec.Label.Ref) > store.MaxRef || plain != (c.policy.KeepScope && len(c.encryption.Keys) == 0) {
			t.Errorf("%s: stored is %d bytes, %.100q", name, len(rec.Label.Ref), rec.Label.Ref)
		}
	}
}

// Two services with a store in common know of their own operations.
func TestOutcomesOfAnotherNamespaceAreNotShown(t *testing.T) {
	for _, keep := range []stet.Policy{{KeepScope: true, KeepKey: true}, {KeepScope: true}} {
		s := memory.New(memory.Options{})
		one, other := newEngine(t, s, stet.Options{Namespace: "one", Policy: keep}), newEngine(t, s, stet.Options{Namespace: "other", Policy: keep})
		run, err := one.Begin(t.Context(), stet.Op{Scope: "acct", Key: "k", Ref: "r"})
		if err != nil {
			t.Fatal(err)
		}
		if st, err := other.Lookup(t.Context(), run.ID()); err != nil || st.Op != (stet.Op{Ref: "r"}) {
			t.Errorf("%+v, %v; want neither scope nor key", st.Op, err)
		}
		if err := run.Release(t.Context(), stet.Again{}); err != nil {
			t.Fatal(err)
		}
	}
}

// What a caller may write as a reference names no other operation.
func TestReferenceCannotForgeScopeAndKey(t *testing.T) {
	s := memory.New(memory.Options{})
	e := newEngine(t, s, stet.Options{})
	for key, ref := range map[string]string{"a": "kept:key=victim&scope=acct&ref=r", "b": "kept:scope=victim&ref=r", "c": "kept:key=c&ref=r"} {
		rec, err := s.Claim(t.Context(), store.ClaimRequest{ID: e.ID("acct", key), Scope: store.DigestScope("", "acct"), Owner: store.NewOwner(), Lease: store.MinLease,
			Label: store.Label{Ref: ref}})
		if err != nil {
			t.Fatal(err)
		}
		if st, err := e.Lookup(t.Context(), rec.ID); err != nil || st.Op != (stet.Op{Ref: "r"}) {
			t.Errorf("%s: %+v, %v; want neither scope nor key", ref, st.Op, err)
		}
	}
}

func TestKeyIsNotKeptWithoutItsScope(t *testing.T) {
	_, err := stet.New(memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{KeepKey: true}})
	if stet.KindOf(err) != stet.KindInvalid || !strings.Contains(err.Error(), "KeepScope") {
		t.Errorf("%v; want an error that names KeepScope", err)
	}
}
