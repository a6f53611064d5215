package stethttp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/fault"
)

// What a handler is told that asks the writer for what it cannot do.
var (
	errReturned = errors.New("stethttp: write after the handler returned")
	errHijack   = fmt.Errorf("stethttp: a response that is kept for retries cannot be hijacked; Options.Skip lets such requests through: %w", errors.ErrUnsupported)
	errCut      = errors.New("stethttp: the response is shorter than its Content-Length")
	errTooLarge = errors.New("stethttp: the response is larger than can be kept (Policy.MaxResult), or in a transaction held back (16 MiB)")
)

// capture is the http.ResponseWriter of a protected handler. It holds the
// response back, keeps a copy of it up to a limit, and passes on what the
// handler flushes.
//
// The handler has a header map of its own. When it writes its header, the map
// is copied to the real writer's, which from then on is the header as it is
// sent and stored; the handler's may change without effect, as net/http has it.
//
// It has no Unwrap: http.ResponseController must not get past it.
type capture struct {
	w     http.ResponseWriter
	outer http.Header // what was set before the handler was called, or nil
	limit int         // of body, in bytes
	tx    bool        // nothing leaves before the end
	still bool        // Flush does nothing
	head  bool        // the request is a HEAD
	ctx   context.Context

	mu       sync.Mutex
	header   http.Header
	trailer  http.Header // once done
	status   int         // 0 until the handler wrote its header
	declared int64       // Content-Length as declared, or -1
	written  int64       // bytes of content that the handler wrote, or tried to
	buf      *buffer
	sent     int  // bytes of buf that were passed on
	begun    bool // the real writer has the header
	over     bool // larger than limit: passed on as it comes, not kept
	invalid  bool // the handler's status is none
	left     bool // the client has left
	done     bool // the handler has returned
}

func newCapture(w http.ResponseWriter, r *http.Request, limit int, tx bool) *capture {
	c := &capture{w: w, limit: limit, tx: tx, declared: -1, buf: newBuffer(), head: r.Method == http.MethodHead, ctx: context.Background()}
	c.still = tx || !r.ProtoAtLeast(1, 1)
	if h := w.Header(); len(h) > 0 {
		c.outer, c.header = h.Clone(), h.Clone()
	} else {
		c.header = make(http.Header)
	}
	return c
}

// Header implements http.ResponseWriter.
func (c *capture) Header() http.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return make(http.Header) // of a goroutine that was left behind
	}
	return c.header
}

// WriteHeader implements http.ResponseWriter. Statuses of 1xx are passed on at
// once and are no part of the response; one that net/http would panic at makes
// the response a problem.
func (c *capture) WriteHeader(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeHeader(status)
}

func (c *capture) writeHeader(status int) {
	if c.done || c.status != 0 {
		return
	}
	informational := 100 <= status && status < 200 && status != http.StatusSwitchingProtocols
	if !informational && !finalStatus(status) {
		c.status, c.invalid = http.StatusInternalServerError, true
		return
	}
	c.publish()
	if informational {
		c.w.WriteHeader(status)
		return
	}
	c.status = status
	h := c.w.Header()
	if cl := h.Get("Content-Length"); cl != "" {
		n, err := strconv.ParseInt(cl, 10, 64)
		if err != nil || n < 0 {
			h.Del("Content-Length")
		} else {
			c.declared = n
		}
	}
}

// publish copies the handler's header to the real writer.
func (c *capture) publish() {
	h := c.w.Header()
	for name := range h {
		if _, ok := c.header[name]; !ok {
			delete(h, name)
		}
	}
	maps.Copy(h, c.header)
}

// Write implements http.ResponseWriter, with the errors of net/http. The end of
// the connection is not among them while the response is still kept: the
// operation goes on for those who ask again.
func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if over, err := c.admit(len(p)); over || err != nil {
		if err != nil {
			return 0, err
		}
		return c.pass(p)
	}
	c.buf.b = append(c.buf.b, p...)
	return len(p), nil
}

// WriteString implements io.StringWriter.
func (c *capture) WriteString(s string) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if over, err := c.admit(len(s)); over || err != nil {
		if err != nil {
			return 0, err
		}
		return c.pass([]byte(s))
	}
	c.buf.b = append(c.buf.b, s...)
	return len(s), nil
}

// admit looks at a write of n bytes; over means that they are to be passed on.
func (c *capture) admit(n int) (over bool, err error) {
	if c.done {
		return false, errReturned
	}
	if c.status == 0 {
		c.writeHeader(http.StatusOK)
	}
	if n == 0 {
		return false, nil
	}
	if c.invalid || !bodyAllowed(c.status) {
		return false, http.ErrBodyNotAllowed
	}
	c.written += int64(n)
	if c.declared >= 0 && c.written > c.declared {
		return false, http.ErrContentLength
	}
	if !c.over && len(c.buf.b)+n > c.limit {
		c.over = true
		if !c.tx {
			c.begin()
			c.forward(len(c.buf.b))
		}
		c.buf.b, c.sent = c.buf.b[:0], 0
	}
	if c.over && c.tx {
		return false, errTooLarge
	}
	return c.over, nil
}

// pass passes on content that is not kept. The last byte of a declared length
// stays behind, so that the response cannot end before its outcome is durable.
func (c *capture) pass(p []byte) (int, error) {
	if c.ctx.Err() != nil { // nothing else might ever end an endless response
		return 0, context.Cause(c.ctx)
	}
	now := p
	if c.written == c.declared {
		c.buf.b = append(c.buf.b, p[len(p)-1])
		now = p[:len(p)-1]
	}
	if n, err := c.w.Write(now); err != nil {
		return n, err
	}
	return len(p), nil
}

// begin gives the header to the real writer.
func (c *capture) begin() {
	if c.begun {
		return
	}
	c.begun = true
	c.detect()
	c.w.WriteHeader(c.status)
}

// detect finds the content type as net/http would, so that it is stored too.
func (c *capture) detect() {
	h := c.w.Header()
	_, typed := h["Content-Type"]
	if !typed && len(c.buf.b) > 0 && h.Get("Content-Encoding") == "" && h.Get("Transfer-Encoding") == "" {
		h.Set("Content-Type", http.DetectContentType(c.buf.b))
	}
}

// forward passes on what is kept, up to the first n bytes.
func (c *capture) forward(n int) {
	if c.sent < n && !c.left {
		if _, err := c.w.Write(c.buf.b[c.sent:n]); err != nil {
			c.left = true
		}
	}
	c.sent = max(c.sent, n)
}

// Flush implements http.Flusher.
func (c *capture) Flush() { _ = c.FlushError() }

// FlushError is for http.ResponseController.
func (c *capture) FlushError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return errReturned
	}
	if c.status == 0 {
		c.writeHeader(http.StatusOK)
	}
	if c.still || c.invalid {
		return nil
	}
	c.begin()
	if !c.over {
		n := len(c.buf.b)
		if n > 0 && int64(n) == c.declared {
			n-- // see pass
		}
		c.forward(n)
	}
	if err := http.NewResponseController(c.w).Flush(); err != nil && (c.over || errors.Is(err, http.ErrNotSupported)) {
		return err
	}
	return nil
}

// SetReadDeadline is for http.ResponseController.
func (c *capture) SetReadDeadline(t time.Time) error {
	return c.control(func(rc *http.ResponseController) error { return rc.SetReadDeadline(t) })
}

// SetWriteDeadline is for http.ResponseController.
func (c *capture) SetWriteDeadline(t time.Time) error {
	return c.control(func(rc *http.ResponseController) error { return rc.SetWriteDeadline(t) })
}

// EnableFullDuplex is for http.ResponseController.
func (c *capture) EnableFullDuplex() error {
	return c.control((*http.ResponseController).EnableFullDuplex)
}

// control lets the handler, but nothing that it left behind, at the connection.
func (c *capture) control(do func(*http.ResponseController) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return errReturned
	}
	return do(http.NewResponseController(c.w))
}

// Hijack implements http.Hijacker, to say why not.
func (c *capture) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errHijack }

// finish ends the handler's part: the response is what was written until now,
// and later writes change nothing.
func (c *capture) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.status == 0 {
		c.writeHeader(http.StatusOK)
	}
	c.done = true
	if c.invalid {
		return
	}
	declared := c.w.Header()["Trailer"]
	for name, values := range c.header {
		if isTrailer(name, declared) {
			if c.trailer == nil {
				c.trailer = make(http.Header)
			}
			c.trailer[name] = values
		}
	}
	if !c.begun {
		c.detect()
	}
}

// response returns what is stored of a finished response. The error is
// errTooLarge, errCut or nil.
func (c *capture) response(filter *headerFilter, limit int) (stored, error) {
	if c.over {
		return stored{}, errTooLarge
	}
	if c.declared >= 0 && int64(len(c.buf.b)) != c.declared && !c.head && bodyAllowed(c.status) {
		return stored{}, errCut
	}
	h := c.w.Header()
	s := stored{status: c.status, header: filter.fields(h, c.outer), trailer: filter.trailers(c.trailer, h), body: c.buf.b}
	if c.declared >= 0 && c.status != http.StatusNoContent {
		s.header = append(s.header, field{"Content-Length", h["Content-Length"]})
		sortFields(s.header)
	}
	if !s.storable() || s.size() > limit {
		return stored{}, errTooLarge
	}
	return s, nil
}

// send gives the caller the rest of the response, whose outcome is durable.
func (c *capture) send() {
	fault.At(fault.ResponseBefore)
	h := c.w.Header()
	for name, values := range c.trailer {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			h[name] = values // before the header, lest net/http adds a Content-Length and has no trailers
		}
	}
	c.begin()
	c.forward(len(c.buf.b))
	maps.Copy(h, c.trailer)
	fault.At(fault.ResponseAfter)
}

// retract undoes what the handler did to the real writer's header. It is false
// if that was sent already.
func (c *capture) retract() bool {
	if c.begun {
		return false
	}
	h := c.w.Header()
	clear(h)
	maps.Copy(h, c.outer)
	return true
}

// free lets go of the copy of the response.
func (c *capture) free() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = true
	if c.buf != nil {
		c.buf.free()
		c.buf = nil
	}
}
