package stet_test

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"strconv"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// TestVectorsForOtherLanguagesAreWhatGoComputes: docs/vectors.json was not made by Go.
func TestVectorsForOtherLanguagesAreWhatGoComputes(t *testing.T) {
	b, err := os.ReadFile("docs/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Fingerprints []struct {
			Version     int
			Parts       []string
			Fingerprint string
		}
		IDs    []struct{ Namespace, Scope, Key, ID string }
		Claims []struct{ ID, Owner, Fence, Claim string }
	}
	if err := json.Unmarshal(b, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors.Fingerprints) < 5 || len(vectors.IDs) < 5 || len(vectors.Claims) < 3 {
		t.Fatalf("%d fingerprints, %d IDs, %d claims; want 5, 5 and 3 at least", len(vectors.Fingerprints), len(vectors.IDs), len(vectors.Claims))
	}
	for _, v := range vectors.Fingerprints {
		var parts [][]byte
		for _, p := range v.Parts {
			part, err := hex.DecodeString(p)
			if err != nil {
				t.Fatal(err)
			}
			parts = append(parts, part)
		}
		made := map[int]func(...[]byte) store.Fingerprint{1: stet.NewFingerprint, 2: store.NewCanonicalFingerprint}[v.Version]
		if got := made(parts...).String(); got != v.Fingerprint {
			t.Errorf("the fingerprint %d of %.80q is %s; want %s", v.Version, v.Parts, got, v.Fingerprint)
		}
	}
	for _, v := range vectors.IDs {
		if got := store.Digest(v.Namespace, v.Scope, v.Key).String(); got != v.ID {
			t.Errorf("the ID of %.20q, %.20q, %.20q is %s; want %s", v.Namespace, v.Scope, v.Key, got, v.ID)
		}
	}
	for _, v := range vectors.Claims {
		c, err := store.ParseClaim(v.Claim)
		if err != nil || c.ID.String() != v.ID || c.Owner.String() != v.Owner || strconv.FormatInt(c.Fence, 10) != v.Fence || c.String() != v.Claim {
			t.Errorf("%s is read as %+v, %v; want %s, %s, %s", v.Claim, c, err, v.ID, v.Owner, v.Fence)
		}
	}
}
