package stet

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
)

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

func writeString(h hash.Hash, s string) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(s)))
	h.Write(n[:])
	h.Write([]byte(s))
}
