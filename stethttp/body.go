package stethttp

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"sync"
)

// errBodyTooLarge: a request body is larger than Options.MaxBody.
var errBodyTooLarge = errors.New("stethttp: request body too large")

// readBody reads a request's body, up to limit bytes. The error is errBodyTooLarge or an
// *http.MaxBytesError if it is larger.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength > limit {
		return nil, errBodyTooLarge
	}
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	// If the body is larger, the server closes the connection and does not read the rest.
	return io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
}

// errConsumed: a request body was read before this middleware could.
var errConsumed = errors.New("something before this middleware has read the request's body, or a part of it (ParseForm and FormValue do, in Options.Scope, Class or Skip as well); " +
	"it must leave the body alone, or put it back whole, and set ContentLength where it has another length then")

// consumed returns errConsumed if n bytes cannot be the whole body. Different requests would then
// have the same fingerprint.
func consumed(r *http.Request, n int) error {
	short := int64(n) < r.ContentLength
	switch {
	case short && n == 0:
	case short && len(r.Header["Content-Encoding"]) == 0: // otherwise other code may have decoded it
	case (short || r.ContentLength < 0) && parsed(r):
	default:
		return nil
	}
	return errConsumed
}

// parsed reports whether the body was read as a form. net/http also parses some malformed and
// repeated content types.
func parsed(r *http.Request) bool {
	mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return r.MultipartForm != nil || r.PostForm != nil && mediaType == "application/x-www-form-urlencoded"
}

// body is a request body that was read before. After the handler it reads as a closed body,
// also in a goroutine that the handler left behind.
type body struct {
	mu     sync.Mutex
	rest   bytes.Reader
	closed bool
}

// Read implements io.Reader.
func (rb *body) Read(p []byte) (int, error) {
	rb.mu.Lock()
	defer rb.mu.Unlock()
	if rb.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return rb.rest.Read(p)
}

// Rewind makes the next Read begin at the start. An adapter calls it after it has copied the
// body for its framework.
func (rb *body) Rewind() {
	rb.mu.Lock()
	defer rb.mu.Unlock()
	if !rb.closed {
		_, _ = rb.rest.Seek(0, io.SeekStart)
	}
}

// whole reports whether nothing of it was read.
func (rb *body) whole() bool {
	rb.mu.Lock()
	defer rb.mu.Unlock()
	return !rb.closed && int64(rb.rest.Len()) == rb.rest.Size()
}

// Close implements io.Closer.
func (rb *body) Close() error {
	rb.mu.Lock()
	defer rb.mu.Unlock()
	rb.closed = true
	rb.rest.Reset(nil)
	return nil
}
