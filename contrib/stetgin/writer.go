package stetgin

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"
)

// unwritten is the size of a response that has not begun.
const unwritten = -1

// writer is the gin.ResponseWriter of what runs inside, over that of stethttp, which holds
// the response back. It does what Gin's own does.
type writer struct {
	http.ResponseWriter
	ctx    context.Context
	status int
	size   int
	set    bool // the status was
	closed chan bool
	stop   func() bool
}

// Unwrap is for http.ResponseController. It leads to stethttp's writer, which has none.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Status implements gin.ResponseWriter.
func (w *writer) Status() int { return w.status }

// Size implements gin.ResponseWriter.
func (w *writer) Size() int { return w.size }

// Written implements gin.ResponseWriter.
func (w *writer) Written() bool { return w.size != unwritten }

// WriteHeader notes a status down. It is written before the content, or in the end.
func (w *writer) WriteHeader(status int) {
	if status > 0 && !w.Written() {
		w.status, w.set = status, true
	}
}

// WriteHeaderNow implements gin.ResponseWriter.
func (w *writer) WriteHeaderNow() {
	if !w.Written() {
		w.size = 0
		w.ResponseWriter.WriteHeader(w.status)
	}
}

// Write implements http.ResponseWriter.
func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.ResponseWriter.Write(p)
	w.size += n
	return n, err
}

// WriteString implements gin.ResponseWriter.
func (w *writer) WriteString(s string) (int, error) {
	w.WriteHeaderNow()
	n, err := io.WriteString(w.ResponseWriter, s)
	w.size += n
	return n, err
}

// Flush implements http.Flusher.
func (w *writer) Flush() { _ = w.FlushError() }

// FlushError is for http.ResponseController.
func (w *writer) FlushError() error {
	w.WriteHeaderNow()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack implements http.Hijacker, to say why not.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

// Pusher implements gin.ResponseWriter: what is pushed would be no part of the outcome.
func (w *writer) Pusher() http.Pusher { return nil }

// CloseNotify implements http.CloseNotifier. It tells of the end of the run, which does not
// end when the client leaves.
func (w *writer) CloseNotify() <-chan bool {
	if w.closed == nil {
		closed := make(chan bool, 1)
		w.closed, w.stop = closed, context.AfterFunc(w.ctx, func() { closed <- true })
	}
	return w.closed
}

// end releases what CloseNotify has begun.
func (w *writer) end() {
	if w.stop != nil {
		w.stop()
	}
}

var errSealed = errors.New("stetgin: the response stands: what is around the middleware must not write to it any more")

// sealed is the gin.ResponseWriter for what is around the middleware, once the response
// stands. A body that is written to it would reach the first caller, and no other.
type sealed struct {
	gin.ResponseWriter
	log  *slog.Logger
	r    *http.Request
	told bool
}

// Unwrap is for http.ResponseController.
func (s *sealed) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// WriteHeader does nothing.
func (s *sealed) WriteHeader(int) {}

// WriteHeaderNow does nothing.
func (s *sealed) WriteHeaderNow() {}

// Write refuses.
func (s *sealed) Write([]byte) (int, error) { return 0, s.refuse() }

// WriteString refuses.
func (s *sealed) WriteString(string) (int, error) { return 0, s.refuse() }

// Hijack refuses.
func (s *sealed) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, s.refuse() }

// refuse says, once, that something was written.
func (s *sealed) refuse() error {
	if !s.told {
		s.told = true
		s.log.ErrorContext(s.r.Context(), "stetgin: something around the middleware has written to a response that stands; it was dropped, "+
			"as a retry would not get it: register what adds to responses, as middleware that answers errors, after stetgin's, so that it runs inside",
			slog.String("route", s.r.Pattern))
	}
	return errSealed
}
