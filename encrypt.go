package stet

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/stet-go/stet/internal/coding"
	"github.com/stet-go/stet/internal/seal"
	"github.com/stet-go/stet/store"
)

// Encryption makes an engine encrypt results, and the payloads, notes and messages of accepted
// operations, with AES-256-GCM before they reach the store. Each ciphertext is bound to its
// operation (namespace, scope and key) and its state. A row that was changed, or copied over
// another one, fails with KindDamaged and is not replayed. Digests, states, times, class and
// name are not encrypted.
type Encryption struct {
	// Keys decrypt; the first one also encrypts. To rotate, first add the new key in second
	// place in every process, then move it to the front. Remove the old key when everything
	// that it encrypted has expired (Retention.Result), has run or was sent. Without keys,
	// nothing is encrypted.
	Keys []EncryptionKey
	// AcceptPlain also replays results that were stored unencrypted. Set it only while such
	// results remain after encryption was switched on: anybody who can write to the store can
	// forge them.
	AcceptPlain bool
}

// EncryptionKey is a named secret.
type EncryptionKey struct {
	// Name is stored with everything that the key encrypts: 1 to 255 bytes.
	Name string
	// Secret is 32 random bytes.
	Secret []byte `json:"-"`
}

// Format writes the name of the key and never the secret, for every verb. The secret is also
// absent from JSON and slog output.
func (k EncryptionKey) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "key %q (secret not shown)", k.Name)
}

// sealer encrypts results and decrypts them. Without keys it adds a checksum instead.
type sealer struct {
	first       *seal.Key // nil: nothing is encrypted
	keys        map[string]*seal.Key
	acceptPlain bool
}

func newSealer(o Encryption) (s sealer, err error) {
	s = sealer{keys: make(map[string]*seal.Key), acceptPlain: o.AcceptPlain || len(o.Keys) == 0}
	for i, k := range o.Keys {
		if k.Name == "" || len(k.Name) > 255 || s.keys[k.Name] != nil {
			return s, invalid("Options.Encryption.Keys[%d] has a name of %d bytes; it must have 1 to 255, and be the only one of that name", i, len(k.Name))
		}
		key, err := seal.NewKey(k.Name, k.Secret)
		if err != nil {
			return s, invalid("Options.Encryption.Keys[%d] (%q): %w", i, k.Name, err)
		}
		if s.keys[k.Name] = key; i == 0 {
			s.first = key
		}
	}
	return s, nil
}

// seal prepares an outcome for the store. If the result cannot be stored, the settlement is
// Gone, and lost is the reason.
func (s *sealer) seal(id store.ID, out Outcome, limit int) (sealed store.Settlement, lost error) {
	if !out.Gone {
		lost = out.fit(limit)
	}
	if out.Gone || lost != nil {
		return store.Settlement{State: out.state(), Gone: true}, lost
	}
	return store.Settlement{State: out.state(), Result: s.sealed(id, out)}, nil
}

// fit brings the outcome into its stored form, or returns why it cannot be stored.
func (o *Outcome) fit(limit int) error {
	o.Header, o.Trailer = sortFields(o.Header), sortFields(o.Trailer)
	if err := o.unstorable(); err != nil || o.size() <= limit {
		return err
	}
	o.Trace, o.Trailer = "", coding.Bare(o.Trailer) // dropped before the result is
	if n := o.size(); n > limit {
		return fmt.Errorf("the result was not stored: it has %d bytes, and Policy.MaxResult is %d", n, limit)
	}
	return nil
}

// room returns the limit of the store for Outcome.size, or 0 if it has none.
func (s *sealer) room(in store.Store) (int, error) {
	l, ok := store.As[store.Limiter](in)
	if !ok || l.MaxResult() <= 0 {
		return 0, nil
	}
	envelope := s.sealed(store.ID{}, Outcome{}).Size() - (&Outcome{}).size() + headSlack
	if l.MaxResult() <= envelope {
		return 0, invalid("the store has room for results of at most %d bytes, less than the engine's checksum or encryption needs (%d bytes)", l.MaxResult(), envelope)
	}
	return l.MaxResult() - envelope, nil
}

// wrap seals content that belongs to an operation. as is its kind.
func (s *sealer) wrap(id store.ID, as store.State, content []byte) []byte {
	if s.first != nil {
		return s.first.Encrypt(content, binding(id, as))
	}
	return seal.Seal(content)
}

// sealed is the stored form of an outcome.
func (s *sealer) sealed(id store.ID, out Outcome) store.Result {
	if s.first != nil {
		r := out.encode()
		return store.Result{Head: s.first.Encrypt(r.Marshal(), binding(id, out.state()))}
	}
	out.Body = bytes.Clone(out.Body) // the caller may change its slice
	return out.encode()
}

// open is the reverse of seal.
func (s *sealer) open(rec store.Record) (out Outcome, err error) {
	r := rec.Result
	switch _, encrypted := seal.KeyName(r.Head); {
	case encrypted && (r.Status != 0 || r.Type != "" || len(r.Body) > 0):
		err = fmt.Errorf("%w: the record has unencrypted parts beside the encrypted one", seal.ErrDamaged)
	case encrypted || !s.acceptPlain:
		var packed []byte
		if packed, err = s.unwrap(rec.ID, rec.State, r.Head); err == nil {
			err = r.Unmarshal(packed)
		}
	default:
		r.Body = bytes.Clone(r.Body) // the caller may change it, and the memory is the store's
	}
	if err == nil {
		out, err = decodeStored(r)
	}
	out.Failed = rec.State == store.Failed
	return out, err
}

// unwrap is the reverse of wrap.
func (s *sealer) unwrap(id store.ID, as store.State, stored []byte) ([]byte, error) {
	name, encrypted := seal.KeyName(stored)
	switch key := s.keys[name]; {
	case !encrypted && s.acceptPlain:
		content, err := seal.Open(stored)
		return bytes.Clone(content), err // the caller may change it, and the memory is the store's
	case !encrypted:
		return nil, fmt.Errorf("%w: not encrypted, and Options.Encryption.AcceptPlain is not set", seal.ErrDamaged)
	case key == nil:
		return nil, fmt.Errorf("%w: encrypted with the key %q, which is not among Options.Encryption.Keys", seal.ErrDamaged, name)
	default:
		return key.Decrypt(stored, binding(id, as))
	}
}

// binding is the additional data of a ciphertext.
func binding(id store.ID, state store.State) []byte { return append(id[:len(id):len(id)], byte(state)) }

// sealedMark is the prefix of an encrypted Label.Ref, and of no other.
const sealedMark = "sealed:"

// sealRef is the stored form of a reference.
func (s *sealer) sealRef(id store.ID, ref string) string {
	if ref == "" || s.first == nil {
		return ref
	}
	return sealedMark + base64.RawURLEncoding.EncodeToString(s.wrap(id, sealedReference, []byte(ref)))
}

// openRef is the reverse of sealRef.
func (s *sealer) openRef(id store.ID, stored string) (string, error) {
	_, stored = store.CutScopeLabel(stored)
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
