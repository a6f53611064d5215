package proxy

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// What Config.Unrouted can say.
const (
	unroutedProtect = "protect"
	unroutedRefuse  = "refuse"
	unroutedPass    = "pass"
	// unroutedClass is the class of what no route names, and is protected.
	unroutedClass = "unrouted"
)

// routing finds the route of a request.
type routing struct {
	written  *http.ServeMux // the routes as they are written; its handlers are routes
	folded   *http.ServeMux // those that say case_insensitive, in lower case
	near     *http.ServeMux // all of them, for what a service may take for their paths
	methods  []string       // that are protected anywhere
	mode     string         // Config.Unrouted
	fallback *route         // of what no route names, if mode is unroutedProtect
}

// newRouting returns one that has no routes yet.
func newRouting(mode string) *routing {
	return &routing{
		written: http.NewServeMux(), folded: http.NewServeMux(), near: http.NewServeMux(),
		methods: []string{http.MethodPost, http.MethodPatch}, mode: cmp.Or(mode, unroutedProtect),
	}
}

// add adds a route, or returns why its path is not acceptable beside the others'.
func (t *routing) add(rt *route) error {
	if !strings.HasPrefix(rt.Path, "/") {
		return at("path", "%q does not begin with a slash", rt.Path)
	}
	if err := register(t.written, rt, rt.Path); err != nil {
		return at("path", "%w", err)
	}
	paths := []string{rt.Path}
	if other := otherSlash(rt.Path); rt.TrailingSlash && other != "" {
		if err := register(t.written, rt, other); err != nil {
			return at("trailing_slash", "%w", err)
		}
		paths = append(paths, other)
	}
	if rt.CaseInsensitive {
		for _, p := range paths {
			if err := register(t.folded, rt, lowered(p)); err != nil {
				return at("case_insensitive", "%w", err)
			}
		}
	}
	for _, method := range rt.methods() {
		if !slices.Contains(t.methods, method) {
			t.methods = append(t.methods, method)
		}
	}
	// Of two routes that are near each other, the first one counts.
	_ = register(t.near, rt, lowered(rt.Path))
	if other := otherSlash(rt.Path); other != "" {
		_ = register(t.near, rt, lowered(other))
	}
	return nil
}

// register adds a route to a mux under a path.
func register(mux *http.ServeMux, rt *route, path string) (err error) {
	defer func() {
		if v := recover(); v != nil { // how http.ServeMux says no
			text, _, _ := strings.Cut(registered.ReplaceAllString(fmt.Sprint(v), ""), "\n")
			err = fmt.Errorf("%s", strings.TrimSuffix(text, ":"))
		}
	}()
	for _, method := range rt.methods() {
		mux.Handle(method+" "+path, rt)
	}
	return nil
}

// registered is what http.ServeMux says of the code that calls it.
var registered = regexp.MustCompile(`http: | \(registered at [^)]*\)`)

// otherSlash is the pattern of a path with a slash at the end for one without,
// and the other way round; "" if there is none.
func otherSlash(p string) string {
	switch {
	case strings.HasSuffix(p, "...}"):
		return ""
	case strings.HasSuffix(p, "/{$}"):
		return strings.TrimSuffix(p, "/{$}")
	case strings.HasSuffix(p, "/"):
		return strings.TrimSuffix(p, "/")
	default:
		return p + "/{$}"
	}
}

// lowered is a pattern in lower case, but for the names of its wildcards.
func lowered(pattern string) string {
	segments := strings.Split(pattern, "/")
	for i, s := range segments {
		if !strings.HasPrefix(s, "{") {
			segments[i] = strings.ToLower(s)
		}
	}
	return strings.Join(segments, "/")
}

// find returns the route that protects a request; nil if none does, and then
// passed says why that is worth telling: "" where the request has no key. A
// problem is why the request is refused.
func (t *routing) find(r *http.Request, keyed bool) (rt *route, passed string, problem *condition) {
	rt, passed, problem = t.byMethod(r, keyed)
	if rt != nil || problem != nil || !keyed {
		return rt, passed, problem
	}
	for _, method := range t.methods {
		if !overridden(r.Header, method) {
			continue
		}
		other := *r
		other.Method = method
		if rt, _, problem := t.byMethod(&other, keyed); rt != nil || problem != nil {
			return nil, "", &methodOverridden
		}
	}
	return nil, passed, nil
}

// overridden reports whether a service may take a request for one of this method,
// because a field of its header says so.
func overridden(h http.Header, method string) bool {
	for name, values := range h {
		switch asVariable(name) {
		case "X_HTTP_METHOD_OVERRIDE", "X_HTTP_METHOD", "X_METHOD_OVERRIDE":
			if slices.ContainsFunc(values, func(v string) bool { return strings.EqualFold(strings.Trim(v, " \t"), method) }) {
				return true
			}
		}
	}
	return false
}

// byMethod is find by the method that the request was sent with.
func (t *routing) byMethod(r *http.Request, keyed bool) (rt *route, passed string, problem *condition) {
	if slices.Contains(t.methods, strings.ToUpper(r.Method)) && strings.ToUpper(r.Method) != r.Method {
		return nil, "", &methodMisspelled
	}
	rt = t.named(r)
	switch {
	case rt != nil && !rt.Pass:
		return rt, "", nil
	case !keyed && !t.nearContent(r):
		return nil, "", nil
	case !slices.Contains(t.methods, r.Method):
		return nil, "its method is not protected", nil
	case rt == nil && t.otherMethod(r):
		return nil, "its route does not protect the method", nil
	case rt != nil && rt.literal(), t.mode == unroutedPass:
		return nil, t.whyPassed(rt), nil
	}
	near := look(t.near, r.Method, nearly(r.URL.Path))
	switch {
	case near != nil && !near.Pass && t.mode == unroutedRefuse:
		return nil, "", &unrouted
	case near != nil && !near.Pass:
		return near, "", nil
	case rt != nil:
		return nil, t.whyPassed(rt), nil
	case t.mode == unroutedRefuse:
		return nil, "", &unrouted
	}
	return t.fallback, "", nil
}

// nearContent reports whether the path is nearly that of a route whose keys may be in
// the content, where nothing is seen of them here.
func (t *routing) nearContent(r *http.Request) bool {
	near := look(t.near, r.Method, nearly(r.URL.Path))
	return near != nil && !near.Pass && near.KeyPointer != ""
}

func (t *routing) whyPassed(rt *route) string {
	if rt != nil {
		return "its route lets requests pass"
	}
	return "no route names its path"
}

// named returns the route that names the request's path, also one that lets it
// pass; of two, one that does not.
func (t *routing) named(r *http.Request) *route {
	asSent, _ := t.written.Handler(r) // of another type where it would send clients to the clean path
	rt, _ := asSent.(*route)
	if rt != nil && !rt.Pass {
		return rt
	}
	// A service, or what is before it, may well take the path for another one: for
	// what it is when decoded and clean, or for that of the tree that it is the
	// root of. They are protected alike.
	p := clean(r.URL.Path)
	again := look(t.written, r.Method, p)
	if again == nil && !strings.HasSuffix(p, "/") {
		if root := look(t.written, r.Method, p+"/"); root != nil && strings.HasSuffix(root.Path, "/") {
			again = root
		}
	}
	if again == nil || again.Pass {
		if folded := look(t.folded, r.Method, strings.ToLower(p)); folded != nil && (again == nil || !again.literal()) {
			again = folded
		}
	}
	if again != nil {
		return again
	}
	return rt
}

// otherMethod reports whether a route names the path, for other methods.
func (t *routing) otherMethod(r *http.Request) bool {
	return slices.ContainsFunc(t.methods, func(method string) bool {
		other := *r
		other.Method = method
		return t.named(&other) != nil
	})
}

// look returns the route of a clean path, nil if there is none.
func look(mux *http.ServeMux, method, path string) *route {
	h, _ := mux.Handler(&http.Request{Method: method, URL: &url.URL{Path: path}})
	rt, _ := h.(*route)
	return rt
}

// clean is a path as http.ServeMux cleans it.
func clean(p string) string {
	c := path.Clean("/" + p)
	if c != "/" && strings.HasSuffix(p, "/") {
		c += "/"
	}
	return c
}

// maxDecoded is how often what is decoded already is decoded again.
const maxDecoded = 3

// nearly is what all ways to write a path become that some service may take for
// the same: in other case, with a slash at the end or without, with parameters of
// segments (";x=1") or what looks like a fragment, with backslashes, and encoded
// more than once.
func nearly(p string) string {
	for range maxDecoded {
		decoded, err := url.PathUnescape(p)
		if err != nil || decoded == p {
			break
		}
		p = decoded
	}
	p, _, _ = strings.Cut(p, "#")
	segments := strings.Split(strings.ReplaceAll(p, `\`, "/"), "/")
	for i, s := range segments {
		segments[i], _, _ = strings.Cut(s, ";")
	}
	return path.Clean("/" + strings.ToLower(strings.Join(segments, "/")))
}

// literal reports whether a route names one path only.
func (rt *route) literal() bool {
	return !strings.HasSuffix(rt.Path, "/") && !strings.Contains(strings.TrimSuffix(rt.Path, "/{$}"), "{")
}

// ServeHTTP makes a route a handler, for the mux to find.
func (rt *route) ServeHTTP(w http.ResponseWriter, r *http.Request) { rt.handler.ServeHTTP(w, r) }

// unrouted returns the route of paths that no route names, nil if they are not protected.
func (c *Config) unrouted() *Route {
	if c.Unrouted == unroutedRefuse || c.Unrouted == unroutedPass || len(c.Routes) == 0 {
		return nil // without routes, every path is protected already
	}
	methods := (&Route{}).methods()
	for _, r := range c.Routes {
		methods = append(methods, r.methods()...)
	}
	return &Route{Path: "/", Name: unroutedClass, Key: "optional", Methods: slices.Compact(slices.Sorted(slices.Values(methods)))}
}

// checkUnrouted finds out what is wrong with what protects the rest.
func (c *Config) checkUnrouted(done *checked, logger *slog.Logger) error {
	r := c.unrouted()
	if r == nil {
		return nil
	}
	cr, err := c.checkRoute(*r, logger)
	if err != nil {
		return err
	}
	cr.fallback = true
	done.unrouted = &cr
	return nil
}

// commonScope is the scope that all routes say that they have, if it is one.
func (c *Config) commonScope() *Scope {
	var common *Scope
	for _, r := range c.Routes {
		switch {
		case r.Pass:
		case r.Scope == nil || common != nil && !reflect.DeepEqual(r.Scope, common):
			return nil
		default:
			common = r.Scope
		}
	}
	return common
}
