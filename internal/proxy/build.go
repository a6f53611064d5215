package proxy

import (
	"cmp"
	"log/slog"
	"net/http"
	"reflect"
	"slices"

	"github.com/stet-go/stet/stethttp"
)

// buildRoute adds a route to a generation.
func (p *Proxy) buildRoute(g *generation, cr *checkedRoute, f *forwarder) error {
	c := g.config
	rt := g.newRoute(cr)
	m, err := stethttp.New(g.engine, cr.options)
	if err != nil {
		return err
	}
	protect := m.Handler
	if cr.Async != nil {
		a, err := p.accepting(g, cr, rt, f, m)
		if err != nil {
			return err
		}
		protect = func(http.Handler) http.Handler { return a }
	}
	if p.o.Around != nil {
		protect = p.o.Around(protect)
	}
	inner := protect(f.handler(rt))
	if rt.MCP != nil {
		inner = &toolDoor{
			route: rt.MCP, limit: int64(cmp.Or(rt.MaxBody, stethttp.DefaultMaxBody)), base: g.manner.base,
			replayed: cmp.Or(c.ReplayedHeader, stethttp.DefaultReplayedHeader),
			protect:  protect(&toolWatch{route: rt, next: f.handler(rt), log: p.o.ErrorLog}), pass: f.handler(rt),
		}
	}
	if rt.handler, err = g.authorized(c, cr, g.upstream, p.o.ErrorLog, inner); err != nil {
		return err
	}
	g.reserved.key(rt.KeyHeader)
	g.reserved.scope(c.scope(&rt.Route).headers()...)
	if cr.fallback {
		g.routing.fallback = rt
		return nil
	}
	return g.routing.add(rt)
}

// newRoute is a route without a handler.
func (g *generation) newRoute(cr *checkedRoute) *route {
	rt := &route{Route: cr.Route}
	if v := cr.Verify; v != nil {
		policy, _ := g.engine.Policy(cr.class())
		if rt.after = policy.Lease; v.After.Set {
			rt.after = v.After.Duration
		}
	}
	return rt
}

// accepting returns the handler that accepts a route's requests. It adds their status page and
// their worker to the generation.
func (p *Proxy) accepting(g *generation, cr *checkedRoute, rt *route, f *forwarder, m *stethttp.Middleware) (http.Handler, error) {
	a, err := newAccepting(g.config, cr, m, f.budget)
	if err != nil {
		return nil, err
	}
	g.waits = append(g.waits, a.async)
	if !slices.ContainsFunc(g.pages, func(s *statusPage) bool { return s.path == cr.Async.status() }) {
		s := &statusPage{path: cr.Async.status(), noCancel: cr.Async.NoCancel, reports: a.async.Status()}
		if s.handler, err = g.authorized(g.config, cr, g.upstream, p.o.ErrorLog, s.reports); err != nil {
			return nil, err
		}
		if d, ok := s.handler.(*authorizer); ok {
			d.keyless = true
		}
		g.pages = append(g.pages, s)
	}
	w := &worker{engine: g.engine, delivery: &delivery{p, f, rt, m, g.manner}, async: cr.Async, availability: g.config.newAvailability(g.upstream, p.o.ErrorLog.With(slog.String("worker", cr.class()))), drain: g.config.DrainTime(), ending: p.ending, options: p.o}
	if p.o.Parts&Workers != 0 && g.config.Worker != workerElsewhere {
		g.parts = append(g.parts, part{"worker of " + cr.class(), w.run})
	}
	return a, nil
}

// checkPages returns the errors of routes that cannot share a status page.
func (c *Config) checkPages(bad func(error, ...any)) {
	first := map[string]*Route{}
	for i, r := range c.Routes {
		if r.Async == nil {
			continue
		}
		path := r.Async.status()
		other, shared := first[path]
		switch {
		case !shared:
			first[path] = &c.Routes[i]
		case !reflect.DeepEqual(c.scope(&r), c.scope(other)) || !reflect.DeepEqual(c.authorize(&r), c.authorize(other)):
			bad(at("status", "%s is also where the operations of %s are served, whose callers are identified in another way; give this route another path", path, other.class()), "routes", i, "async")
		case r.Async.NoCancel != other.Async.NoCancel:
			bad(at("no_cancel", "%s is also where the operations of %s are served, for which it is another; give this route another status path", path, other.class()), "routes", i, "async")
		case !sameKeys(&r, other):
			bad(at("status", "%s is also where the operations of %s are served, whose keys are in another header, or read by other rules (key_header, key_policy, strict_key, fold_key_case); give this route another path", path, other.class()), "routes", i, "async")
		}
	}
}

// sameKeys reports whether two routes read keys by the same rules, so that a status page finds
// the operations of both.
func sameKeys(a, b *Route) bool {
	return http.CanonicalHeaderKey(cmp.Or(a.KeyHeader, stethttp.DefaultHeader)) == http.CanonicalHeaderKey(cmp.Or(b.KeyHeader, stethttp.DefaultHeader)) &&
		a.StrictKey == b.StrictKey && a.FoldKeyCase == b.FoldKeyCase && reflect.DeepEqual(a.KeyPolicy, b.KeyPolicy)
}
