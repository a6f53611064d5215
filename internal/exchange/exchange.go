// Package exchange has what the adapters of Gin and Echo share: a request on its way from the
// framework through stethttp to the framework's handler, and the response after its end.
package exchange

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/stet-go/stet/stethttp"
)

type key struct{}

// Exchange is one request. Framework, Call and Pass are required.
type Exchange struct {
	// Framework is the framework's context of the request.
	Framework any
	// Call calls the handler, protected. stethttp can call it more than once for a request.
	Call func(http.ResponseWriter, *http.Request)
	// Pass calls the handler unprotected. Its request differs from Request if stethttp has
	// read the body.
	Pass func(*http.Request)

	Request *http.Request // stethttp receives it; Begin sets it
	Passed  bool          // Pass was called
	outer   *http.Request
	w       http.ResponseWriter
}

// Handler returns the handler for Serve.
func Handler(m *stethttp.Middleware) http.Handler {
	return m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := r.Context().Value(key{}).(*Exchange)
		if x.Passed = w == x.w; x.Passed {
			x.Pass(r)
			return
		}
		x.Call(w, r)
	}))
}

// Begin sets the request of the framework, and the pattern of its route, or "".
func (x *Exchange) Begin(r *http.Request, route string) {
	x.outer, x.Request = r, r.WithContext(context.WithValue(r.Context(), key{}, x))
	if route != "" {
		x.Request.Pattern = route
	}
}

// Serve gives the request to h, a result of Handler, which responds with w.
func (x *Exchange) Serve(h http.Handler, w http.ResponseWriter) {
	x.w = w
	defer func() {
		if x.outer.MultipartForm == nil {
			x.outer.MultipartForm = x.Request.MultipartForm // the server removes its files
		}
	}()
	h.ServeHTTP(w, x.Request)
}

// Context returns the framework's context of a request, or the zero C if no Exchange serves it.
func Context[C any](r *http.Request) (c C) {
	if x, ok := r.Context().Value(key{}).(*Exchange); ok {
		c, _ = x.Framework.(C)
	}
	return c
}

// Sealed is the writer of middleware around stethttp, after the end of the response. A body
// that is written then would reach the first caller and no retry. Therefore Write is an error,
// and is logged once.
type Sealed struct {
	http.ResponseWriter
	// Adapter is the name of the adapter's package, and Advice the end of the log line.
	Adapter, Advice string
	Log             *slog.Logger
	Request         *http.Request
	Logged          bool
}

// Unwrap is for http.ResponseController.
func (s *Sealed) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// WriteHeader does nothing.
func (s *Sealed) WriteHeader(int) {}

// Write implements http.ResponseWriter.
func (s *Sealed) Write([]byte) (int, error) {
	if !s.Logged {
		s.Logged = true
		s.Log.ErrorContext(s.Request.Context(), s.Adapter+": middleware around "+s.Adapter+" has written to a response that had ended; its bytes were dropped, "+
			"because a retry would not get them: "+s.Advice, slog.String("route", s.Request.Pattern))
	}
	return 0, errors.New(s.Adapter + ": the response has ended; middleware around " + s.Adapter + " cannot write to it")
}
