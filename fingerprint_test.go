package stet_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stet-go/stet"
)

// TestDigestsAreFrozen keeps the records that are stored today matching
// tomorrow's requests.
func TestDigestsAreFrozen(t *testing.T) {
	got := stet.NewFingerprint([]byte("POST"), []byte("/payments"), nil).String()
	if want := "01209119463f010b4a13508fefe7c9ba17356eaa2f9743d9f5f79ee0a42321a7a9"; got != want {
		t.Fatalf("fingerprint %s, was %s", got, want)
	}
	if id, want := stet.Digest("", "acct_1", "k1").String(), "83c6a5a69fd8e0c56138326ff652f23f84ed884515fdc4808203d72bdd5875df"; id != want {
		t.Fatalf("id %s, was %s", id, want)
	}
	if again := stet.NewFingerprint([]byte("POST"), []byte("/payments"), []byte{}).String(); again != got {
		t.Fatal("nil and empty parts differ")
	}
	if other := stet.NewFingerprintVersion(stet.FingerprintCanonical, []byte("POST"), []byte("/payments"), nil); other.String()[2:] == got[2:] {
		t.Fatal("the version is not part of the digest")
	}
}

// FuzzFingerprint: two requests have one fingerprint only if all their parts are
// the same, wherever one part ends and the next begins.
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
		if len(a) > 0 && len(b) > 0 && len(a) <= stet.MaxScope && len(b) <= stet.MaxKey {
			if stet.Digest("", string(a), string(b)) == stet.Digest("", string(a)+string(b[:1]), string(b[1:])) {
				t.Fatalf("%q and %q share a digest with another scope", a, b)
			}
		}
	})
}
