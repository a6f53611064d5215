package proxy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stet-go/stet"
)

// Values of Config.ScopeLabel.
const (
	labelNone  = "none"
	labelScope = "scope"
)

// scopeLabel returns stet.Options.Label, or nil if no route has labels.
func (c *Config) scopeLabel(done *checked) func(stet.Op) string {
	shown := map[string]func(string) string{} // by class
	for _, cr := range done.all() {
		if f, err := c.scope(&cr.Route).label(c.ScopeLabel); f != nil && err == nil {
			shown[cr.class()] = f
		}
	}
	if len(shown) == 0 {
		return nil
	}
	return func(op stet.Op) string {
		f := shown[op.Class]
		if f == nil {
			return ""
		}
		label := f(op.Scope)
		if slices.ContainsFunc(strings.Fields(label), isJWT) {
			return ""
		}
		return label
	}
}

// label returns the function that makes a label of a scope, nil for none. A label is stored in
// plain text: it is never a credential, nor a digest of one.
func (s *Scope) label(mode string) (func(scope string) string, error) {
	switch {
	case mode == labelNone, mode == "" && s.JWT == nil:
		return nil, nil
	case s.JWT == nil && s.Header == "" && (s.Kind == "authorization" || s.Kind == ""):
		return nil, errors.New("the scope is a digest of credentials, or a list of scopes, which makes no label; leave scope_label out")
	case s.Header != "" && ofCredentials(s.Header):
		return nil, fmt.Errorf("%s can hold a credential, which must not be stored in plain text; leave scope_label out", s.Header)
	case s.Kind == "basic":
		return func(scope string) string {
			return scope[:max(strings.LastIndexByte(scope, ':'), 0)] // the user; a digest follows
		}, nil
	}
	return func(scope string) string { return scope }, nil
}

// ofCredentials reports whether a header's name says that it holds a credential.
func ofCredentials(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc([]string{"auth", "key", "token", "secret", "cookie", "session", "password", "credential", "signature", "jwt"}, func(part string) bool {
		return strings.Contains(name, part)
	})
}

// checkScopeLabel returns the error of a ScopeLabel that does not suit a route.
func (c *Config) checkScopeLabel(done *checked) error {
	for _, cr := range done.all() {
		if cr.options.Scope == nil {
			continue // it was refused already
		}
		if _, err := c.scope(&cr.Route).label(c.ScopeLabel); err != nil {
			return fmt.Errorf("route %s: %w", cr.class(), err)
		}
	}
	return nil
}
