package proxy

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// maxSpent bounds how many connections in a row a request finds unusable.
const maxSpent = 16

// serviceTransport is the way to the service. A service that answers 500 often closes the
// connection right after that without having said so: servers do that when a handler
// has raised an exception or panicked. What was sent on it meanwhile would have an unknown
// outcome, so no other request is sent on it.
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
	defer func() { sent.end() }()
	res, err := s.Transport.RoundTrip(r)
	for n := 1; err != nil && n < maxSpent && r.Context().Err() == nil && t.unwritten(); n++ {
		again := r.WithContext(r.Context()) // a copy
		if again.Body = t.again(); again.Body == nil {
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

// content is what a request sends that is not kept. A try that has read nothing of it does
// not close it either, so that another one can send it.
type content struct {
	body io.ReadCloser

	mu     sync.Mutex
	read   bool
	over   bool // it is another try's now
	last   bool // there is no other try
	closed bool // before that
}

// sendable returns the request with a content that another try can send, if that is neither
// kept nor the transport's to rewind.
func (t *trip) sendable(r *http.Request) (*http.Request, *content) {
	if t.kept || r.GetBody != nil || r.Body == nil || r.Body == http.NoBody {
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
	over := c.over
	c.read = true
	c.mu.Unlock()
	if over {
		return 0, http.ErrBodyReadAfterClose
	}
	return c.body.Read(p)
}

// Close implements io.Closer.
func (c *content) Close() error {
	c.mu.Lock()
	c.closed = true
	leave := c.over || !c.read && !c.last
	c.mu.Unlock()
	if leave {
		return nil
	}
	return c.body.Close()
}

// next returns the content for another try; nil if something was read of it, or there is none.
func (c *content) next() *content {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read {
		return nil
	}
	c.over = true
	return &content{body: c.body}
}

// end says that there is no other try.
func (c *content) end() {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.last = true
	left := c.closed && !c.read
	c.mu.Unlock()
	if left {
		_ = c.body.Close()
	}
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

// countedConn knows whether anything was written to it.
type countedConn struct {
	net.Conn
	shared  bool         // requests are sent at the same time
	written atomic.Int64 // writes that were begun
	retired atomic.Bool  // nothing is written any more

	mu    sync.Mutex
	turn  int64 // of the request that has got it last
	spent bool  // that one was the last
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
// one, so that the request is not written to it.
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

// retire closes the connection. The transport finds that out by itself.
func (c *countedConn) retire() {
	c.retired.Store(true)
	_ = c.Conn.Close()
}

// spend lets no other request have the trip's connection, if no other has it yet.
func (t *trip) spend() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.conn != nil && t.conn.spend(t.turn)
}

// unwritten reports whether the request has got a connection that others had had before,
// and it is certain that no byte of it was sent.
func (t *trip) unwritten() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reused && t.conn != nil && t.conn.written.Load() == t.before
}

// reconnect forgets the connection, which says nothing of a try without one, or with one
// that is shared.
func (t *trip) reconnect() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conn, t.reused = nil, false
}

// again returns the content anew, if it was kept; otherwise nil.
func (t *trip) again() io.ReadCloser {
	switch {
	case !t.kept:
		return nil
	case len(t.content) == 0:
		return opaque{http.NoBody}
	}
	return io.NopCloser(bytes.NewReader(t.content))
}
