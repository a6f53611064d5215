package dashboard

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/stet-go/stet/internal/admin"
)

// Token is a bearer token (RFC 6750).
type Token struct {
	// Name says in the audit who used the token: one line of text, unique among the
	// tokens.
	Name string
	// Secret is the token itself: MinToken bytes or more of visible ASCII. Make it with
	// a random generator, and pass it in an environment variable or a file: every user
	// of the host can see arguments.
	Secret string
	// Change also allows seeing stored results, which is audited, and making changes.
	// Without it the token allows looking at records only.
	Change bool
}

// String returns the token's name, and not the secret.
func (t Token) String() string { return fmt.Sprintf("token %q (secret not shown)", t.Name) }

// GoString is String.
func (t Token) GoString() string { return t.String() }

// DefaultTokenName is the name, in the audit, of a single token that is configured by its secret alone.
const DefaultTokenName = "the admin token"

// CheckTokens returns why tokens cannot be Options.Tokens, or nil. No secret is in the
// error.
func CheckTokens(tokens []Token) error {
	var errs []error
	names, secrets := map[string]bool{}, map[string]string{}
	for _, t := range tokens {
		if err := admin.CheckName(t.Name); err != nil {
			errs = append(errs, err)
		}
		if err := CheckToken(t.Secret); err != nil {
			errs = append(errs, fmt.Errorf("the token %q: %w", t.Name, err))
		}
		if names[t.Name] {
			errs = append(errs, fmt.Errorf("there are two tokens by the name of %q", t.Name))
		}
		if other, ok := secrets[t.Secret]; ok && other != t.Name {
			errs = append(errs, fmt.Errorf("the tokens %q and %q are the same; the audit could not tell them apart", other, t.Name))
		}
		names[t.Name], secrets[t.Secret] = true, t.Name
	}
	return errors.Join(errs...)
}

// CheckToken returns why the secret of a token is refused, or nil. The token is not in
// the error.
func CheckToken(token string) error {
	if len(token) < MinToken {
		return fmt.Errorf("%d bytes; give it at least %d, as 'openssl rand -hex 32' makes them", len(token), MinToken)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("it must be visible ASCII, without spaces")
	}
	return nil
}

// Bearer returns which of the tokens a request has. It compares all of them, so that
// its duration reveals nothing.
func Bearer(r *http.Request, tokens []Token) (found Token, ok bool) {
	for _, t := range tokens {
		if admin.Bearer(r, t.Secret) {
			found, ok = t, true
		}
	}
	return found, ok
}
