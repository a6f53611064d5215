package stethttp

import (
	"log/slog"
	"net/http"
	"reflect"
	"regexp"
	"runtime"
	"strings"
)

// fiberAdaptor is the file of Fiber's adaptor for middleware of net/http, in Fiber 3 and 2
// and in the module of its own that it was.
var fiberAdaptor = regexp.MustCompile(`github\.com/gofiber/(fiber(/v\d+)?(@[^/]+)?/middleware/adaptor|adaptor(/v\d+)?(@[^/]+)?)/adaptor\.go$`)

// miswired returns a known fault in the wiring of a handler, or "".
//
// Fiber's adaptor.HTTPMiddleware calls its middleware with a handler that does nothing, and
// calls the real one after the middleware has returned. Its response would then replace any
// response of this middleware.
func miswired(next http.Handler) string {
	f, ok := next.(http.HandlerFunc)
	if !ok {
		return ""
	}
	fn := runtime.FuncForPC(reflect.ValueOf(f).Pointer())
	if fn == nil || !strings.Contains(fn.Name(), "HTTPMiddleware") { // inlined, it has the caller's package
		return ""
	}
	if file, _ := fn.FileLine(fn.Entry()); fiberAdaptor.MatchString(file) {
		return "Fiber's adaptor.HTTPMiddleware calls the handler when this middleware has returned, so that nothing of it can be protected. Use stetfiber.Middleware"
	}
	return ""
}

// refuseWiring refuses a request that could not be protected.
func (g *guard) refuseWiring(w http.ResponseWriter, r *http.Request) {
	g.m.log().ErrorContext(r.Context(), "stethttp: a request could not be protected, so it is refused; nothing was executed", slog.String("error", g.wrong))
	g.m.refuse(w, &misconfigured, "", 0)
}

// redirectHandler is what http.ServeMux has for a path that lacks a slash, or is not clean.
var redirectHandler = reflect.TypeOf(http.RedirectHandler("/", http.StatusTemporaryRedirect))

// unrouted reports whether the protected handler is a mux that has no route for a request,
// or that redirects it to another path: there is nothing to execute, and the key is still
// needed for the right path.
func (g *guard) unrouted(r *http.Request) bool {
	mux, ok := g.next.(*http.ServeMux)
	if !ok {
		return false
	}
	h, pattern := mux.Handler(r)
	return pattern == "" || reflect.TypeOf(h) == redirectHandler
}
