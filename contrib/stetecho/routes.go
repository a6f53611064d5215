package stetecho

import (
	"net/http"
	"reflect"
	"sync"

	"github.com/labstack/echo/v5"
)

// own are Echo's own handlers for requests without a route. They are not exported; a router
// without options has them.
var own = sync.OnceValue(func() (handlers [2]uintptr) {
	router := echo.NewRouter(echo.RouterConfig{})
	if _, err := router.Add(echo.Route{Method: http.MethodGet, Path: "/", Handler: func(*echo.Context) error { return nil }}); err != nil {
		return handlers
	}
	for i, path := range []string{"/not-found", "/"} {
		r, err := http.NewRequest(http.MethodPost, path, http.NoBody)
		if err != nil {
			return handlers
		}
		handlers[i] = reflect.ValueOf(router.Route(echo.NewContext(r, nil))).Pointer()
	}
	return handlers
})

// isEchosOwn reports whether h is one of them.
func isEchosOwn(h echo.HandlerFunc) bool {
	p, handlers := reflect.ValueOf(h).Pointer(), own()
	return p == handlers[0] || p == handlers[1]
}

// unrouted reports whether there is no handler to protect: the request has no route, and the
// router no handler of the service for such requests (echo.RouterConfig). The handler of a
// context is not exported; if reflection does not find the field, the request is protected.
func unrouted(c *echo.Context) bool {
	switch c.RouteInfo().Name {
	case echo.NotFoundRouteName, echo.MethodNotAllowedRouteName:
	default:
		return false
	}
	h := reflect.ValueOf(c).Elem().FieldByName("handler")
	if h.Kind() != reflect.Func || h.IsNil() {
		return false
	}
	handlers := own()
	return h.Pointer() == handlers[0] || h.Pointer() == handlers[1]
}

// echosOwn reports whether err is Echo's own error for a request without a route, behind other
// middleware of its group.
func echosOwn(c *echo.Context, err error) bool {
	if err != error(echo.ErrNotFound) && err != error(echo.ErrMethodNotAllowed) { //nolint:errorlint // not a handler's error that wraps it
		return false
	}
	return c.RouteInfo().Method == echo.RouteNotFound || unrouted(c)
}
