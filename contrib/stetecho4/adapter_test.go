package stetecho4_test

import (
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetecho4"
	"github.com/stet-go/stet/internal/echotest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/adaptertest"
)

// ownContext is a context of the service's own.
type ownContext struct{ echo.Context }

// wirings are groups for which Echo has more than one answer to requests without a route.
var wirings = map[string]func(e *echo.Echo, chain []echo.MiddlewareFunc) func(method, path string, h echo.HandlerFunc){
	"InAGroup": func(e *echo.Echo, chain []echo.MiddlewareFunc) func(method, path string, h echo.HandlerFunc) {
		g := e.Group("", append(chain, nothing)...)
		return func(method, path string, h echo.HandlerFunc) { g.Add(method, path, h) }
	},
	"SubGroup": func(e *echo.Echo, chain []echo.MiddlewareFunc) func(method, path string, h echo.HandlerFunc) {
		g := e.Group("", chain...).Group("", nothing)
		return func(method, path string, h echo.HandlerFunc) { g.Add(method, path, h) }
	},
}

func nothing(next echo.HandlerFunc) echo.HandlerFunc { return next }

func TestStetEcho4(t *testing.T) {
	tx := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{}).Tx
	dump := middleware.BodyDump(func(echo.Context, []byte, []byte) {})
	own := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error { return next(&ownContext{c}) }
	}
	timeout := middleware.TimeoutWithConfig(middleware.TimeoutConfig{Timeout: time.Minute}) //nolint:staticcheck // services have it
	echotest.Framework[echo.Context, echo.HandlerFunc, echo.MiddlewareFunc, *echo.Route, *echo.Group, *echo.Echo]{
		New: func() *echo.Echo {
			e := echo.New()
			e.Logger.SetOutput(io.Discard)
			e.Use(middleware.LoggerWithConfig(middleware.LoggerConfig{Output: io.Discard}), middleware.Recover()) //nolint:staticcheck // services have it
			return e
		},
		Middleware: stetecho4.Middleware,
		HandleTx: func(m *stethttp.TxMiddleware[*echotest.Tx], h func(echo.Context, *echotest.Tx) error) echo.HandlerFunc {
			return stetecho4.HandleTx(m, h)
		},
		ContextOf: func(r *http.Request) (echo.Context, bool) {
			c := stetecho4.Context(r)
			return c, c != nil
		},
		Bare:     func(r *http.Request, w http.ResponseWriter) echo.Context { return echo.New().NewContext(r, w) },
		Writer:   func(c echo.Context) http.ResponseWriter { return c.Response() },
		Response: func(c echo.Context) echotest.Response { return c.Response() },
		State: func(c echo.Context) echotest.State {
			return echotest.State{Status: c.Response().Status, Size: c.Response().Size, Committed: c.Response().Committed}
		},
		SetErrorHandler: func(e *echo.Echo, h func(echo.Context, error)) {
			e.HTTPErrorHandler = func(err error, c echo.Context) { h(c, err) }
		},
		HandleError: func(c echo.Context, err error) { c.Error(err) },
		HTTPError: func(status int, text string) error {
			if text == "" {
				return echo.NewHTTPError(status)
			}
			return echo.NewHTTPError(status, text)
		},
		StatusOf: func(err error) int {
			if e, ok := errors.AsType[*echo.HTTPError](err); ok {
				return e.Code
			}
			return 0
		},
		WrapHandler: echo.WrapHandler,
		Around:      []echo.MiddlewareFunc{middleware.Gzip(), own},
		Inside:      []echo.MiddlewareFunc{own, middleware.RequestID()},
		Lacks: map[adaptertest.Ability]string{
			adaptertest.Unrouted: "middleware inside may answer a request without a route by itself, so that it is protected",
		},
		Companions: map[string][]echo.MiddlewareFunc{
			"gzip":                  {middleware.Gzip()},
			"gzip of long content":  {middleware.GzipWithConfig(middleware.GzipConfig{MinLength: 1 << 10})},
			"body dump":             {dump},
			"both":                  {middleware.Gzip(), dump},
			"timeout":               {timeout},
			"timeout and body dump": {timeout, dump},
		},
		Limit:        middleware.BodyLimit("10B"),
		Wirings:      wirings,
		BehindOthers: map[string]func(e *echo.Echo, m ...echo.MiddlewareFunc){"Use": (*echo.Echo).Use},
		Panics: map[string]func(){
			"Middleware needs the result of stethttp.New": func() { stetecho4.Middleware(nil) },
			"HandleTx needs the result of stethttp.NewTx": func() {
				stetecho4.HandleTx(&stethttp.TxMiddleware[*echotest.Tx]{}, func(echo.Context, *echotest.Tx) error { return nil })
			},
			"HandleTx needs a handler": func() { stetecho4.HandleTx(tx, nil) },
		},
	}.Run(t)
}
