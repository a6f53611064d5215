package stetecho4

import (
	"errors"
	"io"
	"log/slog"
	"net/http"

	"github.com/labstack/echo/v4"
)

// front is the http.ResponseWriter that stethttp answers with, over the echo.Response of
// what is around, so that its hooks are called and its status is seen.
type front struct{ x *exchange }

// Header implements http.ResponseWriter.
func (f *front) Header() http.Header { return f.x.outer.Header() }

// Write implements http.ResponseWriter.
func (f *front) Write(p []byte) (int, error) { return f.x.outer.Write(p) }

// WriteHeader implements http.ResponseWriter. An echo.Response takes an informational
// status for that of the response, so that goes past it. What was registered with
// echo.Response.Before finds the response of what is around in its context, also while
// the handler streams.
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

// FlushError is for http.ResponseController: echo.Response.Flush panics where it cannot.
func (f *front) FlushError() error { return http.NewResponseController(f.x.outer.Writer).Flush() }

// Unwrap is for http.ResponseController.
func (f *front) Unwrap() http.ResponseWriter { return f.x.outer.Writer }

var errSealed = errors.New("stetecho4: the response stands: what is around the middleware must not write to it any more")

// sealed is the writer for what is around the middleware, once the response stands. A body
// that is written to it would reach the first caller, and no other.
type sealed struct {
	http.ResponseWriter
	x    *exchange
	told bool
}

// Unwrap is for http.ResponseController.
func (s *sealed) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// WriteHeader does nothing.
func (s *sealed) WriteHeader(int) {}

// Write refuses, and says so once.
func (s *sealed) Write([]byte) (int, error) {
	if !s.told {
		s.told = true
		s.x.log.ErrorContext(s.x.r.Context(), "stetecho4: something around the middleware has written to a response that stands; it was dropped, "+
			"as a retry would not get it: register what adds to responses after stetecho4's, so that it runs inside; an HTTPErrorHandler must return if the response is committed",
			slog.String("route", s.x.r.Pattern))
	}
	return 0, errSealed
}

// limited is a request's body of an unknown length, which middleware around may limit. It
// tells stethttp of that.
type limited struct{ io.ReadCloser }

// Read implements io.Reader.
func (l *limited) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	if he := (*echo.HTTPError)(nil); errors.As(err, &he) {
		err = coded{he}
	}
	return n, err
}

// coded is an error of Echo's that says its status.
type coded struct{ *echo.HTTPError }

// StatusCode is for stethttp.
func (c coded) StatusCode() int { return c.Code }
