package stetecho

import (
	"errors"
	"log/slog"
	"net/http"

	"github.com/labstack/echo/v5"
)

// front is the http.ResponseWriter that stethttp answers with, over that of what is
// around, so that its hooks are called and its status is seen.
type front struct {
	x      *exchange
	status int
	size   int64
}

// Header implements http.ResponseWriter.
func (f *front) Header() http.Header { return f.x.outer.Header() }

// Write implements http.ResponseWriter.
func (f *front) Write(p []byte) (int, error) {
	n, err := f.x.outer.Write(p)
	f.size += int64(n)
	return n, err
}

// WriteHeader implements http.ResponseWriter. An echo.Response takes an informational
// status for that of the response, so that goes past it. What was registered with
// echo.Response.Before finds the response of what is around in its context, also while
// the handler streams.
func (f *front) WriteHeader(status int) {
	if status < 200 && status != http.StatusSwitchingProtocols {
		if res, err := echo.UnwrapResponse(f.x.outer); err == nil {
			res.ResponseWriter.WriteHeader(status)
		}
		return
	}
	f.status = status
	inner := f.x.c.Response()
	f.x.c.SetResponse(f.x.outer)
	defer f.x.c.SetResponse(inner)
	f.x.outer.WriteHeader(status)
}

// Written tells stethttp whether the response has begun.
func (f *front) Written() bool { return committed(f.x.outer) }

// FlushError is for http.ResponseController: echo.Response.Flush panics where it cannot.
func (f *front) FlushError() error {
	w := f.x.outer
	if res, ok := w.(*echo.Response); ok {
		w = res.ResponseWriter
	}
	return http.NewResponseController(w).Flush()
}

// Unwrap is for http.ResponseController.
func (f *front) Unwrap() http.ResponseWriter { return f.x.outer }

var errSealed = errors.New("stetecho: the response stands: what is around the middleware must not write to it any more")

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
		s.x.log.ErrorContext(s.x.r.Context(), "stetecho: something around the middleware has written to a response that stands; it was dropped, "+
			"as a retry would not get it: register what adds to responses after stetecho's, so that it runs inside; an HTTPErrorHandler must return if the response is committed",
			slog.String("route", s.x.r.Pattern))
	}
	return 0, errSealed
}
