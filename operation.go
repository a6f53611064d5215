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

// Op names one intended effect and describes the request for it.
type Op struct {
	// Scope is the owner of the key: a tenant, a principal, an API account. 1 to MaxScope bytes
	// (1024). A key is never read without its scope.
	Scope string
	// Key is the idempotency key: 1 to MaxKey bytes (1024), compared byte by byte.
	Key string
	// Fingerprint is a digest of the request's content. The same key with another fingerprint
	// fails with KindMismatch.
	Fingerprint store.Fingerprint
	// Class selects a policy of Options.Classes; "" selects Options.Policy.
	Class string
	// Name names the kind of operation, for people and verifiers: "POST /v1/payments", a queue,
	// an RPC. At most store.MaxLabel bytes (255) of UTF-8 without control characters. It is
	// stored unencrypted. Jobs have Work.Name instead. Default "".
	Name string
	// Ref is the service's own reference, such as the ID of an order, for people and verifiers.
	// At most store.MaxLabel bytes (255) of UTF-8 without control characters. It must not begin
	// with "sealed:". It is stored, and encrypted if Options.Encryption has a key. Default "".
	Ref string
	// Wait, if positive, replaces the policy's Wait for this call. NoWait to MaxWait (5 min).
	Wait time.Duration
}

// NewKey returns a random idempotency key, a UUID of version 4 (RFC 9562). Create one key for
// each intended operation, before the retry loop.
func NewKey() string {
	var u [16]byte
	_, _ = rand.Read(u[:])
	return formatUUID(u, 4)
}

// DeriveKey returns the key that a list of parameters determines. The same operation and
// parameters always give the same key. Two different lists never give the same key because they
// join to the same text.
//
// Use it if a caller cannot store a random key. Do not use it if a customer may mean the same
// parameters twice. Then add a parameter that tells the intents apart, such as an order number.
// The key is a UUID of version 8 (RFC 9562).
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

// NewFingerprint returns the fingerprint of parts. Each part is hashed with its length before
// it. For a message, pass its type and payload. For a request, pass its method, path, query,
// content type and body. It is the same as store.NewFingerprint. For parts in a canonical form,
// use store.NewCanonicalFingerprint.
func NewFingerprint(parts ...[]byte) store.Fingerprint { return store.NewFingerprint(parts...) }

// checkLabel validates the name and the reference of an operation.
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

// unfit returns why a text cannot be part of a Label, or "" if it can.
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

// plain reports whether a text has only visible ASCII and spaces, the common case.
func plain(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] >= 0x7f {
			return false
		}
	}
	return true
}

// label returns a record's label with its decrypted reference, and the values that KeepScope
// and KeepKey stored. A settled record may outlive the key that encrypted its reference. Its
// reference is then left out, without an error.
func (e *Engine) label(rec store.Record) (store.Label, store.Kept, error) {
	l := rec.Label
	ref, err := e.sealer.openRef(rec.ID, l.Ref)
	k := e.kept(rec, ref)
	if l.Ref = k.Ref; err != nil && !rec.State.Settled() {
		return l, k, damaged(err)
	}
	return l, k, nil
}

// scopeLabel returns the label of an operation's scope.
func (e *Engine) scopeLabel(op Op) string {
	if e.o.Label == nil {
		return ""
	}
	return store.LabelText(e.o.Label(op))
}

// keep returns the values of an operation that the policy stores with its reference.
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

// kept unpacks the stored values from a decrypted reference. Scope and key are left out unless
// their digests match the record. An engine with another Namespace may have stored them, and
// verifiers would look for another operation.
func (e *Engine) kept(rec store.Record, ref string) store.Kept {
	k := store.UnpackKept(ref)
	namespaces := []string{e.o.Namespace}
	if e.o.Previous != nil {
		if was, _, err := e.o.previous(context.Background(), Op{Scope: k.Scope}); err == nil {
			namespaces = append(namespaces, was)
		}
	}
	for _, namespace := range namespaces {
		if k.Scope != "" && store.DigestScope(namespace, k.Scope) == rec.Scope && (k.Key == "" || store.Digest(namespace, k.Scope, k.Key) == rec.ID) {
			return k
		}
	}
	k.Scope, k.Key = "", ""
	return k
}

// isOfScope reports whether a record belongs to a scope, under either name.
func (e *Engine) isOfScope(ctx context.Context, rec store.Record, scope string) bool {
	if rec.Scope == store.DigestScope(e.o.Namespace, scope) {
		return true
	}
	if e.o.Previous == nil {
		return false
	}
	namespace, before, err := e.o.previous(ctx, Op{Scope: scope})
	return err == nil && rec.Scope == store.DigestScope(namespace, before.Scope)
}

// Causes of a KindMismatch, if the stored name and the request's name are known.
var (
	errOtherName    = errors.New("it was of an operation with another name (in HTTP: another method or path)")
	errOtherContent = errors.New("it was of an operation with the same name and other content (in HTTP: another path parameter, query, content type or body)")
)

// mismatch returns the error for a key that was used for another request.
func (e *Engine) mismatch(ctx context.Context, t *request, rec store.Record) *Error {
	err := &Error{Kind: KindMismatch, Execution: NotExecuted}
	switch was := rec.Label.Name; {
	case was == "" || t.op.Name == "": // the cause is unknown
	case was != store.LabelText(t.op.Name):
		err.Cause = errOtherName
	default:
		err.Cause = errOtherContent
	}
	e.observe(ctx, t.event(observe.Mismatched, rec, err.Cause))
	return err
}
