package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// ID is what a store knows a record by: a digest of namespace, scope and key, which begins
// with that of the scope (see Digest). Nothing that a client sends reaches a store as a
// name.
type ID [32]byte

// String returns the digest in hexadecimal. It is safe to log: the key cannot
// be read from it.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// ParseID returns the ID whose String is text. Anything else, also digits in upper
// case, is an error that wraps ErrInvalid.
func ParseID(text string) (id ID, err error) {
	if len(text) == hex.EncodedLen(len(id)) {
		if _, err = hex.Decode(id[:], []byte(text)); err == nil && id.String() == text {
			return id, nil
		}
	}
	return ID{}, invalid("an ID has %d hexadecimal digits in lower case", hex.EncodedLen(len(id)))
}

// scopePrefix is how many bytes of an ID are its scope's. The others tell keys
// apart: 192 bits, so two keys with one ID are expected only among 2^96.
const scopePrefix = 8

// Digest returns the ID of a key: SHA-256 over the length-prefixed namespace,
// scope and key, so that ("a:b","c") and ("a","b:c") never meet, cut to 24 bytes,
// after the first 8 bytes of the scope's digest. So the records of a scope are
// neighbours in a store that sorts by ID, and can be listed without an index.
func Digest(namespace, scope, key string) ID {
	id := DigestScope(namespace, scope)
	sum := digest("stet id 2", namespace, scope, key)
	copy(id[scopePrefix:], sum[:])
	return id
}

// ScopeRange returns the least and the greatest ID that a record of a scope can
// have, given the scope's digest. Records of other scopes may be between them:
// compare Record.Scope.
func ScopeRange(scope ID) (least, greatest ID) {
	least, greatest = scope, scope
	for i := scopePrefix; i < len(scope); i++ {
		least[i], greatest[i] = 0x00, 0xff
	}
	return least, greatest
}

// DigestScope returns the digest that records of one scope have in common. An
// operator's tool finds the records of a scope by it.
func DigestScope(namespace, scope string) ID {
	return digest("stet scope 1", namespace, scope)
}

func digest(parts ...string) (id ID) {
	// Short keys, which is nearly all of them, are hashed in one call from
	// the stack.
	var stack [256]byte
	b := stack[:0]
	for _, p := range parts {
		b = binary.BigEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	return sha256.Sum256(b)
}

// Fingerprint is a digest of what a request asks for. Its first byte says how
// it was made: fingerprints made in different ways never match. The zero value
// means that the caller gave none; it matches only itself.
type Fingerprint [33]byte

// String returns the fingerprint in hexadecimal.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// How a fingerprint was made: its first byte.
const (
	rawParts       byte = 1
	canonicalParts byte = 2 // of which the body was brought into canonical form first
)

// NewFingerprint returns the raw fingerprint of parts, each length-prefixed.
func NewFingerprint(parts ...[]byte) Fingerprint { return fingerprint(rawParts, parts) }

// NewCanonicalFingerprint is NewFingerprint for parts of which the body was brought into a
// canonical form. After a change of that form, retries of older requests are refused as
// mismatches until their records expire, or find nothing if the namespace is changed with
// it; they never run twice under the same namespace.
func NewCanonicalFingerprint(parts ...[]byte) Fingerprint { return fingerprint(canonicalParts, parts) }

func fingerprint(version byte, parts [][]byte) (f Fingerprint) {
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
