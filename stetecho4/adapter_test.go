package stetecho4_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/stet-go/stet/stetecho4"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/adaptertest"
)

// instance is an Echo with what most have.
func instance() *echo.Echo {
	e := echo.New()
	e.Logger.SetOutput(io.Discard)
	e.Use(middleware.LoggerWithConfig(middleware.LoggerConfig{Output: io.Discard}), middleware.Recover())
	return e
}

// echoCall does in Echo's words what a case asks for.
type echoCall struct{ c echo.Context }

func (c echoCall) Context() context.Context     { return c.c.Request().Context() }
func (c echoCall) Param(name string) string     { return c.c.Param(name) }
func (c echoCall) Body() ([]byte, error)        { return io.ReadAll(c.c.Request().Body) }
func (c echoCall) AddHeader(name, value string) { c.c.Response().Header().Add(name, value) }
func (c echoCall) NoContent(status int) error   { return c.c.NoContent(status) }
func (c echoCall) Writer() io.Writer            { return c.c.Response() }
func (c echoCall) Flush() error                 { return http.NewResponseController(c.c.Response()).Flush() }

func (c echoCall) Send(status int, contentType string, body []byte) error {
	return c.c.Blob(status, contentType, body)
}

func (c echoCall) Abort(status int, text string) error {
	if text == "" {
		return echo.NewHTTPError(status)
	}
	return echo.NewHTTPError(status, text)
}

func skin(wire func(*echo.Echo, adaptertest.Route, echo.MiddlewareFunc, echo.HandlerFunc)) adaptertest.Adapter {
	return adaptertest.Adapter{
		Serve: func(t testing.TB, m *stethttp.Middleware, routes []adaptertest.Route) string {
			e := instance()
			for _, r := range routes {
				wire(e, r, stetecho4.Middleware(m), func(c echo.Context) error { return r.Handle(echoCall{c}) })
			}
			return adaptertest.Serve(t, e)
		},
		ServeTx: func(t testing.TB, m *stethttp.TxMiddleware[*adaptertest.Tx], routes []adaptertest.Route) string {
			e := instance()
			for _, r := range routes {
				e.Add(r.Method, r.Colon(), stetecho4.HandleTx(m, func(c echo.Context, tx *adaptertest.Tx) error {
					return r.HandleTx(echoCall{c}, tx)
				}))
			}
			return adaptertest.Serve(t, e)
		},
	}
}

// The three ways in which Echo's users wire a middleware.

func TestRouteConforms(t *testing.T) {
	adaptertest.Run(t, skin(func(e *echo.Echo, r adaptertest.Route, m echo.MiddlewareFunc, h echo.HandlerFunc) {
		e.Add(r.Method, r.Colon(), h, m)
	}))
}

func TestGroupConforms(t *testing.T) {
	adaptertest.Run(t, skin(func(e *echo.Echo, r adaptertest.Route, m echo.MiddlewareFunc, h echo.HandlerFunc) {
		e.Group("", m).Add(r.Method, r.Colon(), h)
	}))
}

func TestUseConforms(t *testing.T) {
	adaptertest.Run(t, skin(func(e *echo.Echo, r adaptertest.Route, m echo.MiddlewareFunc, h echo.HandlerFunc) {
		e.Use(m)
		e.Add(r.Method, r.Colon(), h)
	}))
}

// TestUseAroundOthersConforms: around compression and a context of the service's own.
func TestUseAroundOthersConforms(t *testing.T) {
	own := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error { return next(&ownContext{c}) }
	}
	adaptertest.Run(t, skin(func(e *echo.Echo, r adaptertest.Route, m echo.MiddlewareFunc, h echo.HandlerFunc) {
		e.Use(middleware.Gzip(), own, m, own, middleware.RequestID())
		e.Add(r.Method, r.Colon(), h)
	}))
}

type ownContext struct{ echo.Context }

var errBank = errors.New("the bank is closed")
