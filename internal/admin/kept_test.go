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
		"order 7": {Names: admin.Names{Ref: "order 7"}},
		store.Kept{Scope: "acme\x1b[2J\xff", Key: "k é", Ref: "order 7"}.Pack(): {Names: admin.Names{Ref: "order 7"}, KeptScope: "acme?[2J?", KeptKey: "k é"},
		store.Kept{Scope: "acme"}.Pack():                                        {KeptScope: "acme"},
		"sealed:x":                                                              {Names: admin.Names{Ref: "sealed:x"}},
		"kept:what=else":                                                        {Names: admin.Names{Ref: "kept:what=else"}},
		store.WithScopeLabel("Acme; 1\x1b", "sealed:x"):                         {Names: admin.Names{Ref: "sealed:x", ScopeLabel: "Acme; 1?"}},
		store.Kept{Ref: "scope-label:x;y"}.Pack():                               {Names: admin.Names{Ref: "scope-label:x;y"}},
	} {
		r := admin.NewRecord(store.Record{Label: store.Label{Ref: stored}})
		if r.Names != want.Names || r.KeptScope != want.KeptScope || r.KeptKey != want.KeptKey {
			t.Errorf("%q is shown as %+v; want %+v", stored, r.Label, want)
		}
	}
}
