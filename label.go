package stet

import (
	"encoding/base64"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/stet-go/stet/internal/seal"
	"github.com/stet-go/stet/store"
)

// sealedMark begins a Label.Ref that is encrypted, and no other.
const sealedMark = "sealed:"

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

// sealRef is the reference of an operation as it is stored.
func (s *sealer) sealRef(id store.ID, ref string) string {
	if ref == "" || s.first == nil {
		return ref
	}
	return sealedMark + base64.RawURLEncoding.EncodeToString(s.wrap(id, sealedReference, []byte(ref)))
}

// openRef undoes sealRef.
func (s *sealer) openRef(id store.ID, stored string) (string, error) {
	text, sealed := strings.CutPrefix(stored, sealedMark)
	switch {
	case stored == "" || !sealed && s.acceptPlain:
		return stored, nil
	case !sealed:
		return "", fmt.Errorf("%w: its reference is not encrypted, and Options.Encryption.AcceptPlain is not set", seal.ErrDamaged)
	}
	packed, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return "", fmt.Errorf("%w: its reference: %w", seal.ErrDamaged, err)
	}
	ref, err := s.unwrap(id, sealedReference, packed)
	return string(ref), err
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
