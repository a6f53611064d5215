// Package proxy protects an HTTP service in any language. It is stethttp's middleware before a
// reverse proxy that sends no request twice.
//
//	config, err := proxy.Parse("stet.yaml", file, os.LookupEnv)
//	…
//	p, err := proxy.New(store, config, proxy.Options{})
//	…
//	http.ListenAndServe(config.Listen, p)
//
// # Requests to the service
//
// A request that is not safe (RFC 9110, section 9.2.1) is sent once, protected or not. The
// standard library's transport would repeat a request with an Idempotency-Key if a reused
// connection breaks; the proxy prevents that. A protected request continues after its client
// has left. It has the fields HeaderOperation, HeaderScope, HeaderFence and HeaderAttempt. No
// client can set them.
//
// # Unknown outcomes
//
// If no byte of a protected request was sent, nothing was executed, and a retry runs again. If
// the service was reached and its response is not complete, the outcome is unknown. The client
// receives 504 (outcome-unknown), and no retry is sent until Verify or an operator resolves the
// operation. Responses of the service, also 502 and 504, are stored and replayed, unless
// Route.Unknown lists them.
//
// # Services that settle
//
// With settles: service on a route, the service writes the outcome itself, by SQL, in the
// transaction of its writes, with the claim in HeaderClaim. The record is then always right: a
// client receives the stored outcome, or, if there is none when the claim ends, the answer that
// nothing was executed. See docs/sql.md.
package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/dashboard"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// Options configure a Proxy beside its Config. The zero value is usable.
type Options struct {
	// Observer gets the engine's events. Default: none.
	Observer observe.Observer
	// ErrorLog receives errors, without keys and contents. Default: slog.Default().
	ErrorLog *slog.Logger
	// Audit receives the changes of operators: see dashboard.Options. Default: the handler of
	// ErrorLog.
	Audit slog.Handler
	// Store describes the store for operators, without a password.
	Store string
	// Around, if set, wraps the middleware that protects a handler: stettrace's
	// Tracer.Middleware makes spans there.
	Around func(protect func(http.Handler) http.Handler) func(http.Handler) http.Handler
	// Propagate, if set, adds header fields to a request to the service, whose context is ctx:
	// the trace context, for instance.
	Propagate func(ctx context.Context, h http.Header)
	// Access receives a record for each request, or for some of them: see Log. Default: none.
	Access slog.Handler
	// Parts are the background work of the proxy. Default: none.
	Parts Parts
}

// Proxy is the http.Handler for traffic. It is safe for concurrent use.
type Proxy struct {
	store  store.Store
	o      Options
	limits Limits
	memory memory
	health health
	totals
	lifetime

	mu     sync.Mutex // guards now, closed, active and peers
	active map[*requestState]struct{}
	peers  map[netip.Prefix]*peer
	now    *generation
}

// totals count since the Proxy was made, and observe.
type totals struct {
	unprotected unprotected
	writes      writes
	emits       emits
	messages    messages
	activity    dashboard.Activity
	busy, runs  atomic.Int64 // requests that were refused, and that are in flight
	requests    atomic.Int64 // of the access log
	sayBusy     seldom
}

// lifetime is the end of a Proxy.
type lifetime struct {
	draining atomic.Bool
	ending   context.Context // ends when the process must end
	ends     context.CancelFunc
	closed   bool
	old      sync.WaitGroup // generations that end
	end      func() error   // once
}

// New returns a proxy over store, which the caller closes after the proxy. The error
// lists all errors of the configuration.
func New(store store.Store, c *Config, o Options) (*Proxy, error) {
	if store == nil {
		return nil, errors.New("proxy: New needs a store")
	}
	if o.ErrorLog == nil {
		o.ErrorLog = slog.Default()
	}
	if o.Audit == nil {
		o.Audit = o.ErrorLog.Handler()
	}
	p := &Proxy{store: store, o: o, active: map[*requestState]struct{}{}, peers: map[netip.Prefix]*peer{}}
	p.unprotected.log, p.emits.log, p.messages.counts = o.ErrorLog, o.ErrorLog, map[MessageCount]uint64{}
	p.writes.next, p.health.parts = observe.Join(&p.activity, &p.health, o.Observer), map[string]bool{}
	p.ending, p.ends = context.WithCancel(context.Background())
	g, err := p.build(c)
	if err != nil {
		p.ends()
		return nil, err
	}
	p.limits = c.Limits
	p.memory.limit = int64(cmp.Or(c.Limits.Memory, DefaultMemory))
	p.now = g
	g.background.begin(o.ErrorLog, g.parts, &p.health)
	p.end = sync.OnceValue(p.close)
	return p, nil
}

// Reload replaces the configuration, or changes nothing if there is an error. Requests in flight
// continue with their configuration. It is an error to change Listen, TLS, Namespace, Limits
// other than Waiters, Store other than Timeout and SweepEvery, or Admin other than the tokens.
func (p *Proxy) Reload(c *Config) error {
	before := p.current().config
	if err := c.unchanged(before); err != nil {
		return err
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
	old.background.stop()
	if !p.draining.Load() {
		g.background.begin(p.o.ErrorLog, g.parts, &p.health)
	}
	p.old.Go(func() {
		old.requests.Wait()
		_ = old.close() // never fails
	})
	p.mu.Unlock()
	return nil
}

// Close ends the background work, and waits for it. Call http.Server.Shutdown first: Close cuts
// off running requests, and their outcome is unknown. After every call of Close has returned, the
// store can be closed.
func (p *Proxy) Close() error { return p.end() }

func (p *Proxy) close() error {
	p.ends()
	p.mu.Lock()
	p.closed = true
	g := p.now
	p.mu.Unlock()
	g.last()
	err := g.close()
	g.requests.Wait()
	p.old.Wait()
	return err
}

// current returns the generation that serves new requests.
func (p *Proxy) current() *generation {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// enter returns the generation that serves a request, nil if the proxy is closed. The caller
// calls its requests.Done.
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
		p.current().manner.refuse(w, &closing)
		return
	}
	defer g.requests.Done()
	v, r := p.newRequestState(w, r, g.manner)
	defer v.leave()
	if p.o.Access != nil {
		defer v.logAccess(r, g, time.Now())
	}
	if v.admitted(peerOf(r, g.config.Forwarded)) {
		g.serve(v, r)
	} else {
		v.refuseBusy()
	}
	v.end()
}

// Drain cuts off clients that neither send nor read, within seconds, and stops the background
// work. Call http.Server.Shutdown after it.
func (p *Proxy) Drain() {
	p.draining.Store(true)
	p.ends()
	p.mu.Lock()
	all := slices.Collect(maps.Keys(p.active))
	p.now.background.stop()
	for _, a := range p.now.waits {
		a.Close()
	}
	p.mu.Unlock()
	for _, v := range all {
		v.hurry()
	}
}

// stall is how long a client can make no progress.
func (p *Proxy) stall() time.Duration {
	d := cmp.Or(time.Duration(p.limits.Stall), DefaultStall)
	if p.draining.Load() {
		return min(d, drainStall)
	}
	return d
}

// generation is a configuration with its handlers and parts.
type generation struct {
	config    *Config
	manner    manner
	engine    *stet.Engine
	upstream  *url.URL
	transport serviceTransport // to the upstream
	elsewhere *http.Transport  // to authorization and verify URLs
	operators http.Handler
	requests  sync.WaitGroup
	serving
	working
}

// serving serves the requests of a generation.
type serving struct {
	routing     *routing
	pages       []*statusPage
	waits       []*stethttp.Async // of requests that wait for accepted operations
	reserved    *reservedHeaders
	passing     http.Handler
	unprotected *unprotected // requests that passed although they have a key
}

// working is the background work of a generation.
type working struct {
	targets    *targets
	relayer    *relayer             // nil: this process does not send messages
	verifiers  map[string]*verifier // by class
	consumers  []*consumer
	parts      []part
	background background
}

func (g *generation) close() error {
	for _, a := range g.waits {
		a.Close()
	}
	g.background.stop()
	g.background.wait()
	g.targets.close()
	err := g.engine.Close()
	g.transport.CloseIdleConnections()
	g.elsewhere.CloseIdleConnections()
	return err
}

func (g *generation) serve(w *requestState, r *http.Request) {
	if r.Method == http.MethodConnect {
		http.Error(w, "CONNECT is not supported", http.StatusMethodNotAllowed)
		return
	}
	if !isToken(r.Method) { // HTTP/2 lets others through
		w.manner.refuse(w, &methodInvalid)
		return
	}
	if w.target = targetOf(r, g.upstream); w.target == "" || !sendableHost(r.Host) {
		w.manner.refuse(w, &targetInvalid)
		return
	}
	if problem := g.reserved.wrong(r.Header); problem != nil {
		w.manner.refuse(w, problem)
		return
	}
	if i := slices.IndexFunc(g.pages, func(s *statusPage) bool { return s.is(r) }); i >= 0 {
		g.pages[i].ServeHTTP(w, r)
		return
	}
	rt, passed, problem := g.routing.find(r, g.reserved.keyed(r.Header))
	switch {
	case problem != nil:
		w.manner.refuse(w, problem)
	case rt != nil:
		if len(g.config.Routes) == 0 && !g.reserved.keyed(r.Header) {
			g.unprotected.keyless(r.Method)
		}
		w.class = rt.class()
		w.protect()
		rt.handler.ServeHTTP(w, r)
	default:
		g.unprotected.passed(r.Method, passed)
		g.passing.ServeHTTP(w, r)
	}
}

// build makes a generation. Its error lists all errors of the configuration.
func (p *Proxy) build(c *Config) (*generation, error) {
	checked, err := c.check(p.o.ErrorLog)
	if err == nil {
		err = c.settleable(p.store)
	}
	if err != nil {
		return nil, err
	}
	g := &generation{config: c, manner: c.manner(), upstream: checked.upstream, elsewhere: newTransport(Upstream{}),
		serving: serving{routing: newRouting(c.Unrouted), reserved: newReservedHeaders(), unprotected: &p.unprotected}}
	if g.transport, err = toService(c.Upstream); err != nil {
		return nil, c.place(err, "upstream")
	}
	if g.verifiers, err = c.verifiers(checked, g.transport, g.elsewhere, p.o.ErrorLog); err != nil {
		return nil, err
	}
	if g.targets, err = newTargets(c.Relay, p.o.ErrorLog); err != nil {
		return nil, err
	}
	o := stet.Options{Namespace: c.Namespace, Classes: checked.classes, Encryption: checked.encryption, Observer: &p.writes, ErrorLog: slog.New(slog.DiscardHandler),
		Label: c.scopeLabel(checked), StoreTimeout: time.Duration(c.Store.Timeout), SweepEvery: time.Duration(c.Store.SweepEvery), MaxWaiters: c.Limits.Waiters, CheckMessage: g.targets.check}
	if was := c.Previous; was != nil {
		o.ClaimPrevious = was.Claim
		o.Previous = func(_ context.Context, op stet.Op) (string, stet.Op) { return was.Namespace, op }
	}
	if g.engine, err = stet.New(p.store, o); err != nil {
		return nil, err
	}
	if err := p.fill(g, checked); err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

// fill adds the handlers and the parts of a generation.
func (p *Proxy) fill(g *generation, checked *checked) (err error) {
	c := g.config
	if err := g.relays(c, p.o); err != nil {
		return err
	}
	if g.operators, err = p.dashboard(g.engine, c, checked); err != nil {
		return err
	}
	if err := g.reconciles(p.o); err != nil {
		return err
	}
	f := newForwarder(c, checked.upstream, g.reserved, g.transport, p.o)
	f.budget = newBudget(c.NewRecords, p.o.ErrorLog)
	f.emits, f.targets = &p.emits, g.targets
	g.passing = f.handler(nil)
	for _, cr := range checked.all() {
		if err := p.buildRoute(g, &cr, f); err != nil {
			return err
		}
	}
	p.watchUnhandledWork(g)
	return p.consumes(g, checked, f)
}

// dashboard returns the handler for operators.
func (p *Proxy) dashboard(e *stet.Engine, c *Config, checked *checked) (http.Handler, error) {
	o := dashboard.Options{Tokens: c.tokens, Loopback: len(c.tokens) == 0, Namespace: c.Namespace, Store: p.o.Store, Audit: p.o.Audit, ErrorLog: p.o.ErrorLog, Activity: &p.activity}
	for _, cr := range slices.Concat(checked.all(), checked.consume) {
		o.Classes = append(o.Classes, cr.class())
	}
	return dashboard.New(e, o)
}

// String describes the routes, for a log.
func (c *Config) String() string {
	routes := "every path, for requests with a key,"
	if len(c.Routes) > 0 {
		routes = fmt.Sprintf("%d routes", len(c.Routes))
	}
	return fmt.Sprintf("%s of %s", routes, c.Upstream.URL)
}
