package stet

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/stet-go/stet/store"
)

// How a fingerprint was made: the first byte of a Fingerprint, over length-prefixed parts.
const (
	rawParts       byte = 1
	canonicalParts byte = 2 // of which the body was brought into canonical form first
)

// NewFingerprint returns the raw fingerprint of parts, each length-prefixed:
// for a message its type and payload, for a request its method, path, query,
// content type and body.
func NewFingerprint(parts ...[]byte) store.Fingerprint { return fingerprint(rawParts, parts) }

// NewCanonicalFingerprint is NewFingerprint for parts of which the body was
// brought into a canonical form. After a change of that form, retries
// of older requests are refused as mismatches until their records expire, or
// find nothing if the namespace is changed with it; they never run twice under
// the same namespace.
func NewCanonicalFingerprint(parts ...[]byte) store.Fingerprint {
	return fingerprint(canonicalParts, parts)
}

func fingerprint(version byte, parts [][]byte) (f store.Fingerprint) {
	h := sha256.New()
	var n [8]byte
	n[0] = version
	h.Write(n[:1])
	for _, p := range parts {
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write(p)
	}
	f[0] = version
	h.Sum(f[1:1])
	return f
}
