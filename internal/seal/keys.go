package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// versionEncrypted is the envelope of encrypted content: the version, the length
// of the key's name and the name, the nonce, and what AES-256-GCM makes of the
// content, which authenticates all of that and what the content is bound to.
const versionEncrypted = 2

const nonceSize = 12

// SecretSize is the length of a key's secret in bytes.
const SecretSize = 32

// Key encrypts and decrypts.
type Key struct {
	name  string
	aead  cipher.AEAD
	nonce []byte // key of the function that makes nonces
}

// NewKey derives a key from a secret of SecretSize bytes. The name, of at most
// 255 bytes, is stored with everything that it encrypts.
func NewKey(name string, secret []byte) (*Key, error) {
	if len(secret) != SecretSize {
		return nil, fmt.Errorf("the secret has %d bytes; it must have %d", len(secret), SecretSize)
	}
	material, err := hkdf.Key(sha256.New, secret, nil, "stet sealed result 2", 2*SecretSize)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(material[:SecretSize])
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	nonce, err := hkdf.Expand(sha256.New, material[SecretSize:], "nonces of "+name, SecretSize)
	return &Key{name: name, aead: aead, nonce: nonce}, err
}

// Encrypt returns content in an envelope that only opens with the key, and bound
// to the same bytes.
//
// The nonce is a digest of content and binding under its own key, which is derived from the
// secret and the name. The authenticated data includes the name, so two names of one secret
// must not share nonces. Two contents share a nonce only by a collision of 96 bits. The same
// outcome sealed twice has the same bytes, which a store compares when a settle is repeated.
func (k *Key) Encrypt(content, bound []byte) []byte {
	b := make([]byte, 0, 2+len(k.name)+nonceSize+len(content)+k.aead.Overhead())
	b = append(b, versionEncrypted, byte(len(k.name)))
	b = append(b, k.name...)
	mac := hmac.New(sha256.New, k.nonce)
	mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(bound))))
	mac.Write(bound)
	mac.Write(content)
	nonce := mac.Sum(nil)[:nonceSize]
	authenticated := append(append([]byte(nil), b...), bound...)
	b = append(b, nonce...)
	return k.aead.Seal(b, nonce, content, authenticated)
}

// KeyName returns the name of the key that encrypted b, and whether b is encrypted.
func KeyName(b []byte) (name string, encrypted bool) {
	if len(b) < 2 || b[0] != versionEncrypted || len(b) < 2+int(b[1]) {
		return "", false
	}
	return string(b[2 : 2+int(b[1])]), true
}

// Decrypt returns the content of an envelope that Encrypt has made with the same
// key and binding; for any other bytes ErrDamaged.
func (k *Key) Decrypt(b, bound []byte) ([]byte, error) {
	name, ok := KeyName(b)
	head := 2 + len(name)
	if !ok || name != k.name || len(b) < head+nonceSize {
		return nil, fmt.Errorf("%w: they are not an envelope of this key", ErrDamaged)
	}
	authenticated := append(append([]byte(nil), b[:head]...), bound...)
	content, err := k.aead.Open(nil, b[head:head+nonceSize], b[head+nonceSize:], authenticated)
	if err != nil {
		return nil, fmt.Errorf("%w: they were changed, or belong to another record", ErrDamaged)
	}
	return content, nil
}
