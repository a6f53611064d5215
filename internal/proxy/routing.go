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

// Values of Config.Unrouted.
const (
	unroutedProtect = "protect"
	unroutedRefuse  = "refuse"
	unroutedPass    = "pass"
	// unroutedClass is the class of protected requests that match no route.
	unroutedClass = "unrouted"
)

// routing finds the route of a request.
type routing struct {
	written  *http.ServeMux // the routes as they are written; its handlers are routes
	folded   *http.ServeMux // routes with case_insensitive, in lower case
	near     *http.ServeMux // all routes, by the common form of nearly
	methods  []string       // that are protected anywhere
	mode     string         // Config.Unrouted
	fallback *route         // of paths that no route names, if mode is unroutedProtect
}

func newRouting(mode string) *routing {
	return &routing{
		written: http.NewServeMux(), folded: http.NewServeMux(), near: http.NewServeMux(),
		methods: []string{http.MethodPost, http.MethodPatch}, mode: cmp.Or(mode, unroutedProtect),
	}
}

// add adds a route. It returns an error if its path conflicts with another.
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
	// If two routes are near each other, the first one counts.
	_ = register(t.near, rt, lowered(rt.Path))
	if other := otherSlash(rt.Path); other != "" {
		_ = register(t.near, rt, lowered(other))
	}
	return nil
}

// register adds a route to a mux under a path.
func register(mux *http.ServeMux, rt *route, path string) (err error) {
	defer func() {
		if v := recover(); v != nil { // http.ServeMux panics
			text, _, _ := strings.Cut(registered.ReplaceAllString(fmt.Sprint(v), ""), "\n")
			err = fmt.Errorf("%s", strings.TrimSuffix(text, ":"))
		}
	}()
	for _, method := range rt.methods() {
		mux.Handle(method+" "+path, rt)
	}
	return nil
}

// registered matches the code positions in an error of http.ServeMux.
var registered = regexp.MustCompile(`http: | \(registered at [^)]*\)`)

// otherSlash adds a slash to the end of a pattern, or removes it; "" if that is not possible.
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

// lowered returns a pattern in lower case. The names of wildcards are unchanged.
func lowered(pattern string) string {
	segments := strings.Split(pattern, "/")
	for i, s := range segments {
		if !strings.HasPrefix(s, "{") {
			segments[i] = strings.ToLower(s)
		}
	}
	return strings.Join(segments, "/")
}

// find returns the route that protects a request, or the problem that the request is refused
// with. If both are nil, the request passes. passed then says why, unless the request has no key.
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

// overridden reports whether a service can take a request for one of this method, because of a
// field of its header.
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

// nearContent reports whether the path is nearly that of a route with keys in the content, which
// is not read here.
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

// named returns the route that matches the request's path. A route that protects has precedence
// over a route that passes.
func (t *routing) named(r *http.Request) *route {
	asSent, _ := t.written.Handler(r) // of another type if it redirects to the clean path
	rt, _ := asSent.(*route)
	if rt != nil && !rt.Pass {
		return rt
	}
	// A service, or a gateway before it, can decode and clean the path, or take it for the root
	// of a tree.
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

// maxDecoded is how often a path is decoded.
const maxDecoded = 3

// nearly returns a common form of all paths that a service can take for one: in another case,
// with or without a final slash, with parameters of segments (";x=1") or a fragment, with
// backslashes, and encoded more than once.
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

// literal reports whether a route matches one path only.
func (rt *route) literal() bool {
	return !strings.HasSuffix(rt.Path, "/") && !strings.Contains(strings.TrimSuffix(rt.Path, "/{$}"), "{")
}

// ServeHTTP makes a route an http.Handler, which http.ServeMux needs.
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

// checkUnrouted checks the route of paths that no route names.
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

// commonScope returns the scope of all routes, if they have the same.
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
