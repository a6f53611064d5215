package engine_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// The label of a scope is stored in plain text beside an encrypted reference, which the engine reads as before.
func TestScopeLabelIsStoredBesideTheReference(t *testing.T) {
	secret := stet.Encryption{Keys: []stet.EncryptionKey{{Name: "k1", Secret: make([]byte, 32)}}}
	long := strings.Repeat("ü\n", 300)
	for name, c := range map[string]struct {
		encryption stet.Encryption
		policy     stet.Policy
		label, ref string
		want       string
	}{
		"plain":      {label: "Acme", ref: "order 7", want: "Acme"},
		"encrypted":  {encryption: secret, label: "Acme & Söhne; 1", ref: "order 7", want: "Acme & Söhne; 1"},
		"kept":       {policy: stet.Policy{KeepScope: true, KeepKey: true}, label: "Acme", ref: "scope-label:x;order 7", want: "Acme"},
		"no label":   {encryption: secret, ref: "scope-label:x;order 7"},
		"plain mark": {ref: "scope-label:x;order 7"},
		"too long":   {encryption: secret, policy: stet.Policy{KeepScope: true, KeepKey: true}, label: long, ref: strings.Repeat("%", store.MaxLabel), want: store.LabelText(long)},
	} {
		s := memory.New(memory.Options{})
		var last observe.Event
		e := newEngine(t, s, stet.Options{Policy: c.policy, Encryption: c.encryption, Label: func(stet.Op) string { return c.label },
			Observer: observe.Func(func(_ context.Context, ev observe.Event) { last = ev })})
		run, err := e.Begin(t.Context(), stet.Op{Scope: "acct", Key: "k", Name: "POST /pay", Ref: c.ref})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := run.MarkUnknown(t.Context()); err != nil {
			t.Fatal(err)
		}
		rec, err := s.Read(t.Context(), run.ID())
		if err != nil {
			t.Fatal(err)
		}
		label, stored := store.CutScopeLabel(rec.Label.Ref)
		if label != c.want || len(rec.Label.Ref) > store.MaxRef || len(c.encryption.Keys) > 0 && !strings.HasPrefix(stored, "sealed:") {
			t.Errorf("%s: the label is %q, want %q; stored is %.100q", name, label, c.want, rec.Label.Ref)
		}
		if st, err := e.Lookup(t.Context(), run.ID()); err != nil || st.Op.Ref != c.ref || (st.Op.Key == "k") != c.policy.KeepKey {
			t.Errorf("%s: Lookup returns %+v, %v; want the reference %q", name, st.Op, err, c.ref)
		}
		shown := map[string]string{}
		for _, attr := range last.Names() {
			shown[attr.Key] = attr.Value.String()
		}
		want := c.ref
		if len(c.encryption.Keys) > 0 {
			want = ""
		}
		if shown["scope_label"] != c.want || shown["name"] != "POST /pay" || shown["ref"] != want {
			t.Errorf("%s: the event %v has %v", name, last.Kind, shown)
		}
	}
}
