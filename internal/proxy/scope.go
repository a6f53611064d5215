package proxy

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// Scope says how to identify the caller of a request, in one of Kind, Header, JWT and All. A
// request without an identity is refused.
type Scope struct {
	Kind   string  `yaml:"-"`
	Header string  `yaml:"header"`
	JWT    *JWT    `yaml:"jwt"`
	All    []Scope `yaml:"-"`

	tokens  bool // Config.TokenScope: a header's value can be a JWT
	vouched bool // Config.Authorize verifies tokens
}

// kinds are the scopes that are one word.
var kinds = []string{"authorization", "basic", "mtls", "mtls:uri", "mtls:dns", "mtls:subject", "host", "single-tenant"}

// ParseScope reads the one-word form of a scope: a Kind, "header:NAME" or "jwt:CLAIM".
// Several, with commas between them, make All.
func ParseScope(s string) (*Scope, error) {
	words := strings.Split(s, ",")
	if len(words) > 1 {
		all := &Scope{}
		for _, word := range words {
			one, err := ParseScope(strings.TrimSpace(word))
			if err != nil {
				return nil, err
			}
			all.All = append(all.All, *one)
		}
		return all, nil
	}
	if name, ok := strings.CutPrefix(s, "header:"); ok && name != "" {
		return &Scope{Header: name}, nil
	}
	if claim, ok := strings.CutPrefix(s, "jwt:"); ok && claim != "" {
		return &Scope{JWT: &JWT{Claim: claim}}, nil
	}
	if !slices.Contains(kinds, s) {
		return nil, fmt.Errorf("%q is none of %s, header:NAME and jwt:CLAIM", s, strings.Join(kinds, ", "))
	}
	return &Scope{Kind: s}, nil
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *Scope) UnmarshalYAML(n *yaml.Node) error {
	switch n.Kind {
	case yaml.ScalarNode:
		parsed, err := ParseScope(n.Value)
		if err != nil {
			return fmt.Errorf("line %d: %w", n.Line, err)
		}
		*s = *parsed
		return nil
	case yaml.SequenceNode:
		*s = Scope{}
		return n.Decode(&s.All)
	default:
		type plain Scope // without this method
		return n.Decode((*plain)(s))
	}
}

// extractor returns a request's scope, "" if the request has none.
type extractor = func(*http.Request) (string, error)

// extractor returns the function that finds a request's scope.
func (s *Scope) extractor(log *slog.Logger) (extractor, error) {
	switch {
	case s.JWT != nil && s.Header != "":
		return nil, errors.New("either header or jwt, not both")
	case s.JWT != nil:
		return s.JWT.extractor(log, s.vouched)
	case s.Header != "":
		name := http.CanonicalHeaderKey(s.Header)
		return func(r *http.Request) (string, error) { return s.value(r, name) }, nil
	case len(s.All) > 0:
		return s.combined(log)
	case s.Kind == "single-tenant":
		return stethttp.SingleTenant, nil
	case s.Kind == "authorization":
		return s.credentials, nil
	}
	find, ok := map[string]func(*http.Request) string{
		"basic": basic, "host": host,
		"mtls":         certified(uriNames, dnsNames, subject),
		"mtls:uri":     certified(uriNames),
		"mtls:dns":     certified(dnsNames),
		"mtls:subject": certified(subject),
	}[s.Kind]
	if !ok {
		return nil, errNoScope
	}
	return func(r *http.Request) (string, error) { return find(r), nil }, nil
}

// combined returns the extractor of All. It returns "" if one of them does.
func (s *Scope) combined(log *slog.Logger) (extractor, error) {
	var parts []extractor
	for i, one := range s.All {
		switch {
		case len(one.All) > 0:
			return nil, errors.New("a list of scopes has no list in it")
		case one.Kind == "single-tenant":
			return nil, errors.New("single-tenant has no place in a list: it distinguishes no callers")
		case one.JWT == nil && slices.ContainsFunc(s.All[:i], func(before Scope) bool {
			return before.JWT == nil && before.Kind == one.Kind && strings.EqualFold(before.Header, one.Header)
		}):
			return nil, errors.New("the list has the same scope twice")
		}
		part, err := one.extractor(log)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	if len(parts) == 1 {
		return parts[0], nil
	}
	return func(r *http.Request) (string, error) {
		values := make([]string, len(parts))
		for i, part := range parts {
			v, err := part(r)
			if v == "" || err != nil {
				return "", err
			}
			values[i] = v
		}
		return join(values), nil
	}, nil
}

// join encodes several values as one.
func join(values []string) string {
	var b strings.Builder
	for _, v := range values {
		b.WriteString(strconv.Itoa(len(v)) + ":" + v + ",")
	}
	return b.String()
}

// headers returns the headers that the scope is read from, in canonical form.
func (s *Scope) headers() []string {
	all := []string{"Authorization"} // on every route
	switch {
	case s.JWT != nil && s.JWT.Header != "":
		all = append(all, http.CanonicalHeaderKey(s.JWT.Header))
	case s.Header != "":
		all = append(all, http.CanonicalHeaderKey(s.Header))
	}
	for _, one := range s.All {
		all = append(all, one.headers()...)
	}
	return all
}

// single returns the value of a header that occurs once. With two it is not clear which one the
// service reads. Only spaces and tabs are trimmed: other spaces of Unicode can be part of a name.
func single(r *http.Request, name string) string {
	values := r.Header[name]
	if len(values) != 1 {
		return ""
	}
	return strings.Trim(values[0], " \t")
}

// digest stands for credentials.
func digest(credentials string) string {
	sum := sha256.Sum256([]byte(credentials))
	return hex.EncodeToString(sum[:16])
}

// errNoScope lists the choices. There is no default: a wrong scope runs a retry twice, or returns
// the response of another caller.
var errNoScope = errors.New(`required: whose keys are they? One of
  jwt:sub           the claim of a bearer token, verified by a key (scope: {jwt: {…}}) or by authorize
  header:X-Account  a header that a trusted gateway sets
  authorization     the digest of the Authorization header: API keys that outlive the retries
  basic             the user of HTTP Basic authentication, with the password
  mtls              the client's certificate
  host              the host that the request is for, where each tenant has one
  single-tenant     all keys are of one tenant`)

// errToken: a caller's next token would be another scope, so a retry after a refresh would run
// again.
var errToken = errors.New("proxy: the header of the scope has a JWT, which changes with each refresh, so that a retry would run again: " +
	"set scope to its claim (jwt:sub), or token_scope to value if tokens outlive the retries")

// credentials is the scope "authorization".
func (s *Scope) credentials(r *http.Request) (string, error) {
	v, err := s.value(r, "Authorization")
	if v == "" {
		return "", err
	}
	return "authorization:" + digest(v), nil
}

// value returns a header whose value is the scope. It fails if the value has a JWT, with any
// scheme, unless Config.TokenScope allows it.
func (s *Scope) value(r *http.Request, name string) (string, error) {
	v := single(r, name)
	words := strings.FieldsFunc(v, func(c rune) bool { return strings.ContainsRune(" \t\",;=", c) })
	if !s.tokens && slices.ContainsFunc(words, isJWT) {
		return "", errToken
	}
	return v, nil
}

// isJWT reports whether a token has three parts, or five if it is encrypted, and the first is a
// JSON object in base64url (RFC 7519, section 7.2).
func isJWT(token string) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 && len(parts) != 5 { // 5 if it is encrypted
		return false
	}
	head, err := base64.RawURLEncoding.DecodeString(parts[0])
	return err == nil && json.Valid(head) && head[0] == '{'
}

// resolved returns the scope with the fields of the configuration that concern tokens.
func (s *Scope) resolved(tokens, vouched bool) *Scope {
	own := *s
	own.tokens, own.vouched, own.All = tokens, vouched, nil
	for i := range s.All {
		own.All = append(own.All, *s.All[i].resolved(tokens, vouched))
	}
	return &own
}

// basic is the scope "basic".
func basic(r *http.Request) string {
	v := single(r, "Authorization")
	user, _, ok := r.BasicAuth()
	if v == "" || !ok || user == "" {
		return ""
	}
	return user + ":" + digest(v) // no user has a colon
}

// host is the scope "host".
func host(r *http.Request) string {
	name, port, err := net.SplitHostPort(r.Host)
	if err != nil || port == "80" || port == "443" || port == "" {
		if err != nil {
			name = r.Host
		}
		return strings.TrimSuffix(strings.ToLower(strings.Trim(name, "[]")), ".")
	}
	return net.JoinHostPort(strings.TrimSuffix(strings.ToLower(name), "."), port)
}

// certified returns the first name in a client's verified certificate.
func certified(names ...func(*x509.Certificate) string) func(*http.Request) string {
	return func(r *http.Request) string {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			return ""
		}
		for _, name := range names {
			if v := name(r.TLS.VerifiedChains[0][0]); v != "" {
				return v
			}
		}
		return ""
	}
}

func subject(c *x509.Certificate) string { return c.Subject.String() }

func uriNames(c *x509.Certificate) string {
	var all []string
	for _, u := range c.URIs {
		all = append(all, u.String())
	}
	return several("uri", all)
}

func dnsNames(c *x509.Certificate) string {
	var all []string
	for _, name := range c.DNSNames {
		all = append(all, strings.ToLower(name))
	}
	return several("dns", all)
}

// several returns the names of a certificate as one identity. It differs from every subject,
// which begins with the name of an attribute and "=".
func several(kind string, names []string) string {
	names = slices.DeleteFunc(names, func(s string) bool { return s == "" })
	slices.Sort(names)
	names = slices.Compact(names)
	switch len(names) {
	case 0:
		return ""
	case 1:
		return kind + ":" + names[0]
	}
	all := kind + "s:" + join(names)
	if len(all) > store.MaxScope {
		return kind + "s-digest:" + digest(all)
	}
	return all
}
