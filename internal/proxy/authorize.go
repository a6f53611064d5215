package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/stet-go/stet/stethttp"
)

// Authorize names a URL that decides whether a request is answered. It is called before the
// key is read, so a refused request leaves no record. Without it a stored response is also
// returned for credentials that the service no longer accepts.
type Authorize struct {
	URL     string   `yaml:"url"`
	Timeout Duration `yaml:"timeout"`
}

const (
	defaultAuthorizeTimeout = 5 * time.Second
	maxRefusal              = 64 << 10 // bytes of the content of a 401 or 403
)

// sideURL returns a URL of the configuration other than the upstream's.
func sideURL(raw string, upstream *url.URL) (*url.URL, error) {
	ref, err := url.Parse(raw)
	if err != nil || raw == "" {
		return nil, fmt.Errorf("%q is no URL", redact(raw))
	}
	u := upstream.ResolveReference(ref)
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%q is neither a URL of http or https, nor a path of the upstream", redact(raw))
	}
	return u, nil
}

// sideClient returns a client for a sideURL. It follows no redirects.
func sideClient(u, upstream *url.URL, toUpstream, elsewhere http.RoundTripper) *http.Client {
	c := &http.Client{Transport: elsewhere, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if u.Scheme == upstream.Scheme && u.Host == upstream.Host {
		c.Transport = toUpstream
	}
	return c
}

// authorize returns the Authorize of a route, else that of the configuration, else nil.
func (c *Config) authorize(r *Route) *Authorize {
	if r.Authorize != nil {
		return r.Authorize
	}
	return c.Authorize
}

// authorizer sends requests to next if the authorization URL allows them.
type authorizer struct {
	url       *url.URL
	sameHost  bool // it receives the Host of the request
	client    *http.Client
	timeout   time.Duration
	key       string // the header's name
	inContent bool   // a key can be in the content
	scope     extractor
	forwarded bool
	log       *slog.Logger
	next      http.Handler
	keyless   bool // requests without a key are checked, too
}

// ServeHTTP implements http.Handler. A request without a key or a scope needs no
// authorization: no record is read for it.
func (d *authorizer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if len(r.Header[d.key]) == 0 && !d.inContent && !d.keyless {
		d.next.ServeHTTP(w, r)
		return
	}
	scope, err := d.scope(r)
	if scope == "" || err != nil {
		d.next.ServeHTTP(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), d.timeout)
	defer cancel()
	res, err := d.client.Do(d.question(ctx, r, scope))
	if err != nil {
		if r.Context().Err() == nil {
			d.log.Warn("proxy: the authorization URL did not answer, so a request was refused", slog.String("url", d.url.Redacted()), slog.Any("error", plain(err)))
		}
		stateOf(r.Context()).manner.refuse(w, &authorizationUnavailable)
		return
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode >= 200 && res.StatusCode < 300:
		_, _ = io.CopyN(io.Discard, res.Body, maxRefusal) // the connection can be used again
		d.next.ServeHTTP(w, r)
	case res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden:
		pass(w, res)
	default:
		d.log.Warn("proxy: the authorization URL responded neither 2xx (allowed) nor 401 or 403 (not allowed), so a request was refused",
			slog.String("url", d.url.Redacted()), slog.Int("status", res.StatusCode))
		stateOf(r.Context()).manner.refuse(w, &authorizationUnavailable)
	}
}

// plain removes the URL from a client's error: it can have a password.
func plain(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// ownFields are fields of the request to the authorization URL that no client can set.
var ownFields = []string{"X-Original-Method", "X-Original-Uri", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded", "X-Real-Ip"}

// contentFields are about a request's content or the client's cache.
var contentFields = []string{"Content-Type", "Content-Encoding", "Content-Range", "Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range"}

// question is the request to the authorization URL.
func (d *authorizer) question(ctx context.Context, r *http.Request, scope string) *http.Request {
	q := (&http.Request{Method: http.MethodGet, URL: d.url, Header: r.Header.Clone(), Body: http.NoBody, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}).WithContext(ctx)
	if d.sameHost {
		q.Host = r.Host
	}
	for _, listed := range r.Header["Connection"] {
		for name := range strings.SplitSeq(listed, ",") {
			q.Header.Del(strings.TrimSpace(name))
		}
	}
	for name := range q.Header { // a service can take "_" for "-"
		is := http.CanonicalHeaderKey(strings.ReplaceAll(asVariable(name), "_", "-"))
		own := slices.Contains(ownFields, is) && (!d.forwarded || is != name || strings.HasPrefix(is, "X-Original-"))
		if own || is == d.key || slices.Contains(contentFields, is) || ofConnection(name) || strings.HasPrefix(is, "Stet-") {
			delete(q.Header, name)
		}
	}
	q.Header.Set("X-Original-Method", r.Method)
	original := r.RequestURI // as it was sent
	if !strings.HasPrefix(original, "/") {
		original = r.URL.RequestURI()
	}
	q.Header.Set("X-Original-Uri", original)
	q.Header.Set(HeaderScope, url.PathEscape(scope))
	setForwarded(&httputil.ProxyRequest{In: r, Out: q}, d.forwarded)
	return q
}

// pass returns the refusal of the authorization URL to the client.
func pass(w http.ResponseWriter, res *http.Response) {
	body, err := io.ReadAll(io.LimitReader(res.Body, maxRefusal+1))
	h := w.Header()
	for _, name := range []string{"WWW-Authenticate", "Content-Type", "Content-Encoding", "Content-Language", "Retry-After"} {
		name = http.CanonicalHeaderKey(name)
		if v, ok := res.Header[name]; ok {
			h[name] = v
		}
	}
	if err != nil || len(body) > maxRefusal {
		body = nil
		h.Del("Content-Type")
		h.Del("Content-Encoding")
	}
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(res.StatusCode)
	_, _ = w.Write(body)
}

// authorized returns next behind the route's authorizer, if it has one.
func (g *generation) authorized(c *Config, cr *checkedRoute, upstream *url.URL, log *slog.Logger, next http.Handler) (http.Handler, error) {
	a := c.authorize(&cr.Route)
	if a == nil {
		return next, nil
	}
	u, err := sideURL(a.URL, upstream)
	if err != nil {
		return nil, err
	}
	return &authorizer{
		url: u, sameHost: u.Host == upstream.Host, client: sideClient(u, upstream, g.transport, g.elsewhere),
		timeout:   cmp.Or(time.Duration(a.Timeout), defaultAuthorizeTimeout),
		key:       http.CanonicalHeaderKey(cmp.Or(cr.KeyHeader, stethttp.DefaultHeader)),
		inContent: cr.KeyPointer != "",
		scope:     cr.options.Scope, forwarded: c.Forwarded, log: log, next: next,
	}, nil
}
