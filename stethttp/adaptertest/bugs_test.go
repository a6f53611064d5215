package adaptertest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
)

type (
	lateKey struct{}
	bodyKey struct{}
	noteKey struct{}
	rawKey  struct{}
)

// hijacker has the Hijack of another writer.
type hijacker struct {
	http.ResponseWriter
	raw http.ResponseWriter
}

func (h hijacker) Unwrap() http.ResponseWriter { return h.ResponseWriter }

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.raw.(http.Hijacker).Hijack()
}

// rewriter is a http.ResponseWriter that changes what passes through it.
type rewriter struct {
	http.ResponseWriter
	status func(*rewriter, int) int       // 0 drops it
	body   func(*rewriter, []byte) []byte // nil drops it
	flush  func(*rewriter) bool           // whether to flush

	wrote   bool // a status, or a part of the body
	dropped bool // a status
	code    int
	note    int
}

func (w *rewriter) WriteHeader(status int) {
	w.code = status
	if w.status != nil {
		if status = w.status(w, status); status == 0 {
			w.dropped = true
			return
		}
	}
	w.wrote = true
	w.ResponseWriter.WriteHeader(status)
}

func (w *rewriter) Write(p []byte) (int, error) {
	q := p
	if w.body != nil {
		if q = w.body(w, p); len(q) == 0 {
			return len(p), nil
		}
	}
	w.wrote = true
	_, err := w.ResponseWriter.Write(q)
	return len(p), err
}

func (w *rewriter) FlushError() error {
	if w.flush != nil && !w.flush(w) {
		return nil
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (w *rewriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// otherContext is a Call with another context.
type otherContext struct {
	Call
	ctx context.Context
}

func (c otherContext) Context() context.Context { return c.ctx }

// besides runs a request unprotected that comes while another runs.
func besides() func(http.ResponseWriter, *http.Request, http.Handler, http.Handler) {
	var running atomic.Int64
	return func(w http.ResponseWriter, r *http.Request, protected, plain http.Handler) {
		defer running.Add(-1)
		if running.Add(1) > 1 && plain != nil {
			protected = plain
		}
		protected.ServeHTTP(w, r)
	}
}

// insteadOf runs a request unprotected that would be answered with a status.
func insteadOf(status int, contentType ...string) func(http.ResponseWriter, *http.Request, http.Handler, http.Handler) {
	return func(w http.ResponseWriter, r *http.Request, protected, plain http.Handler) {
		if plain == nil {
			protected.ServeHTTP(w, r)
			return
		}
		caught := false
		protected.ServeHTTP(&rewriter{ResponseWriter: w,
			status: func(_ *rewriter, got int) int {
				caught = got == status && (len(contentType) == 0 || slices.Equal(w.Header()["Content-Type"], contentType))
				if caught {
					clear(w.Header())
					return 0
				}
				return got
			},
			body: func(_ *rewriter, p []byte) []byte {
				if caught {
					return nil
				}
				return p
			}}, r)
		if caught {
			plain.ServeHTTP(w, r)
		}
	}
}

// answersAnyway answers with what notes has stored, if the middleware refuses it with a
// problem.
func answersAnyway(w http.ResponseWriter, r *http.Request, protected, _ http.Handler) {
	said := httptest.NewRecorder()
	refused := false
	protected.ServeHTTP(&rewriter{ResponseWriter: w,
		status: func(_ *rewriter, status int) int {
			if refused = said.Body.Len() > 0 && w.Header().Get("Content-Type") == "application/problem+json"; refused {
				clear(w.Header())
				return 0
			}
			return status
		},
		body: func(_ *rewriter, p []byte) []byte {
			if refused {
				return nil
			}
			return p
		}}, r.WithContext(context.WithValue(r.Context(), noteKey{}, said)))
	if refused {
		w.WriteHeader(said.Code)
		_, _ = w.Write(said.Body.Bytes())
	}
}

func notes(w http.ResponseWriter, r *http.Request, next http.Handler) {
	said := r.Context().Value(noteKey{}).(*httptest.ResponseRecorder)
	next.ServeHTTP(&rewriter{ResponseWriter: w,
		status: func(_ *rewriter, status int) int { said.Code = status; return status },
		body:   func(_ *rewriter, p []byte) []byte { said.Body.Write(p); return p }}, r)
}

// status writes another status. It is for both sides of the middleware.
func status(from, to int) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(&rewriter{ResponseWriter: w, status: func(_ *rewriter, status int) int {
			if status == from {
				return to
			}
			return status
		}}, r)
	}
}

func outside(f func(http.ResponseWriter, *http.Request, http.Handler)) func(http.ResponseWriter, *http.Request, http.Handler, http.Handler) {
	return func(w http.ResponseWriter, r *http.Request, protected, _ http.Handler) { f(w, r, protected) }
}

// oneBuffer has all responses in one buffer, which it clears when a response is sent.
func oneBuffer() func(http.ResponseWriter, *http.Request, http.Handler) {
	shared := &buffered{}
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		defer shared.take() // also after a panic
		in := &rewriter{ResponseWriter: w}
		in.body = func(_ *rewriter, p []byte) []byte {
			if in.note == 1 {
				return p
			}
			shared.write(p)
			return nil
		}
		in.flush = func(*rewriter) bool {
			in.note = 1
			_, _ = in.Write(shared.take())
			in.note = 0
			return true
		}
		next.ServeHTTP(in, r)
		in.note = 1
		_, _ = in.Write(shared.take())
		in.note = 0
	}
}

type buffered struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *buffered) write(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b.Write(p)
}

func (s *buffered) take() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.b.Reset()
	return bytes.Clone(s.b.Bytes())
}

// answering is a Call of a framework whose errors have a status, which are answered.
type answering struct{ Call }

func (c answering) Abort(status int, text string) error {
	_ = c.Call.Abort(status, text)
	return errAnswered
}

var errAnswered = errors.New("answered")
