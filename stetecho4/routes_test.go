package stetecho4_test

import (
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetecho4"
	"github.com/stet-go/stet/stethttp"
)

const (
	text404 = "{\"message\":\"Not Found\"}\n"
	text405 = "{\"message\":\"Method Not Allowed\"}\n"
)

// TestUnknownRouteIsNoOutcome, though Echo runs its middleware for it: the key is free.
func TestUnknownRouteIsNoOutcome(t *testing.T) {
	nothing := around(nil, nil)
	for name, wire := range map[string]func(e *echo.Echo, m echo.MiddlewareFunc) *echo.Group{
		"Use":        func(e *echo.Echo, m echo.MiddlewareFunc) *echo.Group { e.Use(m); return e.Group("/v1") },
		"group":      func(e *echo.Echo, m echo.MiddlewareFunc) *echo.Group { return e.Group("/v1", m) },
		"in a group": func(e *echo.Echo, m echo.MiddlewareFunc) *echo.Group { return e.Group("/v1", m, nothing) },
		"sub-group":  func(e *echo.Echo, m echo.MiddlewareFunc) *echo.Group { return e.Group("/v1", m).Group("", nothing) },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuard(t, stet.Options{}, stethttp.Options{})
			e := instance()
			v1 := wire(e, stetecho4.Middleware(g.Middleware))
			v1.POST("/payments", paid)
			v1.GET("/receipts", paid)
			url := serve(t, e) + "/v1"
			for range 2 {
				send(t, "POST", url+"/typo", "x").want(t, 404, text404, false)
				send(t, "POST", url+"/typo", "x", "Idempotency-Key", "-").want(t, 404, text404, false)
				r := send(t, "POST", url+"/receipts", "x")
				if name == "Use" {
					r.want(t, 405, text405, false)
					if r.header.Get("Allow") == "" {
						t.Errorf("the header is %v", r.header)
					}
				} else { // a group answers 404 for that
					r.want(t, 404, text404, false)
				}
			}
			send(t, "POST", url+"/payments", "x").want(t, 201, "paid", false)
			send(t, "POST", url+"/payments", "x").want(t, 201, "paid", true)
			if g.log.String() != "" {
				t.Error(g.log)
			}
		})
	}
}

// TestUnknownRouteBehindOtherMiddlewareIsNoOutcome either: what is inside may answer by
// itself, so that it is protected, but Echo's own answer is not kept.
func TestUnknownRouteBehindOtherMiddlewareIsNoOutcome(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := instance()
	inside := 0
	e.Use(stetecho4.Middleware(g.Middleware), around(func(echo.Context) { inside++ }, nil))
	e.GET("/receipts", paid)
	url := serve(t, e)
	for range 2 {
		send(t, "POST", url+"/typo", "x").want(t, 404, text404, false)
		send(t, "POST", url+"/receipts", "x").want(t, 405, text405, false)
	}
	if inside != 4 {
		t.Errorf("%d runs inside", inside)
	}
}

// TestHandlerForUnknownRoutesIsProtected: it may be a proxy.
func TestHandlerForUnknownRoutesIsProtected(t *testing.T) {
	for name, wire := range map[string]func(e *echo.Echo, m echo.MiddlewareFunc, h echo.HandlerFunc){
		"Use":   func(e *echo.Echo, m echo.MiddlewareFunc, h echo.HandlerFunc) { e.Use(m); e.RouteNotFound("/*", h) },
		"group": func(e *echo.Echo, m echo.MiddlewareFunc, h echo.HandlerFunc) { e.Group("", m).RouteNotFound("/*", h) },
		"route": func(e *echo.Echo, m echo.MiddlewareFunc, h echo.HandlerFunc) { e.RouteNotFound("/*", h, m) },
	} {
		g := newGuard(t, stet.Options{}, stethttp.Options{})
		e := instance()
		runs := 0
		wire(e, stetecho4.Middleware(g.Middleware), func(c echo.Context) error { runs++; return paid(c) })
		url := serve(t, e)
		for i := range 2 {
			send(t, "POST", url+"/elsewhere", "x").want(t, 201, "paid", i > 0)
		}
		if runs != 1 {
			t.Errorf("%s: %d runs", name, runs)
		}
	}
}

// TestMiddlewareBeforeRoutingProtects, by Pre: the operation has no pattern for a name.
func TestMiddlewareBeforeRoutingProtects(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := instance()
	e.Pre(stetecho4.Middleware(g.Middleware))
	e.POST("/orders/:id", func(c echo.Context) error {
		return c.String(201, c.Param("id")+" "+stet.FromContext(c.Request().Context()).Op().Name)
	})
	url := serve(t, e)
	for i := range 2 {
		send(t, "POST", url+"/orders/42", "x").want(t, 201, "42 POST /orders/42", i > 0)
	}
	send(t, "POST", url+"/typo", "x", "Idempotency-Key", "other").want(t, 404, text404, false)
}

// TestContextThatWasNotRoutedIsProtected: a unit test calls middleware without a router.
func TestContextThatWasNotRoutedIsProtected(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	runs := 0
	h := stetecho4.Middleware(g.Middleware)(func(c echo.Context) error { runs++; return paid(c) })
	for i := range 2 {
		r, w := unrouted()
		if err := h(echo.New().NewContext(r, w)); err != nil || w.Code != 201 || w.Header().Get("Idempotent-Replayed") == "true" != (i > 0) {
			t.Errorf("got %d %v, %v", w.Code, w.Header(), err)
		}
	}
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
}
