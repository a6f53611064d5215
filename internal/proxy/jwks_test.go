package proxy_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

type key = map[string]any

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// public is a key as a JWK Set has it.
func public(t *testing.T, kid string, private crypto.Signer) key {
	t.Helper()
	switch k := private.Public().(type) {
	case ed25519.PublicKey:
		return key{"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": b64(k)}
	case *rsa.PublicKey:
		return key{"kty": "RSA", "kid": kid, "use": "sig", "alg": "RS256", "n": b64(k.N.Bytes()), "e": b64(big.NewInt(int64(k.E)).Bytes())}
	case *ecdsa.PublicKey:
		point, err := k.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		n := len(point) / 2
		return key{"kty": "EC", "crv": k.Curve.Params().Name, "kid": kid, "key_ops": []string{"verify"}, "x": b64(point[1 : 1+n]), "y": b64(point[1+n:])}
	}
	t.Fatalf("%T", private)
	return nil
}

func set(t *testing.T, file string, keys ...key) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil { // as for a file that is read in the meantime
		t.Fatal(err)
	}
}

// token signs for acct_1; without a kid if that is "".
func token(t *testing.T, method jwt.SigningMethod, kid string, private any) string {
	t.Helper()
	tok := jwt.NewWithClaims(method, jwt.MapClaims{"sub": "acct_1", "exp": time.Now().Add(time.Hour).Unix()})
	if kid != "" {
		tok.Header["kid"] = kid
	}
	text, err := tok.SignedString(private)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func signers(t *testing.T) (ed ed25519.PrivateKey, rs *rsa.PrivateKey, ec *ecdsa.PrivateKey) {
	t.Helper()
	_, ed, err := ed25519.GenerateKey(nil)
	if err == nil {
		rs, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err == nil {
		ec, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ed, rs, ec
}

// critical signs with an extension that the receiver of the token must understand.
func critical(t *testing.T, private ed25519.PrivateKey) string {
	t.Helper()
	tok := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{"sub": "acct_1", "exp": time.Now().Add(time.Hour).Unix()})
	tok.Header["kid"], tok.Header["crit"], tok.Header["revoked"] = "ed", []string{"revoked"}, true
	text, err := tok.SignedString(private)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTokenIsVerifiedWithTheKeyThatItNames(t *testing.T) {
	ed, rs, ec := signers(t)
	file := filepath.Join(t.TempDir(), "jwks.json")
	other := public(t, "enc", rs)
	other["use"] = "enc"
	set(t, file, public(t, "ed", ed), public(t, "rs", rs), public(t, "ec", ec), other, key{"kty": "AKP", "kid": "later"})
	s := serve(t, false, okHandler)
	f := start(t, yamlFor(s.URL, "http1", "scope: {jwt: {jwks_file: "+file+"}}\n"))
	want := "done for " + store.Digest("", "acct_1", "k").String()
	for name, tc := range map[string]struct {
		token string
		taken bool
	}{
		"Ed25519":             {token(t, jwt.SigningMethodEdDSA, "ed", ed), true},
		"RSA":                 {token(t, jwt.SigningMethodRS256, "rs", rs), true},
		"ECDSA":               {token(t, jwt.SigningMethodES384, "ec", ec), true},
		"another's name":      {token(t, jwt.SigningMethodEdDSA, "rs", ed), false},
		"no name":             {token(t, jwt.SigningMethodEdDSA, "", ed), false},
		"unknown name":        {token(t, jwt.SigningMethodEdDSA, "unused", ed), false},
		"not for signatures":  {token(t, jwt.SigningMethodRS256, "enc", rs), false},
		"another algorithm":   {token(t, jwt.SigningMethodRS512, "rs", rs), false},
		"public as secret":    {token(t, jwt.SigningMethodHS256, "ed", []byte(ed.Public().(ed25519.PublicKey))), false},
		"a critical field":    {critical(t, ed), false},
		"none":                {token(t, jwt.SigningMethodNone, "ed", jwt.UnsafeAllowNoneSignatureType), false},
		"another's signature": {token(t, jwt.SigningMethodEdDSA, "ed", ed)[:40] + token(t, jwt.SigningMethodEdDSA, "ed", ed)[41:], false},
	} {
		r := f.post("k", "{}", "Authorization", "Bearer "+tc.token)
		if tc.taken != (r.status == 200 && r.body == want) || !tc.taken && r.problem() != "scope-missing" {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
}

func TestKeysOfTokensAreReadAgainWhenTheirFileHasChanged(t *testing.T) {
	ed, _, ec := signers(t)
	file := filepath.Join(t.TempDir(), "jwks.json")
	set(t, file, public(t, "", ed))
	s := serve(t, false, okHandler)
	f := start(t, yamlFor(s.URL, "http1", "scope: {jwt: {jwks_file: "+file+"}}\n"))
	status := func(token string) int { return f.post("k", "{}", "Authorization", "Bearer "+token).status }
	before, after := token(t, jwt.SigningMethodEdDSA, "", ed), token(t, jwt.SigningMethodES384, "2027", ec)
	if a, b := status(before), status(after); a != 200 || b != 403 {
		t.Fatalf("got %d, %d; want a == 200, b == 403", a, b)
	}
	set(t, file, public(t, "2027", ec))
	stettest.Eventually(t, "the new key to count", func() bool { return status(after) == 200 })
	if got := status(before); got != 403 {
		t.Errorf("the key that was taken out still counts: %d", got)
	}
	// A file that is not a set of keys changes nothing, and is logged.
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	stettest.Eventually(t, "the log to report the broken file", func() bool {
		return status(after) == 200 && strings.Contains(f.log.String(), "could not be reloaded")
	})
}

func TestWrongSetsOfKeysAreErrors(t *testing.T) {
	ed, rs, ec := signers(t)
	small := public(t, "a", rs)
	small["n"] = b64(make([]byte, 128))
	off := public(t, "a", ec)
	off["x"] = off["y"]
	short := public(t, "a", ed)
	short["x"] = "AAAA"
	file := filepath.Join(t.TempDir(), "jwks.json")
	for want, keys := range map[string][]key{
		"no public key":        {{"kty": "AKP"}},
		"two of kid":           {public(t, "a", ed), public(t, "a", ec)},
		"each needs a kid":     {public(t, "a", ed), public(t, "", ec)},
		"a secret has no":      {{"kty": "oct", "k": "c2VjcmV0"}},
		"an RSA key of 0 bits": {small},
		"not on the specified": {off},
		"should be 32 bytes":   {short},
		"cannot be read":       {{"kty": 7}},
	} {
		set(t, file, keys...)
		_, err := parse(t, "upstream: {url: 'http://a'}\nscope: {jwt: {jwks_file: "+file+"}}\n", nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "c2VjcmV0") {
			t.Errorf("%q is missing from %v", want, err)
		}
	}
	for _, text := range []string{"", "[]", "{}", `{"keys": 3}`} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := parse(t, "upstream: {url: 'http://a'}\nscope: {jwt: {jwks_file: "+file+"}}\n", nil); err == nil || !strings.Contains(err.Error(), "no JWK Set") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Two callers can use the same key.
func TestVerifierReceivesTheScope(t *testing.T) {
	l := newLedger(t)
	f := start(t, yamlFor(l.URL, "http1", strings.Replace(verified, "scope: single-tenant", "scope: header:X-Account", 1)))
	for _, account := range []string{"acme", "ümlaut / 100%"} {
		f.post("k", "lost", "X-Account", account)
		f.post("k", "lost", "X-Account", account)
	}
	var scopes []string
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.asked {
		scopes = append(scopes, h.Get("Stet-Scope"))
	}
	if got := strings.Join(scopes, " "); got != "acme %C3%BCmlaut%20%2F%20100%25" {
		t.Errorf("asked about %q", got)
	}
	if got := l.seen[0].Get("Stet-Scope"); got != "acme" {
		t.Errorf("sent with %q", got)
	}
}
