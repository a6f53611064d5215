package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

// JWT is the scope in a claim of a JSON Web Token (RFC 7519).
type JWT struct {
	Claim        string `yaml:"claim"`
	Header       string `yaml:"header"`
	JWKSFile     string `yaml:"jwks_file"`
	KeyFile      string `yaml:"key_file"`
	Secret       string `yaml:"secret"`
	Issuer       string `yaml:"issuer"`
	Audience     string `yaml:"audience"`
	AllowEndless bool   `yaml:"allow_endless"`
}

const minSecret = 32 // bytes; RFC 7518, section 3.2

// check returns an error if the fields contradict each other.
func (j *JWT) check(vouched bool) error {
	sources := 0
	for _, s := range []string{j.JWKSFile, j.KeyFile, j.Secret} {
		if s != "" {
			sources++
		}
	}
	header := http.CanonicalHeaderKey(j.Header)
	switch {
	case sources > 1:
		return errors.New("jwt: one of jwks_file, key_file and secret, not more")
	case sources == 0 && !vouched && (header == "" || header == "Authorization"):
		return errors.New("jwt: an unverified token is not evidence: give jwks_file, key_file or secret; or authorize, so that the service verifies it; or as header the name of a header that a gateway sets after it has verified the token")
	case sources == 0 && (j.Issuer != "" || j.Audience != "" || j.AllowEndless):
		return errors.New("jwt: issuer, audience and expiry are checked together with the signature; give jwks_file, key_file or secret")
	case j.Secret != "" && len(j.Secret) < minSecret:
		return fmt.Errorf("jwt: the secret has %d bytes; HS256 wants at least %d", len(j.Secret), minSecret)
	}
	return nil
}

func (j *JWT) extractor(log *slog.Logger, vouched bool) (extractor, error) {
	if err := j.check(vouched); err != nil {
		return nil, err
	}
	keys, err := j.keys(log)
	if err != nil {
		return nil, err
	}
	claim, header := cmp.Or(j.Claim, "sub"), http.CanonicalHeaderKey(cmp.Or(j.Header, "Authorization"))
	var options []jwt.ParserOption
	if !j.AllowEndless {
		options = append(options, jwt.WithExpirationRequired())
	}
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
			token = strings.Trim(rest, " ")
		}
		claims := jwt.MapClaims{}
		var err error
		if keys != nil {
			_, err = parser.ParseWithClaims(token, claims, keys)
		} else {
			_, _, err = parser.ParseUnverified(token, claims)
		}
		if err != nil {
			return "", nil // a token that is not valid says nothing
		}
		scope, _ := claims[claim].(string)
		return scope, nil
	}, nil
}

// keys returns the keys of tokens, nil if tokens are not verified here.
func (j *JWT) keys(log *slog.Logger) (jwt.Keyfunc, error) {
	switch {
	case j.Secret != "":
		return keyring{{key: []byte(j.Secret), methods: []string{"HS256", "HS384", "HS512"}}}.find, nil
	case j.KeyFile == "" && j.JWKSFile == "":
		return nil, nil
	}
	field, f := "key_file", &keyFile{name: j.KeyFile, parse: parsePEM, log: log}
	if j.JWKSFile != "" {
		field, f.name, f.parse = "jwks_file", j.JWKSFile, parseJWKS
	}
	if err := f.load(); err != nil {
		return nil, fmt.Errorf("jwt: %s: %w", field, err)
	}
	return f.find, nil
}
