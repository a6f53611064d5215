package main

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// ownCertificate writes a certificate of 127.0.0.1 that is its own authority, and its key.
func ownCertificate(t *testing.T) (certificate, key string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(nil, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certificate, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, block := range map[string]*pem.Block{certificate: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate, key
}

func TestAdminListenerSpeaksTLS(t *testing.T) {
	b := openBooks(t, func() {})
	certificate, key := ownCertificate(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "stet.yaml")
	yaml := fmt.Sprintf("listen: 127.0.0.1:0\nupstream: {url: '%s'}\nscope: single-tenant\nstore: %s/s.db\nadmin: {tls: {certificate: %s, key: %s}, tokens: [{name: grafana, token: %s}]}\n",
		b.URL, dir, certificate, key, adminToken)
	if err := os.WriteFile(config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(adminVariable, "")
	p := startProxy(t, "--config", config)
	if !strings.HasPrefix(p.admin, "https://127.0.0.1:") {
		t.Fatalf("it listens at %s", p.admin)
	}
	trusted, err := os.ReadFile(certificate)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots}}, Timeout: 30 * time.Second}
	for token, want := range map[string]int{adminToken: 200, "": 401} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", p.admin+"/metrics", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != want || want == 200 && !strings.Contains(string(body), "stet_") {
			t.Errorf("%q: %d %s", token, res.StatusCode, body)
		}
	}
	if res, err := oneShot.Get(strings.Replace(p.admin, "https:", "http:", 1) + "/metrics"); err == nil {
		_ = res.Body.Close()
		if res.StatusCode != 400 {
			t.Errorf("without TLS: %d", res.StatusCode)
		}
	}
}
