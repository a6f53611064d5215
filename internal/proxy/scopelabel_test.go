package proxy_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/stet-go/stet/store"
)

// A label is stored in plain text: it is no credential, no digest of one, and never a whole token.
func TestScopeLabelIsNoCredential(t *testing.T) {
	_, private, keyFile := signer(t)
	sign := func(sub string) string {
		s, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{"sub": sub, "exp": time.Now().Add(time.Hour).Unix()}).SignedString(private)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	claim, basic := "{jwt: {key_file: "+keyFile+"}}", "Basic "+base64.StdEncoding.EncodeToString([]byte("ada:secret"))
	inner := sign("inner")
	for name, c := range map[string]struct {
		scope, label string
		header       []string
		want         string
	}{
		"a claim":               {claim, "", []string{"Authorization", "Bearer " + sign("acct_1")}, "acct_1"},
		"a claim without label": {claim, "none", []string{"Authorization", "Bearer " + sign("acct_1")}, ""},
		"a token in a claim":    {claim, "", []string{"Authorization", "Bearer " + sign(inner)}, ""},
		"a header":              {"header:X-Account", "", []string{"X-Account", "acct_1"}, ""},
		"a header on request":   {"header:X-Account", "scope", []string{"X-Account", "acct_1"}, "acct_1"},
		"a token in a header":   {"header:X-Account", "scope\ntoken_scope: value", []string{"X-Account", "Bearer " + inner}, ""},
		"basic":                 {"basic", "", []string{"Authorization", basic}, ""},
		"basic on request":      {"basic", "scope", []string{"Authorization", basic}, "ada"},
		"authorization":         {"authorization", "", []string{"Authorization", "Bearer secret-api-key"}, ""},
		"single tenant":         {"single-tenant", "scope", nil, "single-tenant"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, false, okHandler)
			yaml := "scope: " + c.scope + "\n"
			if c.label != "" {
				yaml += "scope_label: " + c.label + "\n"
			}
			f := start(t, yamlFor(s.URL, "http1", yaml+"routes: [{path: /payments}]\n"))
			r := f.post("k", "{}", c.header...)
			id, err := store.ParseID(strings.TrimPrefix(r.body, "done for "))
			if err != nil {
				t.Fatalf("%d %s: %v", r.status, r.body, err)
			}
			rec, err := f.store.Read(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if label, _ := store.CutScopeLabel(rec.Label.Ref); label != c.want || strings.Contains(rec.Label.Ref, "secret") || strings.Contains(rec.Label.Ref, inner) {
				t.Errorf("the label is %q, want %q; stored is %q", label, c.want, rec.Label.Ref)
			}
		})
	}
	for scope, want := range map[string]string{"header:X-Api-Key": "X-Api-Key can hold a credential", "authorization": "a digest of credentials", "[host, basic]": "a list of scopes"} {
		if err := checked(t, "upstream: {url: http://127.0.0.1:1}\nscope: "+scope+"\nscope_label: scope\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", scope, err, want)
		}
	}
}

func TestScopesOfAnAccount(t *testing.T) {
	digest := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return hex.EncodeToString(sum[:16])
	}
	for yaml, want := range map[string][2]string{ // account, scope
		"scope: single-tenant":              {"", "single-tenant"},
		"scope: header:X-Account":           {"acct_1", "acct_1"},
		"scope: basic":                      {"ada:pw", "ada:" + digest("Basic "+base64.StdEncoding.EncodeToString([]byte("ada:pw")))},
		"scope: authorization":              {"Bearer key", "authorization:" + digest("Bearer key")},
		`scope: [host, "header:X-Account"]`: {"shop.example, ada", "12:shop.example,3:ada,"},
	} {
		c := parsed(t, yaml+"\nupstream: {url: http://127.0.0.1:1}\n")
		if got := c.ScopesOf(want[0]); len(got) != 1 || got[0] != want[1] {
			t.Errorf("%s: the account %q has the scopes %q, want %q", yaml, want[0], got, want[1])
		}
	}
}
