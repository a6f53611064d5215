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

// Encryption makes an engine encrypt results before a store gets them, and the payloads,
// notes and messages of accepted operations, with AES-256-GCM. Each is bound to its
// operation (namespace, scope and key) and to its state: a row that was changed, or copied
// over another's, is KindDamaged and not replayed. What is not a result is not encrypted:
// digests, states and times.
type Encryption struct {
	// Keys are those that decrypt; the first also encrypts. To rotate, add a
	// new one behind the old one in every process, then move it to the front,
	// and remove the old one when nothing that it has encrypted is replayed
	// any more (Retention.Result), or waits to be run or sent. None: no encryption.
	Keys []EncryptionKey
	// AcceptPlain also replays results that were stored unencrypted. It is
	// for the time after encryption was switched on, and no longer: who
	// can write to the store can make such a result.
	AcceptPlain bool
}

// EncryptionKey is a named secret.
type EncryptionKey struct {
	// Name is stored with everything that the key encrypts: 1 to 255 bytes.
	Name string
	// Secret is 32 random bytes.
	Secret []byte `json:"-"`
}

// Format writes the name of the key and not the secret, whatever the verb. In logs of
// package slog, and in JSON, there is no secret either.
func (k EncryptionKey) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "key %q (secret not shown)", k.Name)
}

// sealer puts results into envelopes, and takes them out.
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

// seal prepares the outcome of an operation for the store. What cannot be kept is Gone,
// and lost says why.
func (s *sealer) seal(id store.ID, out Outcome, limit int) (sealed store.Settlement, lost error) {
	if !out.Gone {
		lost = out.fit(limit)
	}
	if out.Gone || lost != nil {
		return store.Settlement{State: out.state(), Gone: true}, lost
	}
	return store.Settlement{State: out.state(), Result: s.sealed(id, out)}, nil
}

// fit gives the outcome the form in which it is stored, or says why it is not.
func (o *Outcome) fit(limit int) error {
	o.Header, o.Trailer = sortFields(o.Header), sortFields(o.Trailer)
	if err := o.unstorable(); err != nil || o.size() <= limit {
		return err
	}
	o.Trace, o.Trailer = "", coding.Bare(o.Trailer) // the result is worth more
	if n := o.size(); n > limit {
		return fmt.Errorf("the result was not kept: it has %d bytes, and Policy.MaxResult is %d", n, limit)
	}
	return nil
}

// room returns how many bytes of an outcome (see Outcome.size) the store keeps; 0: any
// number.
func (s *sealer) room(in store.Store) (int, error) {
	l, ok := store.As[store.Limiter](in)
	if !ok || l.MaxResult() <= 0 {
		return 0, nil
	}
	envelope := s.sealed(store.ID{}, Outcome{}).Size() - (&Outcome{}).size() + headSlack
	if l.MaxResult() <= envelope {
		return 0, invalid("the store keeps results of at most %d bytes, which the engine's checksum or encryption (%d bytes) fills alone", l.MaxResult(), envelope)
	}
	return l.MaxResult() - envelope, nil
}

// wrap puts what belongs to an operation, as that, into an envelope.
func (s *sealer) wrap(id store.ID, as store.State, content []byte) []byte {
	if s.first != nil {
		return s.first.Encrypt(content, binding(id, as))
	}
	return seal.Seal(content)
}

// sealed is an outcome as it is stored.
func (s *sealer) sealed(id store.ID, out Outcome) store.Result {
	if s.first != nil {
		r := out.encode()
		return store.Result{Head: s.first.Encrypt(r.Marshal(), binding(id, out.state()))}
	}
	out.Body = bytes.Clone(out.Body) // the caller may change its own
	return out.encode()
}

// open undoes seal.
func (s *sealer) open(rec store.Record) (out Outcome, err error) {
	r := rec.Result
	switch _, encrypted := seal.KeyName(r.Head); {
	case encrypted && (r.Status != 0 || r.Type != "" || len(r.Body) > 0):
		err = fmt.Errorf("%w: something is beside what is encrypted", seal.ErrDamaged)
	case encrypted || !s.acceptPlain:
		var packed []byte
		if packed, err = s.unwrap(rec.ID, rec.State, r.Head); err == nil {
			err = r.Unmarshal(packed)
		}
	default:
		r.Body = bytes.Clone(r.Body) // the store's memory is not the caller's to change
	}
	if err == nil {
		out, err = decodeStored(r)
	}
	out.Failed = rec.State == store.Failed
	return out, err
}

// unwrap undoes wrap.
func (s *sealer) unwrap(id store.ID, as store.State, stored []byte) ([]byte, error) {
	name, encrypted := seal.KeyName(stored)
	switch key := s.keys[name]; {
	case !encrypted && s.acceptPlain:
		content, err := seal.Open(stored)
		return bytes.Clone(content), err // the store's memory is not the caller's to change
	case !encrypted:
		return nil, fmt.Errorf("%w: not encrypted, and Options.Encryption.AcceptPlain is not set", seal.ErrDamaged)
	case key == nil:
		return nil, fmt.Errorf("%w: encrypted with the key %q, which is not among Options.Encryption.Keys", seal.ErrDamaged, name)
	default:
		return key.Decrypt(stored, binding(id, as))
	}
}

// binding is what a result belongs to.
func binding(id store.ID, state store.State) []byte { return append(id[:len(id):len(id)], byte(state)) }

// sealedMark begins a Label.Ref that is encrypted, and no other.
const sealedMark = "sealed:"

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
