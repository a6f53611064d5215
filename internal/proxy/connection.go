package proxy

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// maxSpent is how many unusable connections in a row a request tries.
const maxSpent = 16

// serviceTransport sends requests to the service. After a 500 no other request is sent on the
// connection: many servers close it without notice when a handler has raised an exception, and
// the outcome of a request on it would be unknown.
type serviceTransport struct{ *http.Transport }

// RoundTrip implements http.RoundTripper. A request is sent once: on another connection
// only if nothing was written to the one before.
func (s serviceTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	t := tripOf(r.Context())
	if t == nil {
		t = &trip{}
		r = r.WithContext(t.context(r.Context()))
	}
	r, sent := t.sendable(r)
	res, err := s.Transport.RoundTrip(r)
	for n := 1; err != nil && n < maxSpent && r.Context().Err() == nil && t.unwritten(); n++ {
		again := r.WithContext(r.Context()) // a copy
		if t.small != nil {
			again.Body = io.NopCloser(bytes.NewReader(t.small))
		} else if !t.empty {
			next := sent.next()
			if next == nil {
				break
			}
			again.Body, sent = next, next
		}
		t.reconnect()
		res, err = s.Transport.RoundTrip(again)
	}
	if err == nil && res.StatusCode == http.StatusInternalServerError && t.spend() {
		res.Body = &lastContent{res.Body, t.conn}
	}
	return res, err
}

// content is a request's content for one try. Another try can send it if none of it was read. The
// transport does not close it: httputil.ReverseProxy does.
type content struct {
	body io.Reader

	mu     sync.Mutex
	read   bool
	closed bool // also when another try has it
}

// sendable returns the request with a content that another try can send. A request whose content the
// transport can rewind needs none.
func (t *trip) sendable(r *http.Request) (*http.Request, *content) {
	if t.empty || t.small != nil || r.GetBody != nil || r.Body == nil || r.Body == http.NoBody {
		return r, nil
	}
	c := &content{body: r.Body}
	r = r.WithContext(r.Context()) // a copy
	r.Body = c
	return r, c
}

// Read implements io.Reader.
func (c *content) Read(p []byte) (int, error) {
	c.mu.Lock()
	closed := c.closed
	c.read = c.read || !closed
	c.mu.Unlock()
	if closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return c.body.Read(p)
}

// Close implements io.Closer.
func (c *content) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return nil
}

// next returns the content for another try, nil if part of it was read.
func (c *content) next() *content {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read {
		return nil
	}
	c.closed = true
	return &content{body: c.body}
}

// lastContent is the content of the last response of a connection.
type lastContent struct {
	io.ReadCloser
	conn *countedConn
}

// Read implements io.Reader. At the end it closes the connection.
func (l *lastContent) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	if err != nil {
		l.conn.retire()
	}
	return n, err
}

// Close implements io.Closer.
func (l *lastContent) Close() error {
	err := l.ReadCloser.Close()
	l.conn.retire()
	return err
}

// countedConn counts the writes to a connection.
type countedConn struct {
	net.Conn
	shared  bool         // requests are sent at the same time
	written atomic.Int64 // writes that were begun
	retired atomic.Bool  // nothing is written any more

	mu    sync.Mutex
	turn  int64 // of the last request on it
	spent bool  // no other request is sent on it
}

// Write implements net.Conn.
func (c *countedConn) Write(p []byte) (int, error) {
	if c.retired.Load() {
		return 0, net.ErrClosed
	}
	c.written.Add(1)
	return c.Conn.Write(p)
}

// take returns the turn of a request that has got the connection. It retires a spent
// connection, so that the request is not written to it.
func (c *countedConn) take() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spent {
		c.retire()
	}
	c.turn++
	return c.turn
}

// spend makes a turn the last one, unless another has begun.
func (c *countedConn) spend(turn int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turn != turn {
		return false
	}
	c.spent = true
	return true
}

// retire closes the connection. The transport then drops it.
func (c *countedConn) retire() {
	c.retired.Store(true)
	_ = c.Close()
}

// spend keeps other requests from the trip's connection, if no other has it yet.
func (t *trip) spend() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.conn != nil && t.conn.spend(t.turn)
}

// unwritten reports whether the request has a reused connection, and certainly no byte of it
// was sent.
func (t *trip) unwritten() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reused && t.conn != nil && t.conn.written.Load() == t.before
}

// reconnect removes the connection of the last try.
func (t *trip) reconnect() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conn, t.reused = nil, false
}
