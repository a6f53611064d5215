package stethttp

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"sync"
)

// maxPooled is the greatest memory that a buffer of little content keeps.
const maxPooled = 64 << 10

// buffer is memory that requests lend each other. What leaves a request, for
// the store or for a handler's goroutine, is never in one.
type buffer struct {
	b     []byte
	small []byte // the memory that b had before it was large
	own   bool   // b is not lent, nor will be: the engine may keep it
}

var buffers = sync.Pool{New: func() any { return &buffer{b: make([]byte, 0, 2048)} }}

// large is memory of one size for content above maxPooled: otherwise most of what a service
// allocates would be that of its largest requests. The last has room for what
// DefaultMaxBody and the default of stet.Policy.MaxResult allow.
var large = [...]struct {
	size int
	pool *sync.Pool // of *[]byte
}{{256 << 10, new(sync.Pool)}, {1<<20 + 4<<10, new(sync.Pool)}}

func newBuffer() *buffer {
	buf := buffers.Get().(*buffer)
	buf.b = buf.b[:0]
	return buf
}

// grow makes room for n more bytes.
func (buf *buffer) grow(n int) {
	need := len(buf.b) + n
	switch {
	case need <= cap(buf.b):
		return
	case need <= maxPooled:
		buf.b = append(make([]byte, 0, min(max(need, 2*cap(buf.b)), maxPooled)), buf.b...)
		return
	}
	var b []byte
	for _, l := range large {
		if need <= l.size {
			if lent, ok := l.pool.Get().(*[]byte); ok {
				b = (*lent)[:0]
			} else {
				b = make([]byte, 0, l.size)
			}
			break
		}
	}
	if b == nil { // more than is lent
		b = make([]byte, 0, max(need, 2*cap(buf.b)))
	}
	buf.move(append(b, buf.b...))
}

// move has the content go on in b.
func (buf *buffer) move(b []byte) {
	switch {
	case buf.own:
	case cap(buf.b) <= maxPooled:
		overwrite(buf.b)
		buf.small = buf.b
	default:
		lend(buf.b)
	}
	buf.b, buf.own = b, false
}

// keep has the content go on in memory that is never lent, and returns it, to append n bytes
// at once: there is room for all in the end.
func (buf *buffer) keep(n, all int) []byte {
	var b []byte // if these are all, they are copied into memory that needs no zeroes
	if n < all {
		b = append(make([]byte, 0, all), buf.b...)
	}
	buf.move(b)
	buf.own = true
	return b
}

// lend lends large memory to other requests.
func lend(b []byte) {
	overwrite(b)
	for _, l := range large {
		if cap(b) == l.size {
			l.pool.Put(&b)
		}
	}
}

// freed is nil but in tests, where it is called with memory before that is lent again.
var freed func([]byte)

func overwrite(b []byte) {
	if freed != nil {
		freed(b)
	}
}

// drop lets go of the content, and of large memory.
func (buf *buffer) drop() {
	switch {
	case buf.own:
		buf.b, buf.small, buf.own = buf.small, nil, false
	case cap(buf.b) > maxPooled:
		lend(buf.b)
		buf.b, buf.small = buf.small, nil
	default:
		overwrite(buf.b)
	}
	buf.b = buf.b[:0]
}

func (buf *buffer) free() {
	buf.drop()
	buffers.Put(buf)
}

// believed is how many times what has come of a body its claimed length may be, to have
// memory taken for it.
const believed = 16

// errBodyTooLarge: a request body is larger than Options.MaxBody.
var errBodyTooLarge = errors.New("stethttp: request body too large")

// readBody reads a request's body into buf, up to limit bytes. The error is
// errBodyTooLarge or an *http.MaxBytesError if it is larger.
func readBody(w http.ResponseWriter, r *http.Request, limit int64, buf *buffer) error {
	if r.ContentLength > limit {
		return errBodyTooLarge
	}
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	body := io.Reader(r.Body)
	if r.ContentLength < 0 {
		// It also makes the server close the connection instead of
		// waiting for the rest.
		body = http.MaxBytesReader(w, r.Body, limit)
	}
	// A length that is only claimed is no reason to take much memory. Once some of it has
	// come, the rest is believed, lest it be copied at each step.
	claimed := int(max(r.ContentLength, 0))
	buf.grow(min(claimed, maxPooled-bytes.MinRead) + 1)
	for {
		if n := len(buf.b); n == cap(buf.b) {
			buf.grow(max(n, min(claimed+1, believed*n)-n))
		}
		n, err := body.Read(buf.b[len(buf.b):cap(buf.b)])
		buf.b = buf.b[:len(buf.b)+n]
		switch {
		case int64(len(buf.b)) > limit: // the length was wrong: other code has replaced the body
			return errBodyTooLarge
		case errors.Is(err, io.EOF):
			return nil
		case err == nil:
		default:
			return err
		}
	}
}

// errConsumed: a request body was read before this middleware could.
var errConsumed = errors.New("something before this middleware has read the request's body, or a part of it (ParseForm and FormValue do, in Options.Scope, Class or Skip as well); " +
	"it must leave the body alone, or put it back whole, and set ContentLength where it has another length then")

// consumed returns errConsumed if n bytes cannot be all that there was of a body:
// its fingerprint would be that of less than what the handler finds in a form.
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

// parsed reports whether the body was read as a form. Of a content type that is
// malformed, or there more than once, net/http heeds what it can.
func parsed(r *http.Request) bool {
	mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return r.MultipartForm != nil || r.PostForm != nil && mediaType == "application/x-www-form-urlencoded"
}

// body is a request body that was read before. Its memory is lent: once freed
// it reads as a closed body, also to a goroutine that the handler left behind.
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

// whole reports whether nothing of it was read.
func (rb *body) whole() bool {
	rb.mu.Lock()
	defer rb.mu.Unlock()
	return !rb.closed && int64(rb.rest.Len()) == rb.rest.Size()
}

// Close implements io.Closer. After it, nothing refers to the body's memory.
func (rb *body) Close() error {
	rb.mu.Lock()
	defer rb.mu.Unlock()
	rb.closed = true
	rb.rest.Reset(nil)
	return nil
}
