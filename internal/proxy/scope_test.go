package proxy_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/store"
)

func okHandler(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	_, _ = io.WriteString(w, "done for "+r.Header.Get("Stet-Operation"))
}

func blockingHandler(arrived, leave chan struct{}) http.HandlerFunc {
	return func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-leave
	}
}

// signer makes a key for signing tokens, and the file of its public half.
func signer(t *testing.T) (public ed25519.PublicKey, private ed25519.PrivateKey, file string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "jwt.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return public, private, file
}

const refused = ""

// hasScope sends a request to a proxy whose scope is as yaml says, and finds out
// its interpretation: "*" for any scope.
func hasScope(t *testing.T, yaml, scope string, header []string) {
	t.Helper()
	s := serve(t, false, okHandler)
	f := start(t, yamlFor(s.URL, "http1", "scope: "+yaml+"\nroutes: [{path: /payments}]\n"))
	r := f.post("k", "{}", header...)
	if scope == refused {
		if r.status != 403 || r.problem() != "scope-missing" || s.count("k") != 0 {
			t.Errorf("%d %s, %d executions", r.status, r.body, s.count("k"))
		}
		return
	}
	want := "done for " + store.Digest("", scope, "k").String()
	if r.status != 200 || scope != "*" && r.body != want {
		t.Errorf("%d %s, want %s", r.status, r.body, want)
	}
}

func TestScopeNamesTheOwnerOfTheKey(t *testing.T) {
	public, private, keyFile := signer(t)
	secret := strings.Repeat("s", 32)
	sign := func(method jwt.SigningMethod, key any, claims jwt.MapClaims) string {
		s, err := jwt.NewWithClaims(method, claims).SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	acct := jwt.MapClaims{"sub": "acct_1", "org": "o1", "exp": time.Now().Add(time.Hour).Unix()}
	endless := jwt.MapClaims{"sub": "acct_1"}
	signed := sign(jwt.SigningMethodEdDSA, private, acct)
	basic := func(user string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":pw")) }
	credentials := sha256.Sum256([]byte(basic("acct_1")))
	expired := jwt.MapClaims{"sub": "acct_1", "exp": time.Now().Add(-time.Hour).Unix()}

	for name, tc := range map[string]struct {
		yaml   string
		header []string
		scope  string // "*" for any
	}{
		"authorization":        {"authorization", []string{"Authorization", "Bearer t"}, "*"},
		"authorization none":   {"authorization", nil, refused},
		"header":               {"header:X-Account", []string{"X-Account", "acct_1"}, "acct_1"},
		"header none":          {"header:X-Account", nil, refused},
		"header twice":         {"header:X-Account", []string{"X-Account", "acct_1", "X-Account", "acct_2"}, refused},
		"header mapping":       {"{header: x-account}", []string{"X-Account", "acct_1"}, "acct_1"},
		"basic":                {"basic", []string{"Authorization", basic("acct_1")}, "acct_1:" + hex.EncodeToString(credentials[:16])},
		"basic without a name": {"basic", []string{"Authorization", basic("")}, refused},
		"basic other":          {"basic", []string{"Authorization", "Bearer x"}, refused},
		"mtls without":         {"mtls", nil, refused},
		"jwt":                  {"{jwt: {key_file: " + keyFile + "}}", []string{"Authorization", "Bearer " + signed}, "acct_1"},
		"jwt claim":            {"{jwt: {claim: org, key_file: " + keyFile + "}}", []string{"Authorization", "bearer " + signed}, "o1"},
		"jwt bare":             {"{jwt: {header: X-Token, key_file: " + keyFile + "}}", []string{"X-Token", signed}, "acct_1"},
		"jwt none":             {"{jwt: {key_file: " + keyFile + "}}", nil, refused},
		"jwt no such claim":    {"{jwt: {claim: nope, key_file: " + keyFile + "}}", []string{"Authorization", "Bearer " + signed}, refused},
		"jwt forged":           {"{jwt: {key_file: " + keyFile + "}}", []string{"Authorization", "Bearer " + signed[:len(signed)-8] + "AAAAAAAA"}, refused},
		"jwt alg none":         {"{jwt: {key_file: " + keyFile + "}}", []string{"Authorization", "Bearer " + sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, acct)}, refused},
		"jwt key as secret":    {"{jwt: {key_file: " + keyFile + "}}", []string{"Authorization", "Bearer " + sign(jwt.SigningMethodHS256, []byte(public), acct)}, refused},
		"jwt expired":          {"{jwt: {secret: " + secret + "}}", []string{"Authorization", "Bearer " + sign(jwt.SigningMethodHS256, []byte(secret), expired)}, refused},
		"jwt endless":          {"{jwt: {secret: " + secret + "}}", []string{"Authorization", "Bearer " + sign(jwt.SigningMethodHS256, []byte(secret), endless)}, refused},
		"jwt endless allowed":  {"{jwt: {allow_endless: true, secret: " + secret + "}}", []string{"Authorization", "Bearer " + sign(jwt.SigningMethodHS256, []byte(secret), endless)}, "acct_1"},
		"jwt secret":           {"{jwt: {secret: " + secret + "}}", []string{"Authorization", "Bearer " + sign(jwt.SigningMethodHS256, []byte(secret), acct)}, "acct_1"},
		"jwt other issuer":     {"{jwt: {issuer: them, secret: " + secret + "}}", []string{"Authorization", "Bearer " + sign(jwt.SigningMethodHS256, []byte(secret), acct)}, refused},
		"jwt gateway":          {"{jwt: {header: X-Verified}}", []string{"X-Verified", signed}, "acct_1"},
		"jwt gateway garbage":  {"{jwt: {header: X-Verified}}", []string{"X-Verified", "garbage"}, refused},
		"single-tenant":        {"single-tenant", nil, "single-tenant"},
	} {
		t.Run(name, func(t *testing.T) { hasScope(t, tc.yaml, tc.scope, tc.header) })
	}
}

func TestNoScopeGetsTheResponseOfAnother(t *testing.T) {
	s := serve(t, false, okHandler)
	f := start(t, yamlFor(s.URL, "http1", "routes: [{path: /payments}]\n"))
	a := f.post("k", "{}", "Authorization", "Bearer a")
	b := f.post("k", "{}", "Authorization", "Bearer b")
	again := f.post("k", "{}", "Authorization", "Bearer a")
	if a.body == b.body || b.replayed() || !again.replayed() || again.body != a.body {
		t.Errorf("a %q, b %q, a again %q", a.body, b.body, again.body)
	}
}

// The service, which alone knows the password, is not asked before a replay.
func TestReplayUnderBasicTakesThePassword(t *testing.T) {
	basic := func(password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte("alice:"+password))
	}
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "alice" || password != "right" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, "alice's")
	})
	f := start(t, yamlFor(s.URL, "http1", "scope: basic\n"))
	if r := f.post("a", "{}", "Authorization", basic("right")); r.body != "alice's" {
		t.Fatalf("got %d %s; want r.body == \"alice's\"", r.status, r.body)
	}
	if r := f.post("a", "{}", "Authorization", basic("wrong")); r.status != 401 || r.replayed() || r.body != "" {
		t.Errorf("a wrong password gets %d %q, replayed %v", r.status, r.body, r.replayed())
	}
	f.post("b", `{"by":"mallory"}`, "Authorization", basic("wrong"))
	if r := f.post("b", `{"by":"alice"}`, "Authorization", basic("right")); r.status != 200 {
		t.Errorf("a wrong password damages a key: %d %s", r.status, r.problem())
	}
}

func TestScopeMayBeTheHostOrSeveralTogether(t *testing.T) {
	for name, tc := range map[string]struct {
		yaml   string
		header []string
		scope  string
	}{
		"header odd space": {"header:X-Account", []string{"X-Account", "\u00a0acct_1"}, "\u00a0acct_1"},
		"host":             {"host", []string{"Host", "Acme.Example.:443"}, "acme.example"},
		"host port":        {"host", []string{"Host", "acme.example:8443"}, "acme.example:8443"},
		"host IPv6":        {"host", []string{"Host", "[::1]:80"}, "::1"},
		"several":          {"[host, 'header:X-Account']", []string{"Host", "acme.example", "X-Account", "a,b"}, "12:acme.example,3:a,b,"},
		"several mapped":   {"[host, {header: X-Account}]", []string{"Host", "acme.example", "X-Account", "a"}, "12:acme.example,1:a,"},
		"several, one out": {"[host, 'header:X-Account']", []string{"Host", "acme.example"}, refused},
		"several words":    {"'host, header:X-Account'", []string{"Host", "acme.example", "X-Account", "a"}, "12:acme.example,1:a,"},
		"a list of one":    {"['header:X-Account']", []string{"X-Account", "acct_1"}, "acct_1"},
	} {
		t.Run(name, func(t *testing.T) { hasScope(t, tc.yaml, tc.scope, tc.header) })
	}
}

// checked returns the errors of a configuration.
func checked(t *testing.T, yaml string) error {
	t.Helper()
	c, err := proxy.Parse("stet.yaml", strings.NewReader(yaml), env(nil))
	if err != nil {
		t.Fatal(err)
	}
	return c.Check()
}

// TestScopeHasNoDefault: a wrong guess would run a retry twice, or return the response of another caller.
func TestScopeHasNoDefault(t *testing.T) {
	const upstream = "upstream: {url: 'http://127.0.0.1:3000'}\n"
	for name, yaml := range map[string]string{
		"flags alone":  upstream,
		"a route":      upstream + "routes: [{path: /payments}]\n",
		"another path": upstream + "routes: [{path: /a, scope: host}, {path: /b, scope: basic}]\n",
	} {
		err := checked(t, yaml)
		for _, want := range []string{"scope: required: whose keys are they?", "jwt:sub", "header:X-Account", "single-tenant"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want it to have %q", name, err, want)
			}
		}
	}
	if err := checked(t, upstream+"scope: authorization\ntoken_scope: yes\n"); err == nil || !strings.Contains(err.Error(), `token_scope: "yes" is not value`) {
		t.Errorf("another token_scope: %v", err)
	}
}

// TestRenewedTokenIsNoOtherScope: access tokens live for minutes, and retries come later.
func TestRenewedTokenIsNoOtherScope(t *testing.T) {
	token := func(n int) string {
		part := base64.RawURLEncoding.EncodeToString
		return "Bearer " + part([]byte(`{"alg":"none"}`)) + "." + part(fmt.Appendf(nil, `{"sub":"alice","n":%d}`, n)) + ".sig"
	}
	for scope, want := range map[string][2]int{ // the statuses of a request, and of its retry with another token
		"scope: authorization":                     {500, 500},
		"scope: authorization\ntoken_scope: value": {201, 201},
		"scope: jwt:sub\nauthorize: {url: /auth}":  {201, 201},
	} {
		s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/auth" {
				w.WriteHeader(http.StatusCreated)
			}
		})
		f := start(t, yamlFor(s.URL, "http1", scope+"\nroutes: [{path: /payments}]\n"))
		first, again := f.post("k", "{}", "Authorization", token(1)), f.post("k", "{}", "Authorization", token(2))
		if [2]int{first.status, again.status} != want || again.replayed() != strings.Contains(scope, "jwt:sub") {
			t.Errorf("%s: %d, then %d, replayed %v: %s", scope, first.status, again.status, again.replayed(), again.body)
		}
		if key := f.post("k", "{}", "Authorization", "Bearer an.api.key"); key.status == 500 && !strings.Contains(scope, "jwt") {
			t.Errorf("%s: a key that is no JWT: %s", scope, key.body)
		}
	}
	if err := checked(t, "upstream: {url: 'http://127.0.0.1:3000'}\nscope: jwt:sub\n"); err == nil || !strings.Contains(err.Error(), "an unverified token is not evidence") {
		t.Errorf("an unverified token: %v", err)
	}
}

// TestScope_RefusesJWTInAnyHeaderAndScheme: a renewed token would be another scope.
func TestScope_RefusesJWTInAnyHeaderAndScheme(t *testing.T) {
	part := base64.RawURLEncoding.EncodeToString
	token := part([]byte(`{"alg":"none"}`)) + "." + part([]byte(`{"sub":"alice"}`)) + ".sig"
	s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
	for scope, header := range map[string]string{"authorization": "Authorization", "'header:X-Token'": "X-Token", "[host, 'header:X-Token']": "X-Token"} {
		refuse := start(t, yamlFor(s.URL, "http1", "scope: "+scope+"\nroutes: [{path: /payments}]\n"))
		accept := start(t, yamlFor(s.URL, "http1", "scope: "+scope+"\ntoken_scope: value\nroutes: [{path: /payments}]\n"))
		for i, value := range []string{token, "Bearer " + token, "bEARER  " + token, "DPoP " + token, "Token \"" + token + "\"", "Token token=" + token} {
			key := fmt.Sprint("k", i)
			if got := refuse.post(key, "{}", header, value); got.status != 500 {
				t.Errorf("%s, %q: %d", scope, value, got.status)
			}
			if got := accept.post(key, "{}", header, value); got.status != 201 {
				t.Errorf("%s with token_scope, %q: %d", scope, value, got.status)
			}
		}
		if got := refuse.post("k", "{}", header, "Bearer sk.live.1"); got.status != 201 {
			t.Errorf("%s, an API key: %d", scope, got.status)
		}
	}
}
