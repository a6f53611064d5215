package proxy_test

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// certificate writes a certificate that is its own authority, good for servers and
// clients, and returns it with the files' names.
func certificate(t *testing.T) (pair tls.Certificate, certFile, keyFile string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "acct_1"}, DNSNames: []string{"example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(nil, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	pair = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, keyFile: {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return pair, certFile, keyFile
}

func TestClientsOfATLSListenerNeedACertificateWithTheirScope(t *testing.T) {
	pair, certFile, keyFile := certificate(t)
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, false, okHandler)
	c, err := proxy.Parse("stet.yaml", strings.NewReader(scoped(yamlFor(s.URL, "http1", "scope: mtls\ntls: {certificate: "+certFile+", key: "+keyFile+", client_ca: "+certFile+"}\n"))), env(nil))
	if err != nil {
		t.Fatal(err)
	}
	p, err := proxy.New(memory.New(memory.Options{}), c, proxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	srv := httptest.NewUnstartedServer(p)
	if srv.TLS, err = c.TLS.Config(); err != nil {
		t.Fatal(err)
	}
	srv.StartTLS()
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	for _, with := range []bool{false, true} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "example.com"}}}
		if with {
			client.Transport.(*http.Transport).TLSClientConfig.Certificates = []tls.Certificate{pair}
		}
		req, _ := http.NewRequestWithContext(t.Context(), "POST", srv.URL, strings.NewReader("{}"))
		req.Header.Set("Idempotency-Key", "k")
		res, err := client.Do(req)
		client.CloseIdleConnections()
		if (err == nil) != with {
			t.Fatalf("with a certificate %v: %v", with, err)
		}
		if err == nil {
			_ = res.Body.Close()
		}
	}
	if s.last().Get(proxy.HeaderOperation) != store.Digest("", "dns:example.com", "k").String() {
		t.Errorf("operation %s", s.last().Get(proxy.HeaderOperation))
	}
}
