package engine_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// TestDigestsAreFrozen keeps the records that are stored today matching
// tomorrow's requests.
func TestDigestsAreFrozen(t *testing.T) {
	got := stet.NewFingerprint([]byte("POST"), []byte("/payments"), nil).String()
	if want := "01209119463f010b4a13508fefe7c9ba17356eaa2f9743d9f5f79ee0a42321a7a9"; got != want {
		t.Fatalf("fingerprint %s, was %s", got, want)
	}
	if id, want := store.Digest("", "acct_1", "k1").String(), "9871cf1a6e838be03fcf5f4780773de8b8f46f88945920ea8a2d322ddce60e09"; id != want {
		t.Fatalf("id %s, was %s", id, want)
	}
	if again := stet.NewFingerprint([]byte("POST"), []byte("/payments"), []byte{}).String(); again != got {
		t.Fatal("nil and empty parts differ")
	}
	if other := store.NewCanonicalFingerprint([]byte("POST"), []byte("/payments"), nil); other.String()[2:] == got[2:] {
		t.Fatal("the version is not part of the digest")
	}
}

// FuzzFingerprint: two requests have the same fingerprint only if all their parts are the
// same, also if their concatenations are.
func FuzzFingerprint(f *testing.F) {
	f.Add([]byte("POST"), []byte("/a"), []byte("b"), 3)
	f.Add([]byte(""), []byte(""), []byte(""), 0)
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x01a"), []byte("a"), []byte{}, 1)
	f.Fuzz(func(t *testing.T, a, b, c []byte, cut int) {
		parts := [][]byte{a, b, c}
		all := bytes.Join(parts, nil)
		cut = max(0, min(cut, len(all)))
		for _, other := range [][][]byte{{all}, {all[:cut], all[cut:]}, {a, b}, {c, b, a}, {all[:cut], nil, all[cut:]}, {a, b, c, nil}} {
			same := slices.EqualFunc(parts, other, bytes.Equal)
			if (stet.NewFingerprint(parts...) == stet.NewFingerprint(other...)) != same {
				t.Fatalf("%q and %q", parts, other)
			}
			text := func(parts [][]byte) (s []string) {
				for _, p := range parts {
					s = append(s, string(p))
				}
				return s
			}
			if (stet.DeriveKey("op", text(parts)...) == stet.DeriveKey("op", text(other)...)) != same {
				t.Fatalf("derived keys of %q and %q", parts, other)
			}
		}
		if len(a) > 0 && len(b) > 0 && len(a) <= store.MaxScope && len(b) <= store.MaxKey {
			if store.Digest("", string(a), string(b)) == store.Digest("", string(a)+string(b[:1]), string(b[1:])) {
				t.Fatalf("%q and %q share a digest with another scope", a, b)
			}
		}
	})
}

// TestRecordsOfAScopeAreNeighbours: a store that sorts by ID lists a scope
// without an index.
func TestRecordsOfAScopeAreNeighbours(t *testing.T) {
	least, greatest := store.ScopeRange(store.DigestScope("ns", "acct_1"))
	for range 1000 {
		key := stet.NewKey()
		if id := store.Digest("ns", "acct_1", key); bytes.Compare(id[:], least[:]) < 0 || bytes.Compare(id[:], greatest[:]) > 0 {
			t.Fatalf("%v is outside of its scope's range", id)
		}
		if id := store.Digest("ns", "acct_2", key); bytes.Compare(id[:], least[:]) >= 0 && bytes.Compare(id[:], greatest[:]) <= 0 {
			t.Fatalf("%v is inside of another scope's range", id)
		}
	}
}
