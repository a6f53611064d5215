package stetecho

import (
	"net/http"

	"github.com/labstack/echo/v5"
)

// front is the http.ResponseWriter of stethttp. It writes to the outer response, so that its
// hooks are called and outer middleware sees the status.
type front struct {
	x      *call
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

// WriteHeader implements http.ResponseWriter. An echo.Response would take an informational
// status for the final one, so that bypasses it. Functions of echo.Response.Before find the
// outer response in their context, also while the handler streams.
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

// FlushError is for http.ResponseController. echo.Response.Flush panics if the writer has none.
func (f *front) FlushError() error {
	w := f.x.outer
	if res, ok := w.(*echo.Response); ok {
		w = res.ResponseWriter
	}
	return http.NewResponseController(w).Flush()
}

// Unwrap is for http.ResponseController.
func (f *front) Unwrap() http.ResponseWriter { return f.x.outer }
