package proxy

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
)

// Config returns the configuration of a listener with TLS.
func (t *TLS) Config() (*tls.Config, error) {
	if t.Certificate == "" || t.Key == "" {
		return nil, errors.New("it needs a certificate and its key")
	}
	certificate, err := tls.LoadX509KeyPair(t.Certificate, t.Key)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	if t.ClientCA != "" {
		pem, err := os.ReadFile(t.ClientCA)
		if err != nil {
			return nil, err
		}
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("client_ca: %s has no certificate in PEM", t.ClientCA)
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return config, nil
}

// AdminHandler is the http.Handler for operators, on a listener of its own:
//
//   - /healthz: 200 as long as the process serves;
//   - /readyz: 200 when the store answers, 503 when not, and while draining;
//   - /metrics, if there is a handler for it.
type AdminHandler struct {
	store    stet.Store
	token    string
	metrics  http.Handler
	draining atomic.Bool
}

// NewAdmin returns the handler for operators. metrics may be nil.
func NewAdmin(store stet.Store, token string, metrics http.Handler) *AdminHandler {
	return &AdminHandler{store: store, token: token, metrics: metrics}
}

// Drain makes /readyz say no from now on, so that no more traffic is sent.
func (a *AdminHandler) Drain() { a.draining.Store(true) }

// readyTimeout bounds how long /readyz waits for the store.
const readyTimeout = 2 * time.Second

// ServeHTTP implements http.Handler.
func (a *AdminHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	switch r.URL.Path {
	case "/healthz":
		fmt.Fprintln(w, "ok")
	case "/readyz":
		if err := a.ready(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	default:
		if !a.allowed(r) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="stet"`)
			http.Error(w, "the admin listener's bearer token is required", http.StatusUnauthorized)
			return
		}
		if a.metrics != nil && r.URL.Path == "/metrics" {
			a.metrics.ServeHTTP(w, r)
			return
		}
		http.NotFound(w, r)
	}
}

func (a *AdminHandler) ready(ctx context.Context) error {
	if a.draining.Load() {
		return errors.New("draining")
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if _, err := a.store.Read(ctx, stet.Digest("stet readyz", "-", "-")); err != nil {
		return errors.New("the store does not answer") // its error may name hosts
	}
	return nil
}

// allowed compares digests, which have one length, so that the time it takes
// tells nothing.
func (a *AdminHandler) allowed(r *http.Request) bool {
	if a.token == "" {
		return true
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	got, want := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(a.token))
	return ok && subtle.ConstantTimeCompare(got[:], want[:]) == 1
}
