package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
)

// renewed copies files over others.
func renewed(t *testing.T, from ...string) (over func(files ...string)) {
	t.Helper()
	return func(files ...string) {
		t.Helper()
		for i, file := range files {
			text, err := os.ReadFile(from[i])
			if err == nil {
				err = os.WriteFile(file, text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// shown is the certificate that a listener shows to a client with a certificate.
func shownBy(t *testing.T, url string, client tls.Certificate) ([]byte, error) {
	t.Helper()
	c, err := tls.Dial("tcp", strings.TrimPrefix(url, "https://"), &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{client}}) //nolint:gosec // it is compared
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if _, err := fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		return nil, err
	}
	if _, err := c.Read(make([]byte, 1)); err != nil { // with TLS 1.3, what the server says of a client's certificate comes now
		return nil, err
	}
	return c.ConnectionState().PeerCertificates[0].Raw, nil
}

func pairOf(t *testing.T, certificate, key string) tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// mutual is a service that shows a certificate, and demands that one.
func mutual(t *testing.T, certificate, key string) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.TLS = demanding(t, certificate, key)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

func TestSIGHUPLoadsRenewedCertificatesBehindTheSamePaths(t *testing.T) {
	cert, key := ownCertificate(t)
	next, nextKey := ownCertificate(t)
	before, after := pairOf(t, cert, key), pairOf(t, next, nextKey)
	old, renewedService := mutual(t, cert, key), mutual(t, next, nextKey)
	file := filepath.Join(t.TempDir(), "stet.yaml")
	write := func(upstream string) {
		text := fmt.Sprintf("listen: 127.0.0.1:0\nscope: single-tenant\nstore: %s\ntls: &tls {certificate: %[2]s, key: %[3]s, client_ca: %[2]s}\nadmin: {tls: *tls, listen: 127.0.0.1:0}\nupstream: {url: %[4]q, ca: %[2]s, certificate: %[2]s, key: %[3]s}\n",
			filepath.Join(t.TempDir(), "s.db"), cert, key, upstream)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(old.URL)
	p := startProxy(t, "--config", file)
	check := func(of tls.Certificate, other tls.Certificate) {
		t.Helper()
		for _, url := range []string{p.url, p.admin} {
			got, err := shownBy(t, url, of)
			if err != nil || string(got) != string(of.Certificate[0]) {
				t.Errorf("%s shows another certificate, or does not take the client's: %v", url, err)
			}
			if _, err := shownBy(t, url, other); err == nil {
				t.Errorf("%s takes a certificate of an authority that it does not have", url)
			}
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ForceAttemptHTTP2: true,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{of}}}} //nolint:gosec // it was compared
		res, err := client.Get(p.url)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != 200 || res.ProtoMajor != 2 {
			t.Errorf("%d by HTTP/%d; want 200 by HTTP/2", res.StatusCode, res.ProtoMajor)
		}
	}
	check(before, after)
	renewed(t, next)(cert) // its key is missing
	p.signal(syscall.SIGHUP)
	p.saysNow("was not reloaded")
	if got, err := shownBy(t, p.url, before); err != nil || string(got) != string(before.Certificate[0]) {
		t.Errorf("half of a pair was loaded: %v", err)
	}
	renewed(t, next, nextKey)(cert, key)
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte(strings.Replace(string(text), old.URL, renewedService.URL, 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGHUP)
	p.saysNow("the configuration was reloaded")
	check(after, before)
}

// A proxy that has flags only has files, too.
func TestSIGHUPWithoutAConfigurationFileLoadsRenewedCertificates(t *testing.T) {
	cert, key := ownCertificate(t)
	next, nextKey := ownCertificate(t)
	p := startProxy(t, "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--scope", "single-tenant", "--store", filepath.Join(t.TempDir(), "s.db"),
		"--tls-certificate", cert, "--tls-key", key)
	renewed(t, next, nextKey)(cert, key)
	p.signal(syscall.SIGHUP)
	p.saysNow("the configuration was reloaded")
	want := pairOf(t, next, nextKey)
	if got, err := shownBy(t, p.url, tls.Certificate{}); err != nil || string(got) != string(want.Certificate[0]) {
		t.Errorf("it shows the certificate of the start: %v", err)
	}
}

func TestStoreInRedisReconnectsWithRenewedCertificates(t *testing.T) {
	cert, key := ownCertificate(t)
	next, nextKey := ownCertificate(t)
	var now atomic.Pointer[tls.Config]
	now.Store(demanding(t, cert, key))
	link := rig.NewProxy(t, relayTLS(t, rig.Redis(t).Addr(), &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return now.Load(), nil }}))
	s, err := opened(t, "--store", "rediss://"+link.Addr()+"/0", "--store-prefix", "renewed", "--store-ca", cert, "--store-certificate", cert, "--store-key", key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(t.Context(), claimOf("a")); err != nil {
		t.Fatal(err)
	}
	renewed(t, next, nextKey)(cert, key)
	now.Store(demanding(t, next, nextKey))
	link.Cut()
	for i := range 20 { // the first may find the connection that was cut
		if _, err = s.Claim(t.Context(), claimOf(fmt.Sprint("b", i))); err == nil {
			return
		}
	}
	t.Errorf("no connection with the renewed certificates: %v", err)
}

// postgresByTLS is an address at which a PostgreSQL server is reached by TLS.
func postgresByTLS(t *testing.T, server string, config func() *tls.Config) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
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
			active.Go(func() {
				if _, err := io.ReadFull(c, make([]byte, 8)); err == nil { // SSLRequest
					_, _ = io.WriteString(c, "S")
				}
				forward(tls.Server(c, config()), server)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); active.Wait() })
	return l.Addr().String()
}

func TestStoreInPostgreSQLReconnectsWithRenewedCertificates(t *testing.T) {
	cert, key := ownCertificate(t)
	next, nextKey := ownCertificate(t)
	var now atomic.Pointer[tls.Config]
	now.Store(demanding(t, cert, key))
	place := rig.Postgres(t).Database(t)
	if status, _, errs := command(t, "migrate", "up", "--store", place); status != exitOK {
		t.Fatal(errs)
	}
	u, err := url.Parse(place)
	if err != nil {
		t.Fatal(err)
	}
	link := rig.NewProxy(t, postgresByTLS(t, u.Host, now.Load))
	u.Host = link.Addr()
	u.RawQuery = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {cert}, "sslcert": {cert}, "sslkey": {key}}.Encode()
	s, err := opened(t, "--store", u.String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(t.Context(), claimOf("a")); err != nil {
		t.Fatal(err)
	}
	renewed(t, next, nextKey)(cert, key)
	now.Store(demanding(t, next, nextKey))
	link.Cut()
	for i := range 20 { // the first may find connections that were cut
		if _, err = s.Claim(t.Context(), claimOf(fmt.Sprint("b", i))); err == nil {
			return
		}
	}
	t.Errorf("no connection with the renewed certificates: %v", err)
}
