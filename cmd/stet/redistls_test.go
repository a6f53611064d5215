package main

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
)

// behindTLS is an address at which a server is reached by TLS, by clients that have the
// certificate.
func behindTLS(t *testing.T, server, certificate, key string) string {
	t.Helper()
	return relayTLS(t, server, demanding(t, certificate, key))
}

// demanding is the TLS of a server that shows a certificate, and demands one of its authority.
func demanding(t *testing.T, certificate, key string) *tls.Config {
	t.Helper()
	pem, err := os.ReadFile(certificate)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return &tls.Config{Certificates: []tls.Certificate{pairOf(t, certificate, key)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
}

// relayTLS is an address at which a server is reached by that TLS.
func relayTLS(t *testing.T, server string, config *tls.Config) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	var active sync.WaitGroup
	active.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			active.Go(func() { forward(c, server) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); active.Wait() }) // after the stores have been closed
	return l.Addr().String()
}

// forward copies both ways between a connection and a server, until one of them ends it.
func forward(c net.Conn, server string) {
	defer c.Close()
	if c.(*tls.Conn).Handshake() != nil {
		return
	}
	up, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer up.Close()
	var back sync.WaitGroup
	back.Go(func() { _, _ = io.Copy(c, up); _ = c.Close() })
	_, _ = io.Copy(up, c)
	_ = up.Close()
	back.Wait()
}

func TestStoreInRedisKnowsItsServerByCertificates(t *testing.T) {
	certificate, key := ownCertificate(t)
	other, otherKey := ownCertificate(t)
	url := "rediss://" + behindTLS(t, rig.Redis(t).Addr(), certificate, key) + "/0"
	for name, tc := range map[string]struct {
		flags []string
		ok    bool
	}{
		"both":                {[]string{"--store-ca", certificate, "--store-certificate", certificate, "--store-key", key}, true},
		"no authority":        {[]string{"--store-certificate", certificate, "--store-key", key}, false},
		"another authority":   {[]string{"--store-ca", other, "--store-certificate", certificate, "--store-key", key}, false},
		"no certificate":      {[]string{"--store-ca", certificate}, false},
		"another certificate": {[]string{"--store-ca", certificate, "--store-certificate", other, "--store-key", otherKey}, false},
	} {
		s, err := opened(t, append([]string{"--store", url, "--store-prefix", "tls"}, tc.flags...)...)
		if (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			if _, err := s.Claim(t.Context(), claimOf("a")); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
