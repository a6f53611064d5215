package engine_test

import (
	"strconv"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

// TestVectorsForOtherLanguagesEqualTheResultsOfGo: docs/vectors.json was not made by Go.
func TestVectorsForOtherLanguagesEqualTheResultsOfGo(t *testing.T) {
	vectors := stettest.ReadVectors(t)
	for _, v := range vectors.Fingerprints {
		made := map[int]func(...[]byte) store.Fingerprint{1: stet.NewFingerprint, 2: store.NewCanonicalFingerprint}[v.Version]
		if got := made(v.Parts...).String(); got != v.Fingerprint {
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
