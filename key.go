package stet

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
)

// ID is what a store knows a record by: a digest of namespace, scope and key,
// which begins with that of the scope (see Digest).
// Nothing that a client sends reaches a store as a name.
type ID [32]byte

// String returns the digest in hexadecimal. It is safe to log: the key cannot
// be read from it.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// ParseID returns the ID whose String is text. Anything else, also digits in upper
// case, is an *Error of kind ErrInvalid.
func ParseID(text string) (id ID, err error) {
	if len(text) == hex.EncodedLen(len(id)) {
		if _, err = hex.Decode(id[:], []byte(text)); err == nil && id.String() == text {
			return id, nil
		}
	}
	return ID{}, invalid("an ID has %d hexadecimal digits in lower case", hex.EncodedLen(len(id)))
}

// Owner is the random identity of one attempt to claim. It is minted before
// the claim is sent, so that a claim whose reply was lost recognises its own
// record.
type Owner [16]byte

// String returns the owner in hexadecimal.
func (o Owner) String() string { return hex.EncodeToString(o[:]) }

// NewOwner returns a fresh random owner.
func NewOwner() (o Owner) {
	_, _ = rand.Read(o[:]) // never fails: see crypto/rand.Read
	return o
}

// NewKey returns a random idempotency key, a UUID of version 4 (RFC 9562).
// Mint one for one intended operation, outside the retry loop.
func NewKey() string {
	var u [16]byte
	_, _ = rand.Read(u[:])
	return formatUUID(u, 4)
}

// DeriveKey returns the key of an operation that its parameters name: the same
// operation and parameters always give the same key, and no two different lists
// of parameters share one by being joined. It is for callers that cannot store
// a random key, and wrong where one customer may mean the same thing twice:
// put something that tells the intents apart (an order number) among the
// parameters. The key is a UUID of version 8 (RFC 9562).
func DeriveKey(operation string, params ...string) string {
	h := sha256.New()
	h.Write([]byte("stet key 1"))
	writeString(h, operation)
	for _, p := range params {
		writeString(h, p)
	}
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	return formatUUID([16]byte(sum[:16]), 8)
}

func formatUUID(u [16]byte, version byte) string {
	u[6] = u[6]&0x0f | version<<4
	u[8] = u[8]&0x3f | 0x80
	var b [36]byte
	hex.Encode(b[0:8], u[0:4])
	b[8] = '-'
	hex.Encode(b[9:13], u[4:6])
	b[13] = '-'
	hex.Encode(b[14:18], u[6:8])
	b[18] = '-'
	hex.Encode(b[19:23], u[8:10])
	b[23] = '-'
	hex.Encode(b[24:36], u[10:16])
	return string(b[:])
}

// scopePrefix is how many bytes of an ID are its scope's. The others tell keys
// apart: 192 bits, so two keys of one ID are to be expected among 2^96.
const scopePrefix = 8

// Digest returns the ID of a key: SHA-256 over the length-prefixed namespace,
// scope and key, so that ("a:b","c") and ("a","b:c") never meet, cut to 24 bytes,
// after the first 8 bytes of the scope's digest. So the records of a scope are
// neighbours in a store that sorts by ID, and can be listed without an index.
func Digest(namespace, scope, key string) ID {
	return digestIn(DigestScope(namespace, scope), namespace, scope, key)
}

// digestIn is Digest for a caller that has the scope's digest already.
func digestIn(scopeDigest ID, namespace, scope, key string) ID {
	sum := digest("stet id 2", namespace, scope, key)
	copy(scopeDigest[scopePrefix:], sum[:])
	return scopeDigest
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

func writeString(h hash.Hash, s string) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(s)))
	h.Write(n[:])
	h.Write([]byte(s))
}
