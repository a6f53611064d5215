package proxy_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestMTLSScopeIsTheNameInTheVerifiedCertificate(t *testing.T) {
	uri := func(texts ...string) (all []*url.URL) {
		for _, text := range texts {
			u, err := url.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, u)
		}
		return all
	}
	acme := pkix.Name{CommonName: "acct_1", OrganizationalUnit: []string{"Acme"}}
	many := make([]string, 100)
	for i := range many {
		many[i] = fmt.Sprintf("%03d.example", i)
	}
	s := serve(t, false, okHandler)
	for name, tc := range map[string]struct {
		scope       string
		certificate x509.Certificate
		unverified  bool
		want        string // "" for a refusal, "*" for any
	}{
		"subject":            {"mtls", x509.Certificate{Subject: acme}, false, "CN=acct_1,OU=Acme"},
		"SPIFFE":             {"mtls", x509.Certificate{Subject: pkix.Name{Organization: []string{"SPIRE"}}, URIs: uri("spiffe://td/pay"), DNSNames: []string{"pay"}}, false, "uri:spiffe://td/pay"},
		"SAN only":           {"mtls", x509.Certificate{DNSNames: []string{"Acme.Example"}}, false, "dns:acme.example"},
		"two URIs":           {"mtls", x509.Certificate{URIs: uri("spiffe://td/b", "spiffe://td/a")}, false, "uris:13:spiffe://td/a,13:spiffe://td/b,"},
		"two DNS names":      {"mtls", x509.Certificate{DNSNames: []string{"b.example", "a.example", "a.example"}}, false, "dnss:9:a.example,9:b.example,"},
		"very many":          {"mtls", x509.Certificate{DNSNames: many}, false, "*"},
		"no name":            {"mtls", x509.Certificate{}, false, ""},
		"unverified":         {"mtls", x509.Certificate{Subject: acme}, true, ""},
		"only subject":       {"mtls:subject", x509.Certificate{Subject: acme, URIs: uri("spiffe://td/pay")}, false, "CN=acct_1,OU=Acme"},
		"only URI":           {"mtls:uri", x509.Certificate{Subject: acme, DNSNames: []string{"a.example"}}, false, ""},
		"only DNS":           {"mtls:dns", x509.Certificate{Subject: acme, DNSNames: []string{"a.example"}, URIs: uri("spiffe://td/pay")}, false, "dns:a.example"},
		"with something":     {"[mtls:uri, host]", x509.Certificate{URIs: uri("spiffe://td/pay")}, false, "19:uri:spiffe://td/pay,11:example.com,"},
		"nothing beside it":  {"[mtls:dns, host]", x509.Certificate{URIs: uri("spiffe://td/pay")}, false, ""},
		"subject of nothing": {"mtls:subject", x509.Certificate{DNSNames: []string{"a.example"}}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(yamlFor(s.URL, "http1", "scope: "+tc.scope+"\n"))), env(nil))
			if err != nil {
				t.Fatal(err)
			}
			p, err := proxy.New(memory.New(memory.Options{}), c, proxy.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			r := httptest.NewRequest("POST", "/payments", strings.NewReader("{}"))
			r.Header.Set("Idempotency-Key", "k")
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{&tc.certificate}}
			if !tc.unverified {
				r.TLS.VerifiedChains = [][]*x509.Certificate{{&tc.certificate}}
			}
			w := httptest.NewRecorder()
			p.ServeHTTP(w, r)
			if tc.want == "" {
				if w.Code != 403 {
					t.Errorf("got %d %s; want w.Code == 403", w.Code, w.Body)
				}
				return
			}
			if w.Code != 200 || tc.want != "*" && !strings.Contains(w.Body.String(), store.Digest("", tc.want, "k").String()) {
				t.Errorf("%d %s; want the scope %q", w.Code, w.Body, tc.want)
			}
		})
	}
}
