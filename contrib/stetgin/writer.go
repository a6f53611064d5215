package stetgin

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/stet-go/stet/internal/exchange"
)

// unwritten is the size of a response that has not begun.
const unwritten = -1

// writer is the gin.ResponseWriter of the handlers inside. It writes to stethttp's writer, and
// works like Gin's own.
type writer struct {
	http.ResponseWriter
	ctx    context.Context
	status int
	size   int
	set    bool // the status was
	closed chan bool
	stop   func() bool
}

// Unwrap is for http.ResponseController. It returns stethttp's writer, which has no Unwrap.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Status implements gin.ResponseWriter.
func (w *writer) Status() int { return w.status }

// Size implements gin.ResponseWriter.
func (w *writer) Size() int { return w.size }

// Written implements gin.ResponseWriter.
func (w *writer) Written() bool { return w.size != unwritten }

// WriteHeader sets the status, which is written before the content, or in the end.
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

// Hijack implements http.Hijacker. It returns stethttp's error.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

// Pusher implements gin.ResponseWriter. A pushed response would not be part of the outcome.
func (w *writer) Pusher() http.Pusher { return nil }

// CloseNotify implements http.CloseNotifier. The channel receives at the end of the run, not
// when the client leaves.
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

// sealed is the gin.ResponseWriter of outer middleware, after the end of the response.
type sealed struct {
	gin.ResponseWriter
	s exchange.Sealed
}

// Unwrap is for http.ResponseController.
func (s *sealed) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// WriteHeader does nothing.
func (s *sealed) WriteHeader(int) {}

// WriteHeaderNow does nothing.
func (s *sealed) WriteHeaderNow() {}

// Write implements http.ResponseWriter.
func (s *sealed) Write(p []byte) (int, error) { return s.s.Write(p) }

// WriteString implements gin.ResponseWriter.
func (s *sealed) WriteString(string) (int, error) { return s.s.Write(nil) }

// Hijack implements http.Hijacker.
func (s *sealed) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	_, err := s.s.Write(nil)
	return nil, nil, err
}
