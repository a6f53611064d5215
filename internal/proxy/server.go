package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/internal/dashboard"
	"github.com/stet-go/stet/store"
)

// Config returns the configuration of a listener with TLS.
func (t *TLS) Config() (*tls.Config, error) {
	pair, err := keyPair(t.Certificate, t.Key)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{Certificates: pair, MinVersion: tls.VersionTLS12}
	if t.ClientCA != "" {
		config.ClientAuth = tls.RequireAndVerifyClientCert
		config.ClientCAs, err = authorities("client_ca", t.ClientCA)
	}
	return config, err
}

// AdminHandler is the http.Handler for operators, on a listener of its own:
//
//   - /healthz: 200 as long as the process serves;
//   - /readyz: 200 when the store answers, 503 when not, and while draining. While the store
//     answers reads and no write succeeds (its disk is full), 200 with a text that begins with
//     "degraded", because stored responses are still replayed. /readyz?verbose has a line more
//     for the store, the last sweep, and each worker and relay;
//   - /metrics, if there is a handler for it;
//   - the page and the API of package dashboard, at the root.
//
// With tokens, the metrics and the API need one. Without tokens, the listener must be
// on the loopback interface, operations can only be looked at, and requests must name
// this host, because a web page may have its own host name resolved to it.
type AdminHandler struct {
	proxy    *Proxy
	metrics  http.Handler
	draining atomic.Bool
}

// NewAdmin returns the handler for operators of a proxy. metrics can be nil.
func NewAdmin(p *Proxy, metrics http.Handler) *AdminHandler {
	return &AdminHandler{proxy: p, metrics: metrics}
}

// Drain makes /readyz answer 503 from now on.
func (a *AdminHandler) Drain() { a.draining.Store(true) }

// readyTimeout bounds how long /readyz waits for the store.
const readyTimeout = 2 * time.Second

// adminTimeout bounds how long a request of an operator may take in all.
const adminTimeout = time.Minute

// ServeHTTP implements http.Handler.
func (a *AdminHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	control, end := http.NewResponseController(w), time.Now().Add(adminTimeout)
	_ = control.SetReadDeadline(end) // a server without deadlines has its own
	_ = control.SetWriteDeadline(end)
	w.Header().Set("Cache-Control", "no-store")
	switch r.URL.Path {
	case "/healthz":
		fmt.Fprintln(w, "ok")
	case "/readyz":
		a.serveReady(w, r)
	case "/metrics":
		tokens := a.proxy.current().config.tokens
		_, known := dashboard.Bearer(r, tokens)
		switch {
		case len(tokens) == 0 && !admin.FromThisHost(r):
			http.Error(w, "without a token, only this host is answered, and only by a name of its loopback interface", http.StatusForbidden)
		case len(tokens) > 0 && !known:
			w.Header().Set("WWW-Authenticate", admin.Challenge(r))
			http.Error(w, "the admin listener's bearer token is required", http.StatusUnauthorized)
		case a.metrics == nil:
			http.NotFound(w, r)
		default:
			a.metrics.ServeHTTP(w, r)
		}
	default:
		g := a.proxy.enter() // a reload does not change the engine of a request
		if g == nil {
			a.proxy.current().manner.refuse(w, &closing)
			return
		}
		defer g.requests.Done()
		g.operators.ServeHTTP(w, r)
	}
}

func (a *AdminHandler) serveReady(w http.ResponseWriter, r *http.Request) {
	now, text, status := time.Now(), "ready", http.StatusOK
	failed := a.reads(r.Context())
	switch {
	case a.draining.Load():
		text, status = "draining", http.StatusServiceUnavailable
	case failed != nil:
		text, status = failed.Error(), http.StatusServiceUnavailable
	default:
		text = cmp.Or(a.proxy.writes.degraded(now), text)
	}
	if r.URL.Query().Has("verbose") {
		text += "\nstore: " + cmp.Or(errorText(failed), "it answers") + a.proxy.health.text(now)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintln(w, text)
}

// errorText is the text of an error, "" if there is none.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// reads reports whether the store answers.
func (a *AdminHandler) reads(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if _, err := a.proxy.store.Read(ctx, store.Digest("stet readyz", "-", "-")); err != nil {
		return errors.New("the store does not answer") // its error may name hosts
	}
	return nil
}
