package proxy

import (
	"crypto"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stet-go/stet/stethttp"
	"go.yaml.in/yaml/v3"
)

// Scope says where a request says whose key it has. A request that does not is
// refused.
type Scope struct {
	// Kind is
	//   - "authorization": the digest of the Authorization header; a token that
	//     is renewed is another scope, so it must outlive the retries;
	//   - "basic": the user of HTTP Basic authentication (RFC 7617) and the
	//     digest of the Authorization header, because a replay is given without
	//     asking the service, which alone knows the password. A new password is
	//     another scope; whoever can read the store can try passwords on it;
	//   - "mtls": the subject of the client's verified certificate;
	//   - "single-tenant": all keys are of one tenant;
	//   - "" if Header or JWT is set.
	Kind string `yaml:"-"`
	// Header is a request header that something trusted has set. A client that
	// reaches the proxy past it names any scope it likes, and gets its replays.
	Header string `yaml:"header"`
	// JWT is a claim of a token.
	JWT *JWT `yaml:"jwt"`
}

// JWT is the scope in a claim of a JSON Web Token (RFC 7519).
type JWT struct {
	Claim string `yaml:"claim"` // default "sub"; its value must be text
	// Header has the token, with or without "Bearer ". Default Authorization.
	// Without a key to verify it with, it must be a header that a gateway sets,
	// and takes out of what clients send: they could write any claim there.
	Header string `yaml:"header"`
	// KeyFile is a PEM file with the public key: RSA, ECDSA or Ed25519.
	KeyFile string `yaml:"key_file"`
	// Secret is the secret of HMAC, at least 32 bytes.
	Secret string `yaml:"secret"`
	// Issuer and Audience, where set, are demanded of the token.
	Issuer   string `yaml:"issuer"`
	Audience string `yaml:"audience"`
}

// kinds are the scopes that are one word.
var kinds = []string{"authorization", "basic", "mtls", "single-tenant"}

// ParseScope reads the one-word form of a scope: a Kind, or "header:NAME".
func ParseScope(s string) (*Scope, error) {
	if name, ok := strings.CutPrefix(s, "header:"); ok && name != "" {
		return &Scope{Header: name}, nil
	}
	if !slices.Contains(kinds, s) {
		return nil, fmt.Errorf("%q is none of %s and header:NAME", s, strings.Join(kinds, ", "))
	}
	return &Scope{Kind: s}, nil
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *Scope) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		parsed, err := ParseScope(n.Value)
		if err != nil {
			return fmt.Errorf("line %d: %w", n.Line, err)
		}
		*s = *parsed
		return nil
	}
	type plain Scope // without this method
	return n.Decode((*plain)(s))
}

// extractor returns the function that finds a request's scope.
func (s *Scope) extractor() (func(*http.Request) (string, error), error) {
	switch {
	case s.JWT != nil && s.Header != "":
		return nil, errors.New("either header or jwt, not both")
	case s.JWT != nil:
		return s.JWT.extractor()
	case s.Header != "":
		name := http.CanonicalHeaderKey(s.Header)
		return func(r *http.Request) (string, error) { return single(r, name), nil }, nil
	}
	switch s.Kind {
	case "authorization":
		return func(r *http.Request) (string, error) {
			v := single(r, "Authorization")
			if v == "" {
				return "", nil
			}
			return "authorization:" + digest(v), nil
		}, nil
	case "basic":
		return func(r *http.Request) (string, error) {
			v := single(r, "Authorization")
			user, _, ok := r.BasicAuth()
			if v == "" || !ok || user == "" {
				return "", nil
			}
			return user + ":" + digest(v), nil // no user has a colon
		}, nil
	case "mtls":
		return func(r *http.Request) (string, error) {
			if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
				return "", nil
			}
			return r.TLS.VerifiedChains[0][0].Subject.String(), nil
		}, nil
	case "single-tenant":
		return stethttp.SingleTenant, nil
	default:
		return nil, fmt.Errorf("empty; write one of %s, header or jwt", strings.Join(kinds, ", "))
	}
}

// headers are those that the scope is read from, in canonical form.
func (s *Scope) headers() []string {
	all := []string{"Authorization"} // of what says who it is, also where nothing is protected
	switch {
	case s.JWT != nil && s.JWT.Header != "":
		all = append(all, http.CanonicalHeaderKey(s.JWT.Header))
	case s.Header != "":
		all = append(all, http.CanonicalHeaderKey(s.Header))
	}
	return all
}

// digest stands for credentials.
func digest(credentials string) string {
	sum := sha256.Sum256([]byte(credentials))
	return hex.EncodeToString(sum[:16])
}

// single returns the value of a header that is there once; of two, nobody knows
// which one the service heeds.
func single(r *http.Request, name string) string {
	values := r.Header[name]
	if len(values) != 1 {
		return ""
	}
	return strings.TrimSpace(values[0])
}

const minSecret = 32 // bytes; RFC 7518, section 3.2

func (j *JWT) extractor() (func(*http.Request) (string, error), error) {
	header := http.CanonicalHeaderKey(j.Header)
	claim := j.Claim
	if claim == "" {
		claim = "sub"
	}
	key, methods, err := j.key()
	if err != nil {
		return nil, err
	}
	if header == "" && key != nil {
		header = "Authorization"
	}
	if key == nil && (header == "" || header == "Authorization") {
		return nil, errors.New("jwt: a token that nobody has verified may say anything: give key_file or secret, or name as header one that a gateway sets after it has verified the token")
	}
	if key == nil && (j.Issuer != "" || j.Audience != "") {
		return nil, errors.New("jwt: issuer and audience are checked together with the signature; give key_file or secret")
	}
	options := []jwt.ParserOption{jwt.WithValidMethods(methods)}
	if j.Issuer != "" {
		options = append(options, jwt.WithIssuer(j.Issuer))
	}
	if j.Audience != "" {
		options = append(options, jwt.WithAudience(j.Audience))
	}
	parser := jwt.NewParser(options...)
	return func(r *http.Request) (string, error) {
		token := single(r, header)
		if scheme, rest, ok := strings.Cut(token, " "); ok && strings.EqualFold(scheme, "Bearer") {
			token = strings.TrimSpace(rest)
		}
		claims := jwt.MapClaims{}
		var err error
		if key != nil {
			_, err = parser.ParseWithClaims(token, claims, func(*jwt.Token) (any, error) { return key, nil })
		} else {
			_, _, err = parser.ParseUnverified(token, claims)
		}
		if err != nil {
			return "", nil //nolint:nilerr // a token that is not valid says nothing
		}
		scope, _ := claims[claim].(string)
		return scope, nil
	}, nil
}

// key returns what tokens are verified with, nil for nothing, and the algorithms
// that it is good for: a public key must not be taken for an HMAC's secret.
func (j *JWT) key() (any, []string, error) {
	switch {
	case j.KeyFile != "" && j.Secret != "":
		return nil, nil, errors.New("jwt: either key_file or secret, not both")
	case j.Secret != "":
		if len(j.Secret) < minSecret {
			return nil, nil, fmt.Errorf("jwt: the secret has %d bytes; HS256 wants at least %d", len(j.Secret), minSecret)
		}
		return []byte(j.Secret), []string{"HS256", "HS384", "HS512"}, nil
	case j.KeyFile == "":
		return nil, nil, nil
	}
	pem, err := os.ReadFile(j.KeyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("jwt: key_file: %w", err)
	}
	if k, err := jwt.ParseRSAPublicKeyFromPEM(pem); err == nil {
		return k, []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}, nil
	}
	if k, err := jwt.ParseECPublicKeyFromPEM(pem); err == nil {
		return k, []string{"ES256", "ES384", "ES512"}, nil
	}
	var k crypto.PublicKey
	if k, err = jwt.ParseEdPublicKeyFromPEM(pem); err == nil {
		return k, []string{"EdDSA"}, nil
	}
	return nil, nil, fmt.Errorf("jwt: key_file %s is no PEM file with a public key of RSA, ECDSA or Ed25519", j.KeyFile)
}
