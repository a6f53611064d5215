package proxy

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Limits of files with keys.
const (
	maxKeyFile = 1 << 20         // bytes
	minRSA     = 2048            // bits; RFC 7518, section 3.3
	lookAgain  = 1 * time.Second // how often a file is looked at, at most
)

// verifyKey is a key that tokens are verified with, and the algorithms that it is
// good for: a public key must not be taken for an HMAC's secret.
type verifyKey struct {
	id      string // "" if it has none
	key     any
	methods []string
}

// keyring are the keys of one issuer.
type keyring []verifyKey

// find is a jwt.Keyfunc: the key of the token's kid. Without one there is nothing to
// choose by, so there must be one key only.
func (ring keyring) find(t *jwt.Token) (any, error) {
	if _, ok := t.Header["crit"]; ok { // what it names changes what the token says: RFC 7515, section 4.1.11
		return nil, errors.New("the token has extensions that must be understood")
	}
	kid, named := t.Header["kid"].(string)
	for _, k := range ring {
		// A key without an ID is the only one, and fits every key ID of a token.
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

// keyFile is a keyring in a file, which is read again when it has changed. Should
// that fail, the keys that were read before stand.
type keyFile struct {
	name  string
	parse func([]byte) (keyring, error)
	log   *slog.Logger

	mu     sync.Mutex
	ring   keyring
	was    os.FileInfo
	looked time.Time
	wrong  string // what is, as the log knows
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
		f.log.Error("proxy: the keys of tokens could not be read again; those before stand", slog.Any("error", err))
	}
	return f.ring
}

// load reads the file. The caller holds mu, or is alone.
func (f *keyFile) load() error {
	file, err := os.Open(f.name)
	if err != nil {
		return err
	}
	defer file.Close()
	is, err := file.Stat()
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(file, maxKeyFile+1))
	if err != nil {
		return err
	}
	if len(text) > maxKeyFile {
		return fmt.Errorf("%s is larger than %d bytes", f.name, maxKeyFile)
	}
	ring, err := f.parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	f.ring, f.was, f.looked = ring, is, time.Now()
	return nil
}

var (
	rsaMethods = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
	edMethods  = []string{"EdDSA"}
)

// curves are those of ECDSA, each with its algorithm (RFC 7518, section 3.4).
var curves = map[string]struct {
	curve  elliptic.Curve
	method string
}{"P-256": {elliptic.P256(), "ES256"}, "P-384": {elliptic.P384(), "ES384"}, "P-521": {elliptic.P521(), "ES512"}}

// parsePEM reads one public key.
func parsePEM(text []byte) (keyring, error) {
	if k, err := jwt.ParseRSAPublicKeyFromPEM(text); err == nil {
		return keyring{{key: k, methods: rsaMethods}}, nil
	}
	if k, err := jwt.ParseECPublicKeyFromPEM(text); err == nil {
		return keyring{{key: k, methods: []string{"ES256", "ES384", "ES512"}}}, nil
	}
	if k, err := jwt.ParseEdPublicKeyFromPEM(text); err == nil {
		return keyring{{key: k, methods: edMethods}}, nil
	}
	return nil, errors.New("no PEM file with a public key of RSA, ECDSA or Ed25519")
}

// jwk is a key of a JWK Set (RFC 7517; RFC 8037 for Ed25519).
type jwk struct {
	Kty string   `json:"kty"`
	Kid string   `json:"kid"`
	Use string   `json:"use"`
	Ops []string `json:"key_ops"`
	Alg string   `json:"alg"`
	Crv string   `json:"crv"`
	N   octets   `json:"n"`
	E   octets   `json:"e"`
	X   octets   `json:"x"`
	Y   octets   `json:"y"`
}

// octets are bytes in base64url without padding.
type octets []byte

// UnmarshalJSON implements json.Unmarshaler.
func (o *octets) UnmarshalJSON(text []byte) error {
	var s string
	err := json.Unmarshal(text, &s)
	if err == nil {
		*o, err = base64.RawURLEncoding.DecodeString(s)
	}
	return err
}

// parseJWKS reads a JWK Set. Keys of types that it does not know, and those that are
// not for signatures, are left out, as RFC 7517, section 5 says.
func parseJWKS(text []byte) (keyring, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil || set.Keys == nil {
		return nil, errors.New(`no JWK Set: {"keys": […]}`)
	}
	var ring keyring
	for i, raw := range set.Keys {
		var k jwk
		if err := json.Unmarshal(raw, &k); err != nil {
			return nil, fmt.Errorf("keys[%d] cannot be read", i)
		}
		if k.Use != "" && k.Use != "sig" || k.Ops != nil && !slices.Contains(k.Ops, "verify") {
			continue
		}
		key, methods, err := k.public()
		switch {
		case err != nil:
			return nil, fmt.Errorf("keys[%d] (kid %q): %w", i, k.Kid, err)
		case key == nil:
			continue
		case k.Alg != "":
			if methods = slices.DeleteFunc(slices.Clone(methods), func(m string) bool { return m != k.Alg }); len(methods) == 0 {
				continue
			}
		}
		if slices.ContainsFunc(ring, func(other verifyKey) bool { return other.id == k.Kid }) {
			return nil, fmt.Errorf("keys[%d]: there are two of kid %q", i, k.Kid)
		}
		ring = append(ring, verifyKey{k.Kid, key, methods})
	}
	switch {
	case len(ring) == 0:
		return nil, errors.New("it has no public key of RSA, ECDSA or Ed25519 for signatures")
	case len(ring) > 1 && slices.ContainsFunc(ring, func(k verifyKey) bool { return k.id == "" }):
		return nil, errors.New("of several keys each needs a kid")
	}
	return ring, nil
}

// public returns the key, nil if its type is not known.
func (k *jwk) public() (any, []string, error) {
	switch {
	case k.Kty == "RSA":
		n, e := new(big.Int).SetBytes(k.N), new(big.Int).SetBytes(k.E)
		if n.BitLen() < minRSA || !e.IsInt64() || e.Int64() < 3 || e.Int64() > 1<<31-1 || e.Bit(0) == 0 {
			return nil, nil, fmt.Errorf("an RSA key of %d bits; at least %d, and an odd exponent", n.BitLen(), minRSA)
		}
		return &rsa.PublicKey{N: n, E: int(e.Int64())}, rsaMethods, nil
	case k.Kty == "EC" && curves[k.Crv].curve != nil:
		c := curves[k.Crv]
		size := (c.curve.Params().BitSize + 7) / 8
		if len(k.X) != size || len(k.Y) != size {
			return nil, nil, fmt.Errorf("coordinates of %d and %d bytes; %s has %d", len(k.X), len(k.Y), k.Crv, size)
		}
		key, err := ecdsa.ParseUncompressedPublicKey(c.curve, slices.Concat([]byte{4}, k.X, k.Y))
		if err != nil {
			return nil, nil, errors.New("the point is not on the curve")
		}
		return key, []string{c.method}, nil
	case k.Kty == "OKP" && k.Crv == "Ed25519":
		if len(k.X) != ed25519.PublicKeySize {
			return nil, nil, fmt.Errorf("%d bytes; Ed25519 has %d", len(k.X), ed25519.PublicKeySize)
		}
		return ed25519.PublicKey(k.X), edMethods, nil
	case k.Kty == "oct":
		return nil, nil, errors.New("a secret has no place in a file of public keys; write secret instead")
	}
	return nil, nil, nil
}
