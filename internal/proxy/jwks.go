package proxy

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
)

// Limits of files with keys.
const (
	minRSA    = 2048            // bits; RFC 7518, section 3.3
	lookAgain = 1 * time.Second // the time between two checks of a file
)

// verifyKey is a key that verifies tokens, with its algorithms: a public key must not be used as
// the secret of HMAC.
type verifyKey struct {
	id      string // "" if it has none
	key     any
	methods []string
}

// keyring are the keys of one issuer.
type keyring []verifyKey

// find is a jwt.Keyfunc. It returns the key of the token's kid. A token without a kid needs a
// ring with one key.
func (ring keyring) find(t *jwt.Token) (any, error) {
	if _, ok := t.Header["crit"]; ok { // extensions that change the meaning of the token: RFC 7515, section 4.1.11
		return nil, errors.New("the token has extensions that must be understood")
	}
	kid, named := t.Header["kid"].(string)
	for _, k := range ring {
		// A key without an ID is the only one. It fits every kid.
		if named && k.id != "" && k.id != kid || !named && len(ring) > 1 {
			continue
		}
		if !slices.Contains(k.methods, t.Method.Alg()) {
			return nil, errors.New("the key is for another algorithm")
		}
		return k.key, nil
	}
	return nil, errors.New("no such key")
}

// keyFile is a keyring in a file. It reads the file again after a change. If that fails, the keys
// stay the same.
type keyFile struct {
	name  string
	parse func([]byte) (keyring, error)
	log   *slog.Logger

	mu     sync.Mutex
	ring   keyring
	was    os.FileInfo
	looked time.Time
	wrong  string // the last error in the log
}

// find is a jwt.Keyfunc.
func (f *keyFile) find(t *jwt.Token) (any, error) { return f.current().find(t) }

func (f *keyFile) current() keyring {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.looked) < lookAgain {
		return f.ring
	}
	f.looked = time.Now()
	is, err := os.Stat(f.name)
	if err == nil && os.SameFile(is, f.was) && is.ModTime().Equal(f.was.ModTime()) && is.Size() == f.was.Size() {
		return f.ring
	}
	if err = f.load(); err == nil {
		f.log.Info("proxy: the keys of tokens were read again", slog.String("file", f.name), slog.Int("keys", len(f.ring)))
		f.wrong = ""
	} else if f.wrong != err.Error() {
		f.wrong = err.Error()
		f.log.Error("proxy: the keys of tokens could not be reloaded; the previous ones stay in use", slog.Any("error", err))
	}
	return f.ring
}

// load reads the file. The caller holds mu, unless no other goroutine has f.
func (f *keyFile) load() error {
	is, err := os.Stat(f.name) // before reading: a later change is found by the next call
	if err != nil {
		return err
	}
	text, err := os.ReadFile(f.name)
	if err != nil {
		return err
	}
	ring, err := f.parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	f.ring, f.was, f.looked = ring, is, time.Now()
	return nil
}

// methodsOf returns the algorithms of a public key: RFC 7518, sections 3.3 to 3.5, and RFC
// 8037. It returns none for a key of another type.
func methodsOf(key any) ([]string, error) {
	switch k := key.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() < minRSA || k.E < 3 || k.E%2 == 0 {
			return nil, fmt.Errorf("an RSA key of %d bits with the exponent %d; at least %d bits, and an odd exponent", k.N.BitLen(), k.E, minRSA)
		}
		return []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}, nil
	case *ecdsa.PublicKey:
		if method, ok := map[string]string{"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}[k.Curve.Params().Name]; ok {
			return []string{method}, nil
		}
	case ed25519.PublicKey:
		return []string{"EdDSA"}, nil
	}
	return nil, nil
}

// parsePEM reads one public key.
func parsePEM(text []byte) (keyring, error) {
	var key any
	var err error
	if key, err = jwt.ParseRSAPublicKeyFromPEM(text); err != nil {
		if key, err = jwt.ParseECPublicKeyFromPEM(text); err != nil {
			key, err = jwt.ParseEdPublicKeyFromPEM(text)
		}
	}
	methods, wrong := methodsOf(key)
	if err != nil || wrong == nil && methods == nil {
		return nil, errors.New("no PEM file with a public key of RSA, ECDSA or Ed25519")
	}
	return keyring{{key: key, methods: methods}}, wrong
}

// parseJWKS reads a JWK Set (RFC 7517). It ignores keys of types that it does not know, and
// keys that are not for signatures: RFC 7517, section 5.
func parseJWKS(text []byte) (keyring, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil || set.Keys == nil {
		return nil, errors.New(`no JWK Set: {"keys": […]}`)
	}
	var ring keyring
	for i, raw := range set.Keys {
		var m jwkset.JWKMarshal
		if err := json.Unmarshal(raw, &m); err != nil {
			return nil, fmt.Errorf("keys[%d] cannot be read", i)
		}
		k, err := verifying(m)
		switch {
		case err != nil:
			return nil, fmt.Errorf("keys[%d] (kid %q): %w", i, m.KID, err)
		case len(k.methods) == 0:
		case slices.ContainsFunc(ring, func(other verifyKey) bool { return other.id == k.id }):
			return nil, fmt.Errorf("keys[%d]: there are two of kid %q", i, k.id)
		default:
			ring = append(ring, k)
		}
	}
	switch {
	case len(ring) == 0:
		return nil, errors.New("it has no public key of RSA, ECDSA or Ed25519 for signatures")
	case len(ring) > 1 && slices.ContainsFunc(ring, func(k verifyKey) bool { return k.id == "" }):
		return nil, errors.New("of several keys each needs a kid")
	}
	return ring, nil
}

// verifying returns a key of a JWK Set. It has no methods if it cannot verify a token.
func verifying(m jwkset.JWKMarshal) (verifyKey, error) {
	switch {
	case m.USE != "" && m.USE != jwkset.UseSig || m.KEYOPS != nil && !slices.Contains(m.KEYOPS, jwkset.KeyOpsVerify):
		return verifyKey{}, nil
	case m.KTY == jwkset.KtyOct:
		return verifyKey{}, errors.New("a secret has no place in a file of public keys; write secret instead")
	}
	m.X5C = nil // the file is trusted: no certificate has to vouch for a key in it
	decoded, err := jwkset.NewJWKFromMarshal(m, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{SkipAll: true})
	if errors.Is(err, jwkset.ErrUnsupportedKey) {
		return verifyKey{}, nil
	}
	if err != nil {
		return verifyKey{}, err
	}
	methods, err := methodsOf(decoded.Key())
	if m.ALG != "" {
		methods = slices.DeleteFunc(methods, func(method string) bool { return method != m.ALG.String() })
	}
	return verifyKey{m.KID, decoded.Key(), methods}, err
}
