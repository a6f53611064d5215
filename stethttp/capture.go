package stethttp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/store"
)

// Errors of the response writer of a protected handler.
var (
	errReturned = errors.New("stethttp: write after the handler returned")
	errHijack   = fmt.Errorf("stethttp: a response that is stored for retries cannot be hijacked; Options.Skip passes such requests: %w", errors.ErrUnsupported)
	errCut      = errors.New("stethttp: the response is shorter than its Content-Length")
	errTooLarge = errors.New("stethttp: the response is larger than Policy.MaxResult, or in a transaction than 16 MiB")
)

// maxHeld bounds a response that is held back until its outcome is durable, in bytes, if the
// policy's MaxResult is smaller: in a transaction, and if the end of the connection is the end
// of the response. A response larger than MaxResult is sent whole and leaves a tombstone.
const maxHeld = 16 << 20

// capture is the http.ResponseWriter of a protected handler. It holds the response back,
// stores a copy up to a limit, and forwards flushed parts.
//
// The handler has its own header map. When it writes the header, final becomes a copy of that
// map: the sent and stored header. It is copied to the real writer only when the response
// begins. The stored copy is never read from there, because writers around this one change it.
//
// It has no Unwrap, so that http.ResponseController cannot bypass it.
type capture struct {
	w     http.ResponseWriter
	outer http.Header // the header before the handler was called, or nil
	limit int         // of the stored response, in bytes
	tx    bool        // nothing leaves before the end
	marks []string    // header fields that are not the handler's to send
	request
	ctx context.Context

	mu sync.Mutex
	handled
	passed
	deadlines
}

// request are the properties of a request on which its response depends.
type request struct {
	proto  [2]int   // of HTTP
	head   bool     // it is a HEAD
	accept []string // the content codings that it accepts
}

// handled is the handler's response.
type handled struct {
	header   http.Header
	final    http.Header // the header as the handler wrote it
	trailer  http.Header // once done
	status   int         // 0 until the handler wrote its header
	declared int64       // Content-Length as declared, or -1
	written  int64       // bytes of content that the handler wrote, or tried to
	content  []byte
	over     bool // larger than can be kept: passed on as it comes, or refused if held
	invalid  bool // the status code is not valid
	missing  bool // the handler has returned without having begun a response
	done     bool // the handler has returned
}

// passed is the state of the real writer.
type passed struct {
	sent  int  // bytes of content that were passed on
	still bool // Flush does nothing
	held  bool // nothing is passed on before the end
	begun bool // the real writer has the header
	blind bool // direct writes to it are not visible
	past  bool // other code has written to it directly
	left  bool // the client has left
}

// deadlines limit forwarded writes.
type deadlines struct {
	timed    bool          // there are some
	end      time.Time     // of the run
	patience time.Duration // that is left for a client that keeps the handler waiting
}

// capture returns a new writer for a call of the handler.
func (c *call) capture(limit int, tx bool) *capture {
	rw := &capture{w: c.w, limit: limit, tx: tx, ctx: context.Background(), marks: c.m.marks, handled: handled{declared: -1},
		request: request{proto: [2]int{c.r.ProtoMajor, c.r.ProtoMinor}, head: c.r.Method == http.MethodHead, accept: c.r.Header["Accept-Encoding"]}}
	if h := c.w.Header(); len(h) > 0 {
		rw.outer, rw.header = h.Clone(), h.Clone()
	} else {
		rw.header = make(http.Header)
	}
	return rw
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

// WriteHeader implements http.ResponseWriter. Statuses of 1xx are forwarded at once and are no
// part of the response. A status at which net/http would panic makes the response a problem.
func (c *capture) WriteHeader(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeHeader(status)
}

func (c *capture) writeHeader(status int) {
	if c.done || c.status != 0 {
		return
	}
	if 100 <= status && status < 200 && status != http.StatusSwitchingProtocols {
		c.past = c.past || c.writtenPast()
		c.publish(c.unmarked(c.header))
		c.w.WriteHeader(status)
		c.blind = c.blind || !c.past && c.writtenPast() // it takes this for a header
		return
	}
	c.final = c.unmarked(c.header)
	if !finalStatus(status) {
		c.status, c.invalid = http.StatusInternalServerError, true
		return
	}
	c.status = status
	if _, ok := c.final["Content-Length"]; ok {
		n, err := strconv.ParseInt(c.final.Get("Content-Length"), 10, 64)
		if err != nil || n < 0 || status == http.StatusNoContent {
			delete(c.final, "Content-Length")
		} else {
			c.declared = n
		}
	}
	endless := c.proto[0] <= 1 && (c.proto != [2]int{1, 1} || c.final.Get("Transfer-Encoding") == "identity")
	bare := c.head || !bodyAllowed(status) || c.declared == 0 // its header is all there is of it
	c.still = c.tx || endless || bare
	c.held = c.tx || c.head || endless && c.declared < 0
}

// publish makes a copy of header that of the real writer.
func (c *capture) publish(header http.Header) {
	h := c.w.Header()
	clear(h)
	maps.Copy(h, header.Clone())
}

// writtenPast reports whether the real writer has a header that is not from here.
// Writers of some frameworks can tell.
func (c *capture) writtenPast() bool {
	w, ok := c.w.(interface{ Written() bool })
	return ok && !c.begun && !c.blind && w.Written()
}

// Write implements http.ResponseWriter, with the errors of net/http. A broken connection is no
// error while the response is still stored, because retries will need it.
func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if over, err := c.admit(len(p)); over || err != nil {
		if err != nil {
			return 0, err
		}
		return c.pass(p)
	}
	c.content = append(c.content, p...)
	return len(p), nil
}

// admit checks a write of n bytes; over means that they must be passed on.
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
	if !c.over && len(c.content)+n > c.room() {
		c.over = true
		if !c.held {
			c.begin()
			c.forward(len(c.content))
		}
		c.content, c.sent = c.content[:0], 0
	}
	if c.over && c.held {
		return false, errTooLarge
	}
	return c.over, nil
}

// room is the most bytes of content that are held.
func (c *capture) room() int {
	if c.held {
		return max(c.limit, maxHeld)
	}
	return c.limit
}

// pass sends content that is not held. It holds the last byte of a declared length, so that the
// response cannot end before its outcome is durable.
func (c *capture) pass(p []byte) (int, error) {
	if c.ctx.Err() != nil { // this ends an endless response
		return 0, context.Cause(c.ctx)
	}
	now := p
	if c.written == c.declared {
		c.content = append(c.content, p[len(p)-1])
		now = p[:len(p)-1]
	}
	n := 0
	if err := c.push(func() (err error) { n, err = c.w.Write(now); return err }); err != nil {
		return n, err
	}
	return len(p), nil
}

// begin writes the header to the real writer.
func (c *capture) begin() {
	if c.begun {
		return
	}
	c.past = c.past || c.writtenPast()
	c.begun = true
	c.detect()
	c.publish(c.final)
	for name, values := range c.trailer {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			c.w.Header()[name] = values // before the header: otherwise net/http adds a Content-Length and sends no trailers
		}
	}
	c.w.WriteHeader(c.status)
}

// detect sets the content type that net/http would, so that it is stored.
func (c *capture) detect() {
	coded := c.final.Get("Content-Encoding") != "" || c.proto[0] <= 1 && c.final.Get("Transfer-Encoding") != ""
	if _, typed := c.final["Content-Type"]; !typed && !coded && len(c.content) > 0 {
		c.final.Set("Content-Type", http.DetectContentType(c.content))
	}
}

// forward sends the stored copy, up to the first n bytes.
func (c *capture) forward(n int) {
	if c.sent < n && !c.left {
		c.left = c.push(func() error { _, err := c.w.Write(c.content[c.sent:n]); return err }) != nil
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
		n := len(c.content)
		if n > 0 && int64(n) == c.declared {
			n-- // see pass
		}
		c.forward(n)
	}
	if c.left {
		return nil // see Write
	}
	if err := c.push(http.NewResponseController(c.w).Flush); err != nil && (c.over || errors.Is(err, http.ErrNotSupported)) {
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
	return c.control(func(rc *http.ResponseController) error {
		c.timed = false // the handler has its own
		return rc.SetWriteDeadline(t)
	})
}

// EnableFullDuplex is for http.ResponseController.
func (c *capture) EnableFullDuplex() error {
	return c.control((*http.ResponseController).EnableFullDuplex)
}

// control calls do, unless the handler has returned.
func (c *capture) control(do func(*http.ResponseController) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return errReturned
	}
	return do(http.NewResponseController(c.w))
}

// Hijack implements http.Hijacker. It returns an error that names Options.Skip.
func (c *capture) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errHijack }

// finish ends the handler's part. Later writes change nothing.
func (c *capture) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return
	}
	c.past = c.past || c.writtenPast()
	if c.status == 0 {
		c.missing = true
		c.writeHeader(http.StatusOK)
	}
	c.done = true
	if c.invalid {
		return
	}
	declared := c.final["Trailer"]
	for name, values := range c.header {
		if isTrailer(name, declared) && !slices.Contains(c.marks, http.CanonicalHeaderKey(strings.TrimPrefix(name, http.TrailerPrefix))) {
			if c.trailer == nil {
				c.trailer = make(http.Header)
			}
			c.trailer[name] = slices.Clone(values)
		}
	}
	if !c.begun {
		c.detect()
	}
}

// response returns the stored form of a finished response. The error is errTooLarge, errCut or
// nil.
func (c *capture) response(filter *headerFilter) (stet.Outcome, error) {
	if c.over {
		return stet.Outcome{}, errTooLarge
	}
	if c.declared >= 0 && int64(len(c.content)) != c.declared && !c.head && bodyAllowed(c.status) {
		return stet.Outcome{}, errCut
	}
	header := filter.fields(c.final, c.outer)
	if c.declared >= 0 {
		header = append(header, store.Field{Name: "Content-Length", Values: c.final["Content-Length"]})
	}
	if c.untyped() && filter.stores("Content-Type", nil) {
		header = append(header, store.Field{Name: "Content-Type"})
	}
	if codings := c.final["Content-Encoding"]; !accepts(c.accept, codings) {
		header = append(header, store.Field{Name: imposedName})
	}
	sortFields(header)
	out := response(c.status, header, c.content)
	if out.Trailer = filter.trailers(c.trailer, c.final); !storable(out) {
		return stet.Outcome{}, errTooLarge
	}
	return out, nil
}

// untyped reports whether the first caller gets content without a type. net/http must not add one
// to a replay.
func (c *capture) untyped() bool {
	_, typed := c.final["Content-Type"]
	_, before := c.outer["Content-Type"] // its removal is stored anyway
	return !typed && !before && len(c.content) > 0
}

// send sends the rest of the response. The outcome is durable.
func (c *capture) send() {
	fault.At(fault.ResponseBefore)
	c.begin()
	c.forward(len(c.content))
	trail(c.w.Header(), c.trailer)
	fault.At(fault.ResponseAfter)
}

// trail sets the trailers of a response whose header was written. A field of the header is a
// trailer only if trailer has it.
func trail(h, trailer http.Header) {
	for name := range h {
		if _, ok := trailer[name]; !ok && isTrailer(name, h["Trailer"]) {
			delete(h, name)
		}
	}
	maps.Copy(h, trailer)
}

// retract undoes what the handler did to the real writer's header. It is false if the
// header was sent already.
func (c *capture) retract() bool {
	if c.begun || c.past {
		return false
	}
	h := c.w.Header()
	clear(h)
	maps.Copy(h, c.outer)
	return true
}

// free releases the copy of the response.
func (c *capture) free() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done, c.content = true, nil
}
