package stet

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/stet-go/stet/store"
)

// How a fingerprint was made: the first byte of a Fingerprint.
const (
	// FingerprintRaw is SHA-256 over length-prefixed raw parts.
	FingerprintRaw byte = 1
	// FingerprintCanonical is SHA-256 over length-prefixed parts, of which
	// the body was brought into canonical form first.
	FingerprintCanonical byte = 2
)

// NewFingerprint returns the raw fingerprint of parts, each length-prefixed:
// for a message its type and payload, for a request its method, path, query,
// content type and body.
func NewFingerprint(parts ...[]byte) store.Fingerprint {
	return NewFingerprintVersion(FingerprintRaw, parts...)
}

// NewFingerprintVersion is NewFingerprint for parts of which the body was
// transformed; version says how. After a change of the transformation, retries
// of older requests are refused as mismatches until their records expire, or
// find nothing if the namespace is changed with it; they never run twice under
// the same namespace.
func NewFingerprintVersion(version byte, parts ...[]byte) (f store.Fingerprint) {
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
