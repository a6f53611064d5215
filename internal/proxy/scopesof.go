package proxy

import (
	"encoding/base64"
	"slices"
	"strings"

	"github.com/stet-go/stet/stethttp"
)

// singleTenant is the scope "single-tenant".
var singleTenant, _ = stethttp.SingleTenant(nil)

// ScopesOf returns the scopes that requests of an account have under this configuration. The
// account identifies the caller to a person: the claim, the value of the header, the host,
// the name in the certificate, or the credentials. Without scopes in the configuration it is the
// scope itself.
func (c *Config) ScopesOf(account string) (scopes []string) {
	configured := []*Scope{c.Scope}
	for i := range c.Routes {
		configured = append(configured, c.Routes[i].Scope)
	}
	for _, s := range configured {
		if s != nil {
			scopes = append(scopes, s.of(account)...)
		}
	}
	switch {
	case len(scopes) == 0 && account == "":
		scopes = []string{singleTenant}
	case len(scopes) == 0:
		scopes = []string{account}
	}
	slices.Sort(scopes)
	return slices.Compact(scopes)
}

// of returns the scopes of an account.
func (s *Scope) of(account string) []string {
	switch {
	case s.Kind == "single-tenant":
		return []string{singleTenant}
	case account == "":
		return nil
	case s.Kind == "authorization":
		return []string{"authorization:" + digest(account)}
	case s.Kind == "basic":
		user, _, ok := strings.Cut(account, ":")
		if !ok {
			return nil // the scope depends on the password
		}
		return []string{user + ":" + digest("Basic "+base64.StdEncoding.EncodeToString([]byte(account)))}
	case strings.HasPrefix(s.Kind, "mtls"):
		return []string{account, "uri:" + account, "dns:" + strings.ToLower(account)}
	case len(s.All) > 0:
		return s.together(account)
	}
	return []string{account}
}

// together returns the scope of a list. The account has the parts in their order, with commas
// between them.
func (s *Scope) together(account string) []string {
	parts := strings.Split(account, ",")
	if len(parts) != len(s.All) {
		return nil
	}
	for i := range parts {
		of := s.All[i].of(strings.TrimSpace(parts[i]))
		if len(of) == 0 {
			return nil
		}
		parts[i] = of[0]
	}
	if len(parts) == 1 {
		return parts
	}
	return []string{join(parts)}
}
