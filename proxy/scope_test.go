package proxy_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/proxy"
	"github.com/stet-go/stet/store/memory"
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

func TestScopeSaysWhoseKeyItIs(t *testing.T) {
	public, private, keyFile := signer(t)
	secret := strings.Repeat("s", 32)
	sign := func(method jwt.SigningMethod, key any, claims jwt.MapClaims) string {
		s, err := jwt.NewWithClaims(method, claims).SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	acct := jwt.MapClaims{"sub": "acct_1", "org": "o1"}
	signed := sign(jwt.SigningMethodEdDSA, private, acct)
	basic := func(user string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":pw")) }
	credentials := sha256.Sum256([]byte(basic("acct_1")))
	expired := jwt.MapClaims{"sub": "acct_1", "exp": time.Now().Add(-time.Hour).Unix()}

	const refused = ""
	for name, tc := range map[string]struct {
		yaml   string
		header []string
		scope  string // "*" for any
	}{
		"authorization":       {"authorization", []string{"Authorization", "Bearer t"}, "*"},
		"authorization none":  {"authorization", nil, refused},
		"header":              {"header:X-Account", []string{"X-Account", "acct_1"}, "acct_1"},
		"header none":         {"header:X-Account", nil, refused},
		"header twice":        {"header:X-Account", []string{"X-Account", "acct_1", "X-Account", "acct_2"}, refused},
		"header mapping":      {"{header: x-account}", []string{"X-Account", "acct_1"}, "acct_1"},
		"basic":               {"basic", []string{"Authorization", basic("acct_1")}, "acct_1:" + hex.EncodeToString(credentials[:16])},
		"basic nobody":        {"basic", []string{"Authorization", basic("")}, refused},
		"basic other":         {"basic", []string{"Authorization", "Bearer x"}, refused},
		"mtls without":        {"mtls", nil, refused},
		"jwt":                 {"{jwt: {key_file: " + keyFile + "}}", []string{"Authorization", "Bearer " + signed}, "acct_1"},
		"jwt claim":           {"{jwt: {claim: org, key_file: " + keyFile + "}}", []string{"Authorization", "bearer " + signed}, "o1"},
		"jwt bare":            {"{jwt: {header: X-Token, key_file: " + keyFile + "}}", []string{"X-Token", signed}, "acct_1"},
		"jwt none":            {"{jwt: {key_file: " + keyFile + "}}", nil, refused},
		"jwt no such claim":   {"{jwt: {claim: nope, key_file: " + keyFile + "}}", []string{"Authorization", "Bearer " + signed}, refused},
		"jwt forged":          {"{jwt: {key_file: " + keyFile + "}}", []string{"Authorization", "Bearer " + signed[:len(signed)-8] + "AAAAAAAA"}, refused},
		"jwt alg none":        {"{jwt: {key_file: " + keyFile + "}}", []string{"Authorization", "Bearer " + sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, acct)}, refused},
		"jwt key as secret":   {"{jwt: {key_file: " + keyFile + "}}", []string{"Authorization", "Bearer " + sign(jwt.SigningMethodHS256, []byte(public), acct)}, refused},
		"jwt expired":         {"{jwt: {secret: " + secret + "}}", []string{"Authorization", "Bearer " + sign(jwt.SigningMethodHS256, []byte(secret), expired)}, refused},
		"jwt secret":          {"{jwt: {secret: " + secret + "}}", []string{"Authorization", "Bearer " + sign(jwt.SigningMethodHS256, []byte(secret), acct)}, "acct_1"},
		"jwt other issuer":    {"{jwt: {issuer: them, secret: " + secret + "}}", []string{"Authorization", "Bearer " + sign(jwt.SigningMethodHS256, []byte(secret), acct)}, refused},
		"jwt gateway":         {"{jwt: {header: X-Verified}}", []string{"X-Verified", signed}, "acct_1"},
		"jwt gateway garbage": {"{jwt: {header: X-Verified}}", []string{"X-Verified", "garbage"}, refused},
		"single-tenant":       {"single-tenant", nil, "single-tenant"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, false, okHandler)
			f := start(t, yamlFor(s.URL, "http1", "scope: "+tc.yaml+"\nroutes: [{path: /payments}]\n"))
			r := f.post("k", "{}", tc.header...)
			if tc.scope == refused {
				if r.status != 403 || r.problem() != "scope-missing" || s.count("k") != 0 {
					t.Errorf("%d %s, %d executions", r.status, r.body, s.count("k"))
				}
				return
			}
			want := "done for " + stet.Digest("", tc.scope, "k").String()
			if r.status != 200 || tc.scope != "*" && r.body != want {
				t.Errorf("%d %s, want %s", r.status, r.body, want)
			}
		})
	}
}

func TestNobodyGetsTheResponseOfAnotherScope(t *testing.T) {
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
		t.Fatalf("%d %s", r.status, r.body)
	}
	if r := f.post("a", "{}", "Authorization", basic("wrong")); r.status != 401 || r.replayed() || r.body != "" {
		t.Errorf("a wrong password gets %d %q, replayed %v", r.status, r.body, r.replayed())
	}
	f.post("b", `{"by":"mallory"}`, "Authorization", basic("wrong"))
	if r := f.post("b", `{"by":"alice"}`, "Authorization", basic("right")); r.status != 200 {
		t.Errorf("a wrong password spoils a key: %d %s", r.status, r.problem())
	}
}

func TestMTLSScopeIsTheSubjectOfTheVerifiedCertificate(t *testing.T) {
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "acct_1", OrganizationalUnit: []string{"Acme"}}}
	s := serve(t, false, okHandler)
	c, err := proxy.Parse("stet.yaml", strings.NewReader(yamlFor(s.URL, "http1", "scope: mtls\n")), env(nil))
	if err != nil {
		t.Fatal(err)
	}
	p, err := proxy.New(memory.New(memory.Options{}), c, proxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for verified, want := range map[bool]int{true: 200, false: 403} {
		r := httptest.NewRequest("POST", "/payments", strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", "k")
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{template}}
		if verified {
			r.TLS.VerifiedChains = [][]*x509.Certificate{{template}}
		}
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r)
		subject := stet.Digest("", "CN=acct_1,OU=Acme", "k").String()
		if w.Code != want || verified && !strings.Contains(w.Body.String(), subject) {
			t.Errorf("verified %v: %d %s", verified, w.Code, w.Body)
		}
	}
}
