package stetecho_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/stet-go/stet/stetecho"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/adaptertest"
)

// instance is an Echo with what most have.
func instance() *echo.Echo {
	e := echo.New()
	e.Logger = slog.New(slog.DiscardHandler)
	e.Use(middleware.RequestLogger(), middleware.Recover())
	return e
}

// echoCall does in Echo's words what a case asks for.
type echoCall struct{ c *echo.Context }

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
		return echo.NewHTTPError(status, "")
	}
	return echo.NewHTTPError(status, text)
}

func skin(wire func(*echo.Echo, adaptertest.Route, echo.MiddlewareFunc, echo.HandlerFunc)) adaptertest.Adapter {
	return adaptertest.Adapter{
		Serve: func(t testing.TB, m *stethttp.Middleware, routes []adaptertest.Route) string {
			e := instance()
			for _, r := range routes {
				wire(e, r, stetecho.Middleware(m), func(c *echo.Context) error { return r.Handle(echoCall{c}) })
			}
			return adaptertest.Serve(t, e)
		},
		ServeTx: func(t testing.TB, m *stethttp.TxMiddleware[*adaptertest.Tx], routes []adaptertest.Route) string {
			e := instance()
			for _, r := range routes {
				e.Add(r.Method, r.Colon(), stetecho.HandleTx(m, func(c *echo.Context, tx *adaptertest.Tx) error {
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

// TestUseAroundOthersConforms: around compression and other middleware.
func TestUseAroundOthersConforms(t *testing.T) {
	adaptertest.Run(t, skin(func(e *echo.Echo, r adaptertest.Route, m echo.MiddlewareFunc, h echo.HandlerFunc) {
		e.Use(middleware.Gzip(), middleware.ContextTimeout(time.Minute), m, middleware.RequestID(), middleware.BodyLimit(1<<20))
		e.Add(r.Method, r.Colon(), h)
	}))
}

var errBank = errors.New("the bank is closed")

// response is that of Echo's in a context.
func response(c *echo.Context) *echo.Response {
	res, err := echo.UnwrapResponse(c.Response())
	if err != nil {
		panic(err)
	}
	return res
}
