package stetecho4

import (
	"errors"
	"io"
	"net/http"

	"github.com/labstack/echo/v4"
)

// front is the http.ResponseWriter of stethttp. It writes to the outer response, so that its
// hooks are called and outer middleware sees the status.
type front struct{ x *call }

// Header implements http.ResponseWriter.
func (f *front) Header() http.Header { return f.x.outer.Header() }

// Write implements http.ResponseWriter.
func (f *front) Write(p []byte) (int, error) { return f.x.outer.Write(p) }

// WriteHeader implements http.ResponseWriter. An echo.Response would take an informational
// status for the final one, so that bypasses it. Functions of echo.Response.Before find the
// outer response in their context, also while the handler streams.
func (f *front) WriteHeader(status int) {
	if status < 200 && status != http.StatusSwitchingProtocols {
		f.x.outer.Writer.WriteHeader(status)
		return
	}
	inner := f.x.c.Response()
	f.x.c.SetResponse(f.x.outer)
	defer f.x.c.SetResponse(inner)
	f.x.outer.WriteHeader(status)
}

// Written tells stethttp whether the response has begun.
func (f *front) Written() bool { return f.x.outer.Committed }

// FlushError is for http.ResponseController. echo.Response.Flush panics if the writer has none.
func (f *front) FlushError() error { return http.NewResponseController(f.x.outer.Writer).Flush() }

// Unwrap is for http.ResponseController.
func (f *front) Unwrap() http.ResponseWriter { return f.x.outer.Writer }

// limitedBody is a request's body of an unknown length, which outer middleware may limit. It
// returns the status of Echo's error to stethttp.
type limitedBody struct{ io.ReadCloser }

// Read implements io.Reader.
func (l *limitedBody) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	if he := (*echo.HTTPError)(nil); errors.As(err, &he) {
		err = coded{he}
	}
	return n, err
}

// coded is an error of Echo with its status.
type coded struct{ *echo.HTTPError }

// StatusCode is for stethttp.
func (c coded) StatusCode() int { return c.Code }
