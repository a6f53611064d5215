package engine_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestVerifierReceivesTheLabelOfTheExpiredRun(t *testing.T) {
	s := memory.New(memory.Options{})
	var asked []stet.Status
	e, err := stet.New(s, stet.Options{SweepEvery: -1, Classes: map[string]stet.Policy{"pay": {Verify: func(_ context.Context, st stet.Status) (stet.Resolution, error) {
		asked = append(asked, st)
		return stet.ItDidNotHappen(), nil
	}}}, Encryption: stet.Encryption{Keys: []stet.EncryptionKey{{Name: "k", Secret: make([]byte, 32)}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	op := stet.Op{Scope: "acct", Key: "k1", Class: "pay", Name: "POST /v1/payments", Ref: "order 1042"}
	run, err := e.Begin(t.Context(), op)
	if err != nil {
		t.Fatal(err)
	}
	if err := run.MarkUnknown(t.Context()); err != nil {
		t.Fatal(err)
	}
	rec, err := s.Read(t.Context(), run.ID())
	if l := rec.Label; err != nil || l.Class != "pay" || l.Name != op.Name || !strings.HasPrefix(l.Ref, "sealed:") || strings.Contains(l.Ref, "1042") || len(l.Ref) > 4*store.MaxLabel {
		t.Errorf("stored is %+v, %v; want the reference sealed", l, err)
	}
	again := op
	again.Name, again.Ref = "another route", "another order"
	next, err := e.Begin(t.Context(), again)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = next.Release(t.Context(), stet.Again{}) }()
	if len(asked) != 1 || asked[0].Op.Name != op.Name || asked[0].Op.Ref != op.Ref || asked[0].Op.Class != "pay" || asked[0].Record.Attempt != 1 {
		t.Errorf("the verifier got %+v; want the name of the abandoned run", asked)
	}
	if st, err := e.Lookup(t.Context(), run.ID()); err != nil || st.Record.Label.Ref != again.Ref || st.Op != (stet.Op{Class: "pay", Name: again.Name, Ref: again.Ref}) {
		t.Errorf("%+v, %+v, %v; want the class, the name, and the reference as it was given", st.Record.Label, st.Op, err)
	}
}

// A resolution about another order would be a lie.
func TestReferenceThatWasChangedIsNotVerified(t *testing.T) {
	s := memory.New(memory.Options{})
	secret := stet.Encryption{Keys: []stet.EncryptionKey{{Name: "k", Secret: make([]byte, 32)}}}
	e, err := stet.New(s, stet.Options{SweepEvery: -1, Encryption: secret, Policy: stet.Policy{Verify: func(context.Context, stet.Status) (stet.Resolution, error) {
		t.Error("the verifier was asked")
		return stet.ItDidNotHappen(), nil
	}}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for key, ref := range map[string]string{"plain": "order 7", "of another": "sealed:AAAA"} {
		op := stet.Op{Scope: "acct", Key: key}
		id := e.ID(op.Scope, op.Key)
		if _, err := s.Claim(t.Context(), store.ClaimRequest{ID: id, Scope: store.DigestScope("", op.Scope), Owner: store.NewOwner(), Lease: time.Nanosecond, Label: store.Label{Ref: ref}}); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Begin(t.Context(), op); stet.KindOf(err) != stet.KindUnknown {
			t.Errorf("%s: %v; want it unknown", key, err)
		}
		if _, err := e.Lookup(t.Context(), id); stet.KindOf(err) != stet.KindDamaged {
			t.Errorf("%s: Lookup: %v; want it damaged", key, err)
		}
	}
}

func TestLabelsThatDoNotFitAreRefused(t *testing.T) {
	e := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
	for _, bad := range []string{strings.Repeat("x", store.MaxLabel+1), "\xff", "a\nb", "a\x00b", "a\u0085b"} {
		for _, op := range []stet.Op{{Scope: "s", Key: "k", Name: bad}, {Scope: "s", Key: "k", Ref: bad}} {
			if _, err := e.Begin(t.Context(), op); stet.KindOf(err) != stet.KindInvalid {
				t.Errorf("%.20q: %v; want it invalid", bad, err)
			}
		}
		if fit := store.LabelText(bad); len(fit) > store.MaxLabel || fit == bad || fit == "" {
			t.Errorf("%.20q is made %.20q", bad, fit)
		}
	}
	if _, err := e.Begin(t.Context(), stet.Op{Scope: "s", Key: "k", Ref: "sealed:x"}); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("a reference with the mark of a sealed one: %v", err)
	}
}
