package stethttp_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
)

// TestResponseWithoutContentIsDurableBeforeItIsSent, flushed or not: its header is
// all that a client waits for.
func TestResponseWithoutContentIsDurableBeforeItIsSent(t *testing.T) {
	for name, respond := range map[string]http.HandlerFunc{
		"204":               func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"304":               func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) },
		"Content-Length: 0": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "0") },
		"HEAD":              func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") },
		"HEAD, larger than is kept": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", 2000))
		},
	} {
		store := newFaulty()
		store.settle.Store(true)
		s := start(t, setup{store: store, options: stethttp.Options{Methods: []string{"POST", "HEAD"}}, engine: stet.Options{Policy: stet.Policy{MaxResult: 1000}},
			handler: func(w http.ResponseWriter, r *http.Request) {
				respond(w, r)
				w.(http.Flusher).Flush()
			}})
		method, _, _ := strings.Cut(name, ",")
		if method != http.MethodHead {
			method = http.MethodPost
		}
		if r := s.do(s.request(method, "/", "k", "")); r.err != nil || r.status != http.StatusGatewayTimeout {
			t.Errorf("%s: %d (%v), though its outcome was not stored", name, r.status, r.err)
		}
	}
}

// TestFlushedBytesAreSentWhileTheHandlerRuns: the time to the first byte of a stream is the
// handler's. A retry gets the whole of it.
func TestFlushedBytesAreSentWhileTheHandlerRuns(t *testing.T) {
	const first, rest = "first,", "rest"
	for _, http2 := range []bool{false, true} {
		read := make(chan struct{})
		s := start(t, setup{http2: http2, handler: func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, first)
			w.(http.Flusher).Flush()
			select {
			case <-read:
			case <-r.Context().Done():
			}
			_, _ = io.WriteString(w, rest)
		}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		res, err := s.client.Do(s.request(http.MethodPost, "/", "k", "{}").WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, len(first))
		if _, err := io.ReadFull(res.Body, b); err != nil || string(b) != first {
			t.Errorf("HTTP/2 %v: while the handler runs: %q, %v", http2, b, err)
		}
		close(read)
		if b, err := io.ReadAll(res.Body); err != nil || string(b) != rest {
			t.Errorf("HTTP/2 %v: then: %q, %v", http2, b, err)
		}
		_ = res.Body.Close()
		cancel()
		if r := s.do(s.request(http.MethodPost, "/", "k", "{}")); r.body != first+rest {
			t.Errorf("HTTP/2 %v: a retry gets %q, %v", http2, r.body, r.err)
		}
	}
}

// TestStreamOfAHandlerThatPanicsIsCut though middleware around takes the panic for
// its own: its retry gets another outcome.
func TestStreamOfAHandlerThatPanicsIsCut(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		s := start(t, setup{http2: http2, around: func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() { _ = recover() }()
				h.ServeHTTP(w, r)
			})
		}, handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "streamed")
			w.(http.Flusher).Flush()
			panic("in the middle")
		}})
		if r := s.post("k", "{}"); r.err == nil {
			t.Errorf("HTTP/2 %v: the client got a whole response: %d %q", http2, r.status, r.body)
		}
		retry := s.post("k", "{}")
		for retry.status == http.StatusConflict { // it was cut before its outcome was stored
			retry = s.post("k", "{}")
		}
		wantProblem(t, retry, 500, "handler-panicked")
	}
}

// statusWriter is a writer of a framework that takes a status of 1xx for the
// response's.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Written() bool { return w.status != 0 }

func TestEarlyHintIsNotTakenForAResponseOfAnother(t *testing.T) {
	s := start(t, setup{around: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(&statusWriter{ResponseWriter: w}, r) })
	}, handler: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "done")
	}})
	wantReply(t, s.post("k", "{}"), 201, "done", false)
	wantReply(t, s.post("k", "{}"), 201, "done", true)
}
