package admin_test

import (
	"testing"

	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/store"
)

// Operators see the reference as the service gave it, and what a policy keeps beside it,
// with nothing in it that a terminal would obey.
func TestStoredScopeAndKeyAreShownInTheirFields(t *testing.T) {
	for stored, want := range map[string]admin.Label{
		"order 7": {Ref: "order 7"},
		store.Kept{Scope: "acme\x1b[2J\xff", Key: "k é", Ref: "order 7"}.Pack(): {Ref: "order 7", KeptScope: "acme?[2J?", KeptKey: "k é"},
		store.Kept{Scope: "acme"}.Pack():                                        {KeptScope: "acme"},
		"sealed:x":                                                              {Ref: "sealed:x"},
		"kept:what=else":                                                        {Ref: "kept:what=else"},
	} {
		r := admin.NewRecord(store.Record{Label: store.Label{Ref: stored}})
		if r.Ref != want.Ref || r.KeptScope != want.KeptScope || r.KeptKey != want.KeptKey {
			t.Errorf("%q is shown as %q, %q, %q; want %q, %q, %q", stored, r.Ref, r.KeptScope, r.KeptKey, want.Ref, want.KeptScope, want.KeptKey)
		}
	}
}
