package mcpcall

import (
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
)

// TestTextsAndKeysEqualThoseOfOtherLanguages: a model reads the same text of a tool in Go, Python and Node.
func TestTextsAndKeysEqualThoseOfOtherLanguages(t *testing.T) {
	v := stettest.ReadVectors(t).Tools
	if len(v.Texts) < 19 || len(v.Keys) < 9 {
		t.Fatalf("docs/vectors.json has %d texts and %d keys of tools; want 19 and 9 at least", len(v.Texts), len(v.Keys))
	}
	for _, c := range v.Texts {
		var w Words
		if c.Keyed {
			w.KeyName = KeyName
		}
		x := ExecutionOf(c.Execution)
		got := map[string]func() Refusal{
			"key-missing":       w.KeyMissing,
			"key-invalid":       func() Refusal { return w.KeyInvalid(c.Why) },
			"scope-missing":     w.ScopeMissing,
			"scope-failed":      w.ScopeFailed,
			"misconfigured":     w.Misconfigured,
			"not-executed":      w.NotExecuted,
			"mismatch":          func() Refusal { return w.Refuse(&stet.Error{Kind: stet.KindMismatch, Execution: x}) },
			"in-flight":         func() Refusal { return w.Refuse(&stet.Error{Kind: stet.KindInFlight, Execution: x}) },
			"outcome-unknown":   func() Refusal { return w.Unknown(0) },
			"store-unavailable": func() Refusal { return w.Refuse(&stet.Error{Kind: stet.KindStore, Execution: x}) },
			"result-expired":    func() Refusal { return w.Refuse(&stet.Error{Kind: stet.KindExpired, Execution: x}) },
			"result-unreadable": func() Refusal { return w.Damaged(x) },
		}[c.Problem]()
		if got.Text != c.Text || got.Execution != x || got.Name != c.Problem && got.Name != "operation-failed" {
			t.Errorf("%s, %s: %s says\n%s\nwant\n%s", c.Problem, c.Execution, got.Name, got.Text, c.Text)
		}
	}
	for _, c := range v.Keys {
		if flaw := CheckKey(c.Key); flaw != c.Flaw {
			t.Errorf("%q: %q; want %q", c.Key, flaw, c.Flaw)
		}
	}
}
