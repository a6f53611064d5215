package stet

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// Op names one intended effect and says what it asks for.
type Op struct {
	// Scope says whose key it is: a tenant, a principal, an API account.
	// 1 to MaxScope bytes. A key is never read without its scope.
	Scope string
	// Key is the idempotency key, 1 to MaxKey bytes, compared byte by byte.
	Key string
	// Fingerprint is a digest of what is asked for. The same key with
	// another fingerprint is refused with KindMismatch.
	Fingerprint store.Fingerprint
	// Class selects a policy of Options.Classes; "" selects Options.Policy.
	Class string
	// Name says what the operation is, for people and verifiers: "POST
	// /v1/payments", a queue, an RPC. At most store.MaxLabel bytes of UTF-8 without
	// control characters, stored in clear. Accepted operations have Work.Name
	// instead. Default "".
	Name string
	// Ref is the service's own reference, such as an order's ID, for people and
	// verifiers. At most store.MaxLabel bytes of UTF-8 without control characters, and not
	// beginning with "sealed:". It is stored, and encrypted if Options.Encryption
	// says so. Default "".
	Ref string
	// Wait, when positive, replaces the policy's Wait for this call: NoWait to
	// MaxWait.
	Wait time.Duration
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

func writeString(h hash.Hash, s string) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(s)))
	h.Write(n[:])
	h.Write([]byte(s))
}

// NewFingerprint returns the fingerprint of parts, each length-prefixed: for a message its
// type and payload, for a request its method, path, query, content type and body. It is
// store.NewFingerprint; store.NewCanonicalFingerprint is for parts that were brought into a
// canonical form.
func NewFingerprint(parts ...[]byte) store.Fingerprint { return store.NewFingerprint(parts...) }

// checkLabel says what is wrong with what an operation is called.
func checkLabel(op Op) error {
	for _, part := range []struct{ what, text string }{{"Op.Name", op.Name}, {"Op.Ref", op.Ref}} {
		if why := unfit(part.text); why != "" {
			return invalid("%s %s", part.what, why)
		}
	}
	if strings.HasPrefix(op.Ref, sealedMark) {
		return invalid("Op.Ref begins with %q, which is the mark of an encrypted one", sealedMark)
	}
	return nil
}

// unfit says why a text cannot be part of a Label; "" if it can.
func unfit(text string) string {
	if len(text) <= store.MaxLabel && plain(text) {
		return ""
	}
	switch {
	case len(text) > store.MaxLabel:
		return fmt.Sprintf("has %d bytes; at most %d", len(text), store.MaxLabel)
	case !utf8.ValidString(text):
		return "is not UTF-8"
	case strings.ContainsFunc(text, unicode.IsControl):
		return "has a control character"
	}
	return ""
}

// plain reports whether a text has nothing but visible ASCII and spaces, as nearly all have.
func plain(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] >= 0x7f {
			return false
		}
	}
	return true
}

// label is what a record says of its operation, with the reference as it was given, and
// what its policy has kept (see Policy.KeepScope).
// Of a settled record, a reference that cannot be read any more is left out: what it was
// encrypted with is kept for as long as results are.
func (e *Engine) label(rec store.Record) (store.Label, store.Kept, error) {
	l := rec.Label
	ref, err := e.sealer.openRef(rec.ID, l.Ref)
	k := e.kept(rec, ref)
	if l.Ref = k.Ref; err != nil && !rec.State.Settled() {
		return l, k, damaged(err)
	}
	return l, k, nil
}

// keep returns what a policy keeps of an operation.
func (p *Policy) keep(op Op) store.Kept {
	k := store.Kept{Ref: op.Ref}
	if p.KeepScope {
		k.Scope = op.Scope
	}
	if p.KeepKey {
		k.Key = op.Key
	}
	return k
}

// kept returns what is kept of a record's operation in its label, whose reference has
// been opened. Scope and key are left out unless they name this very record: they may be
// of an engine with another Namespace, whose verifiers know of other operations.
func (e *Engine) kept(rec store.Record, ref string) store.Kept {
	k := store.UnpackKept(ref)
	switch {
	case k.Scope == "", store.DigestScope(e.o.Namespace, k.Scope) != rec.Scope:
		k.Scope, k.Key = "", ""
	case k.Key != "" && store.Digest(e.o.Namespace, k.Scope, k.Key) != rec.ID:
		k.Scope, k.Key = "", ""
	}
	return k
}

// What differs of a request whose key was used before, as far as the record's name tells.
var (
	errOtherName    = errors.New("it was of an operation with another name (in HTTP: another method or path)")
	errOtherContent = errors.New("it was of an operation with the same name and other content (in HTTP: another path parameter, query, content type or body)")
)

// mismatch is the caller's error for a key that was used before for another request.
func (e *Engine) mismatch(ctx context.Context, t *request, rec store.Record) *Error {
	err := &Error{Kind: KindMismatch, Execution: NotExecuted}
	switch was := rec.Label.Name; {
	case was == "" || t.op.Name == "": // it is not known
	case was != store.LabelText(t.op.Name):
		err.Cause = errOtherName
	default:
		err.Cause = errOtherContent
	}
	e.observe(ctx, t.event(observe.Mismatched, rec, err.Cause))
	return err
}
