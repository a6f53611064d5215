package stetecho_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetecho"
	"github.com/stet-go/stet/stethttp"
)

// TestAnsweredErrorIsNotAnsweredAgain by middleware and an HTTPErrorHandler that do not look
// whether it was, also where a writer of something else is in between, which is taken back
// before they are called.
func TestAnsweredErrorIsNotAnsweredAgain(t *testing.T) {
	dump := middleware.BodyDump(func(*echo.Context, []byte, []byte, error) {})
	for name, companions := range map[string][]echo.MiddlewareFunc{
		"none":                 nil,
		"gzip":                 {middleware.Gzip()},
		"gzip of long content": {middleware.GzipWithConfig(middleware.GzipConfig{MinLength: 1 << 10})},
		"body dump":            {dump},
		"both":                 {middleware.Gzip(), dump},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuard(t, stet.Options{}, stethttp.Options{})
			e := instance()
			e.HTTPErrorHandler = func(c *echo.Context, err error) { _ = c.String(http.StatusBadGateway, err.Error()) }
			e.Use(around(nil, func(c *echo.Context, err error) error {
				if err != nil {
					return c.String(http.StatusTeapot, "again")
				}
				return nil
			}))
			e.Use(companions...)
			runs := 0
			e.POST("/payments", func(*echo.Context) error { runs++; return errBank }, stetecho.Middleware(g.Middleware))
			url := serve(t, e) + "/payments"
			for i := range 2 {
				r := send(t, "POST", url, "x", "Accept-Encoding", "gzip")
				r.gunzip(t)
				r.want(t, 502, "the bank is closed", i > 0)
			}
			if runs != 1 {
				t.Errorf("%d runs", runs)
			}
		})
	}
}

// TestBodyThatIsLimitedAroundIsTooLarge, also where that is found out while it is read.
func TestBodyThatIsLimitedAroundIsTooLarge(t *testing.T) {
	g := newGuard(t, stet.Options{}, stethttp.Options{})
	e := instance()
	e.Use(middleware.BodyLimit(10))
	e.POST("/payments", paid, stetecho.Middleware(g.Middleware))
	url := serve(t, e) + "/payments"
	for name, body := range map[string]io.Reader{"its length is known": strings.NewReader("more than ten bytes"), "not known": io.MultiReader(strings.NewReader("more than ten bytes"))} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", "k")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: got %d", name, res.StatusCode)
		}
	}
}
