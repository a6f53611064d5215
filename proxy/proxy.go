// Package proxy protects an HTTP service in any language: it is stethttp's
// middleware in front of a reverse proxy that sends nothing twice.
//
//	config, err := proxy.Parse("stet.yaml", file, os.LookupEnv)
//	…
//	p, err := proxy.New(store, config, proxy.Options{})
//	…
//	http.ListenAndServe(config.Listen, p)
//
// # What reaches the service
//
// A request that is not safe (RFC 9110, section 9.2.1) is sent once, protected
// or not: the standard library's transport, which repeats requests that carry an
// Idempotency-Key when a reused connection breaks, is kept from it. A protected
// request does not end when its client leaves. It has the fields HeaderOperation,
// HeaderFence and HeaderAttempt, which no client can set.
//
// # What is not known
//
// If no byte of a protected request was sent, nothing was executed, and a retry
// runs again. If the service was reached and its response does not come whole,
// nobody knows: the client is told so (504, outcome-unknown), nothing is stored
// as the outcome, and no retry is sent until Verify or an operator has found out
// what happened. Responses that the service itself gives, also those of 502 and
// 504, are stored and replayed, unless Route.Unknown lists them.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/dashboard"
	"github.com/stet-go/stet/stethttp"
)

// Options configure a Proxy beside its Config. The zero value is usable.
type Options struct {
	// Observer is told what happens. Default: nobody.
	Observer stet.Observer
	// ErrorLog gets what goes wrong; never a key or a body. Default
	// slog.Default().
	ErrorLog *slog.Logger
	// Audit gets the changes that operators make: see dashboard.Options.
	// Default: the handler of ErrorLog.
	Audit slog.Handler
	// Store says what the store is, for operators, without a password.
	Store string
	// Around, if set, is given what protects a handler, and returns what is
	// used in its place: stettrace's Tracer.Middleware makes spans there.
	Around func(protect func(http.Handler) http.Handler) func(http.Handler) http.Handler
	// Propagate, if set, adds fields to a request that is sent to the service,
	// whose context ctx is: where the trace goes on, for one.
	Propagate func(ctx context.Context, h http.Header)
}

// Proxy is the http.Handler for traffic. It is safe for concurrent use.
type Proxy struct {
	store stet.Store
	o     Options

	mu     sync.Mutex // guards now and closed
	now    *generation
	closed bool
	old    sync.WaitGroup // generations on their way out
	end    func() error   // once
}

// New returns a proxy over store, which stays the caller's to close, after the
// proxy. Everything that is wrong with the configuration is in the error.
func New(store stet.Store, c *Config, o Options) (*Proxy, error) {
	if store == nil {
		return nil, errors.New("proxy: New needs a store")
	}
	if o.ErrorLog == nil {
		o.ErrorLog = slog.Default()
	}
	if o.Audit == nil {
		o.Audit = o.ErrorLog.Handler()
	}
	p := &Proxy{store: store, o: o}
	g, err := p.build(c)
	if err != nil {
		return nil, err
	}
	p.now = g
	p.end = sync.OnceValue(p.close)
	return p, nil
}

// Reload replaces the configuration, or changes nothing if there is an error.
// Requests that are being served go on under the one that they began with. What
// a proxy is built around cannot change while it runs: Listen, Admin, TLS, Store
// and Namespace; but what is in Admin.TokenFile can.
func (p *Proxy) Reload(c *Config) error {
	p.mu.Lock()
	before := p.now.config
	p.mu.Unlock()
	for _, fixed := range []struct {
		name string
		same bool
	}{
		{"listen", before.Listen == c.Listen}, {"store", before.Store == c.Store}, {"namespace", before.Namespace == c.Namespace},
		{"admin", before.Admin == c.Admin}, {"tls", same(before.TLS, c.TLS)},
	} {
		if !fixed.same {
			return c.place(errors.New("it cannot change while the proxy runs; restart it"), fixed.name)
		}
	}
	g, err := p.build(c)
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return errors.Join(errors.New("proxy: closed"), g.close())
	}
	before.root = nil // not read again
	old := p.now
	p.now = g
	p.old.Go(func() {
		old.requests.Wait()
		_ = old.close() // never fails
	})
	p.mu.Unlock()
	return nil
}

func same[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// Close ends what the proxy does in the background. End its requests first, as
// http.Server.Shutdown does: those of a run that is still going on are cut off,
// and their outcome is unknown. Each call returns when all has ended, so that the
// store can be closed then.
func (p *Proxy) Close() error { return p.end() }

func (p *Proxy) close() error {
	p.mu.Lock()
	p.closed = true
	g := p.now
	p.mu.Unlock()
	err := g.close()
	g.requests.Wait()
	p.old.Wait()
	return err
}

// token is the one that operators must have now.
func (p *Proxy) token() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now.config.token
}

// enter returns the generation that serves a request, whose requests.Done the
// caller calls; nil once the proxy is closed.
func (p *Proxy) enter() *generation {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.now.requests.Add(1)
	return p.now
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g := p.enter()
	if g == nil {
		refuse(w, &closing)
		return
	}
	defer g.requests.Done()
	g.serve(w, r)
}

// generation is a configuration at work.
type generation struct {
	config    *Config
	engine    *stet.Engine
	transport *http.Transport
	mux       *http.ServeMux // whose handlers are routes
	passing   http.Handler
	operators http.Handler
	headers   []string // of keys and scopes, in canonical form
	requests  sync.WaitGroup
}

func (g *generation) close() error {
	err := g.engine.Close()
	g.transport.CloseIdleConnections()
	return err
}

func (g *generation) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodConnect {
		http.Error(w, "CONNECT is for proxies of another kind", http.StatusMethodNotAllowed)
		return
	}
	if g.hides(r) {
		refuse(w, &keyHopByHop)
		return
	}
	if rt := g.route(r); rt != nil {
		rt.handler.ServeHTTP(w, r)
		return
	}
	g.passing.ServeHTTP(w, r)
}

// hides reports whether the Connection header would keep a key, or what tells
// whose it is, from reaching the service.
func (g *generation) hides(r *http.Request) bool {
	for _, v := range r.Header["Connection"] {
		for option := range strings.SplitSeq(v, ",") {
			if name := strings.TrimSpace(option); slices.ContainsFunc(g.headers, func(h string) bool { return strings.EqualFold(h, name) }) {
				return true
			}
		}
	}
	return false
}

// route returns the route of a request, nil if it is not protected.
func (g *generation) route(r *http.Request) *route {
	if rt := g.match(r); rt != nil {
		return rt
	}
	// A service, or what is before it, may well take the path for another one: for
	// what it is when decoded and clean, or for that of the tree that it is the
	// root of. They are protected alike.
	u := *r.URL
	u.Path, u.RawPath = clean(u.Path), ""
	again := *r
	again.URL = &u
	if rt := g.match(&again); rt != nil || strings.HasSuffix(u.Path, "/") {
		return rt
	}
	h, _ := g.mux.Handler(&again)
	if _, written := h.(*route); written { // to pass, by a route of its own
		return nil
	}
	u.Path += "/"
	if rt := g.match(&again); rt != nil && strings.HasSuffix(rt.Path, "/") {
		return rt
	}
	return nil
}

// match returns the route whose pattern matches, nil if it lets requests through.
func (g *generation) match(r *http.Request) *route {
	h, _ := g.mux.Handler(r) // of another type where it would send clients to the clean path
	rt, _ := h.(*route)
	if rt == nil || rt.Pass {
		return nil
	}
	return rt
}

// ServeHTTP makes a route a handler, for the mux to find.
func (rt *route) ServeHTTP(w http.ResponseWriter, r *http.Request) { rt.handler.ServeHTTP(w, r) }

// build makes a generation. An error has everything that is wrong.
func (p *Proxy) build(c *Config) (*generation, error) {
	checked, err := c.check(p.o.ErrorLog)
	if err != nil {
		return nil, err
	}
	g := &generation{config: c, mux: http.NewServeMux(), transport: newTransport(c.Upstream)}
	for _, cr := range checked.routes {
		if cr.Verify != nil {
			v, err := c.newVerifier(&cr.Route, checked.upstream, g.transport)
			if err != nil {
				return nil, err
			}
			cr.policy.Verify = v.verify
		}
		checked.classes[cr.class()] = cr.policy
	}
	g.engine, err = stet.New(p.store, stet.Options{Namespace: c.Namespace, Classes: checked.classes, Observer: p.o.Observer})
	if err != nil {
		return nil, err
	}
	if g.operators, err = p.dashboard(g.engine, c, checked); err != nil {
		return nil, errors.Join(err, g.close())
	}
	f := newForwarder(c, checked.upstream, g.transport, p.o)
	g.passing = f.handler(nil)
	g.headers = []string{"X-Idempotency-Key"}
	for _, cr := range checked.routes {
		rt := &route{Route: cr.Route, h2c: c.Upstream.Protocol == "h2c"}
		if v := cr.Verify; v != nil {
			policy, _ := g.engine.Policy(cr.class())
			if rt.after = policy.Lease; v.After.Set {
				rt.after = v.After.Duration
			}
		}
		m, err := stethttp.New(g.engine, cr.options)
		if err != nil {
			return nil, errors.Join(err, g.close())
		}
		protect := m.Handler
		if p.o.Around != nil {
			protect = p.o.Around(protect)
		}
		rt.handler = deadline(protect(f.handler(rt)))
		g.headers = append(g.headers, orDefault(http.CanonicalHeaderKey(rt.KeyHeader), stethttp.DefaultHeader))
		g.headers = append(g.headers, c.scope(&rt.Route).headers()...)
		for _, pattern := range cr.patterns() {
			g.mux.Handle(pattern, rt)
		}
	}
	return g, nil
}

// dashboard returns what operators work at.
func (p *Proxy) dashboard(e *stet.Engine, c *Config, checked *checked) (http.Handler, error) {
	o := dashboard.Options{Token: c.token, Loopback: c.token == "", Namespace: c.Namespace, Store: p.o.Store, Audit: p.o.Audit, ErrorLog: p.o.ErrorLog}
	for _, cr := range checked.routes {
		o.Classes = append(o.Classes, cr.class())
	}
	return dashboard.New(e, o)
}

// String returns what is protected, in a few words, for a log.
func (c *Config) String() string {
	routes := "every path"
	if len(c.Routes) > 0 {
		routes = fmt.Sprintf("%d routes", len(c.Routes))
	}
	return fmt.Sprintf("%s of %s", routes, c.Upstream.URL)
}
