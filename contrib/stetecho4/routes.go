package stetecho4

import (
	"reflect"
	"runtime"
	"sync"

	"github.com/labstack/echo/v4"
)

// Echo's own handlers for requests without a route. A service may replace them.
var (
	notFound         = reflect.ValueOf(echo.NotFoundHandler).Pointer()
	methodNotAllowed = reflect.ValueOf(echo.MethodNotAllowedHandler).Pointer()
	notFoundName     = runtime.FuncForPC(notFound).Name()
)

// isEchosOwn reports whether h is one of them.
func isEchosOwn(h echo.HandlerFunc) bool {
	p := reflect.ValueOf(h).Pointer()
	return p == notFound || p == methodNotAllowed
}

// echosOwn reports whether err is Echo's own error for a request without a route, behind other
// middleware.
func echosOwn(c echo.Context, err error) bool {
	return (err == error(echo.ErrNotFound) || err == error(echo.ErrMethodNotAllowed)) && //nolint:errorlint // not a handler's error that wraps it
		c.Handler() != nil && isEchosOwn(c.Handler())
}

// routes caches the handlers of patterns, as a group with middleware registers two of its own
// with Echo's handler.
type routes struct{ known sync.Map } // handlers by pattern

// pattern is a pattern of an instance of Echo.
type pattern struct {
	e    *echo.Echo
	path string
}

// handlers has the methods of a pattern, and whether its RouteNotFound is Echo's own.
type handlers struct {
	methods map[string]bool
	own     bool
}

// without reports whether there is no handler to protect: next is Echo's own response to a
// request without a route.
func (rs *routes) without(c echo.Context, next echo.HandlerFunc) bool {
	if isEchosOwn(next) {
		return true
	}
	key := pattern{c.Echo(), c.Path()}
	if key.e == nil || key.path == "" {
		return false
	}
	known, ok := rs.known.Load(key)
	if !ok {
		known = find(key)
		rs.known.Store(key, known)
	}
	h := known.(handlers)
	return h.own && !h.methods[c.Request().Method]
}

// find reads the handlers of a pattern from the router.
func find(p pattern) handlers {
	h := handlers{methods: make(map[string]bool)}
	routers := []*echo.Router{p.e.Router()}
	for _, r := range p.e.Routers() { // of hosts
		routers = append(routers, r)
	}
	custom := false
	for _, router := range routers {
		for _, r := range router.Routes() {
			switch {
			case r.Path != p.path:
			case r.Method != echo.RouteNotFound:
				h.methods[r.Method] = true
			case r.Name == notFoundName:
				h.own = true
			default:
				custom = true
			}
		}
	}
	h.own = h.own && !custom
	return h
}
