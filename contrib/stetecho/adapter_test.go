package stetecho_test

import (
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetecho"
	"github.com/stet-go/stet/internal/echotest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/adaptertest"
)

// response is the echo.Response in a context.
func response(c *echo.Context) *echo.Response {
	res, err := echo.UnwrapResponse(c.Response())
	if err != nil {
		panic(err)
	}
	return res
}

func TestStetEcho(t *testing.T) {
	tx := adaptertest.NewBench(t, stet.Options{}, stethttp.Options{}).Tx
	dump := middleware.BodyDump(func(*echo.Context, []byte, []byte, error) {})
	echotest.Framework[*echo.Context, echo.HandlerFunc, echo.MiddlewareFunc, echo.RouteInfo, *echo.Group, *echo.Echo]{
		New: func() *echo.Echo {
			e := echo.New()
			e.Logger = slog.New(slog.DiscardHandler)
			e.Use(middleware.RequestLogger(), middleware.Recover())
			return e
		},
		Middleware: stetecho.Middleware,
		HandleTx: func(m *stethttp.TxMiddleware[*echotest.Tx], h func(*echo.Context, *echotest.Tx) error) echo.HandlerFunc {
			return stetecho.HandleTx(m, h)
		},
		ContextOf: func(r *http.Request) (*echo.Context, bool) {
			c := stetecho.Context(r)
			return c, c != nil
		},
		Bare:     func(r *http.Request, w http.ResponseWriter) *echo.Context { return echo.New().NewContext(r, w) },
		Writer:   (*echo.Context).Response,
		Response: func(c *echo.Context) echotest.Response { return response(c) },
		State: func(c *echo.Context) echotest.State {
			res := response(c)
			return echotest.State{Status: res.Status, Size: res.Size, Committed: res.Committed}
		},
		SetErrorHandler: func(e *echo.Echo, h func(*echo.Context, error)) { e.HTTPErrorHandler = h },
		HandleError:     func(c *echo.Context, err error) { c.Echo().HTTPErrorHandler(c, err) },
		HTTPError:       func(status int, text string) error { return echo.NewHTTPError(status, text) },
		StatusOf:        echo.StatusCode,
		WrapHandler:     echo.WrapHandler,
		Around:          []echo.MiddlewareFunc{middleware.Gzip(), middleware.ContextTimeout(time.Minute)},
		Inside:          []echo.MiddlewareFunc{middleware.RequestID(), middleware.BodyLimit(1 << 20)},
		Companions: map[string][]echo.MiddlewareFunc{
			"gzip":                 {middleware.Gzip()},
			"gzip of long content": {middleware.GzipWithConfig(middleware.GzipConfig{MinLength: 1 << 10})},
			"body dump":            {dump},
			"both":                 {middleware.Gzip(), dump},
		},
		Limit: middleware.BodyLimit(10),
		BehindOthers: map[string]func(e *echo.Echo, m ...echo.MiddlewareFunc){
			"Use":   (*echo.Echo).Use,
			"group": func(e *echo.Echo, m ...echo.MiddlewareFunc) { e.Group("", m...) },
		},
		Panics: map[string]func(){
			"Middleware needs the result of stethttp.New": func() { stetecho.Middleware(nil) },
			"HandleTx needs the result of stethttp.NewTx": func() {
				stetecho.HandleTx(&stethttp.TxMiddleware[*echotest.Tx]{}, func(*echo.Context, *echotest.Tx) error { return nil })
			},
			"HandleTx needs a handler": func() { stetecho.HandleTx(tx, nil) },
		},
	}.Run(t)
}
