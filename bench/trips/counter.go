package main

import (
	"bufio"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// counter is a proxy in front of PostgreSQL or Redis that counts round trips: a request that
// is sent while its connection waits for no answer begins one. A request sent before that
// answer shares the trip, as in a pipeline. Requests whose answer no caller waits for are
// not counted.
type counter struct {
	target   string
	speaks   protocol
	listener net.Listener
	trips    atomic.Int64
	asked    atomic.Int64 // requests that are not answered yet, of all connections
	work     sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn // of both sides
}

// protocol reads one message of a connection. begin reads a client's first message;
// nil if it is like the others.
type protocol struct {
	begin    func(client *bufio.Reader, to io.Writer) (message []byte, err error)
	request  func(client *bufio.Reader) (message []byte, asks bool, err error)
	response func(server *bufio.Reader) (message []byte, ends bool, err error)
	behind   func(request []byte) bool // no caller waits for its answer; nil: callers wait for all
}

func newCounter(target string, speaks protocol) (*counter, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &counter{target: target, speaks: speaks, listener: l}
	c.work.Go(c.serve)
	return c, nil
}

func (c *counter) addr() string { return c.listener.Addr().String() }

// close ends all connections.
func (c *counter) close() {
	_ = c.listener.Close()
	c.mu.Lock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.mu.Unlock()
	c.work.Wait()
}

func (c *counter) serve() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", c.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		c.mu.Lock()
		c.conns = append(c.conns, client, server)
		c.mu.Unlock()
		waiting := new(atomic.Int64) // requests without an answer
		c.work.Go(func() { c.requests(client, server, waiting) })
		c.work.Go(func() { c.responses(client, server, waiting) })
	}
}

// requests passes on what the client says. It counts before it does, so that an answer finds
// its request counted.
func (c *counter) requests(client, server net.Conn, waiting *atomic.Int64) {
	defer server.Close()
	in := bufio.NewReader(client)
	ask := func(message []byte) {
		behind := c.speaks.behind != nil && c.speaks.behind(message)
		if c.asked.Add(1); waiting.Add(1) == 1 && !behind {
			c.trips.Add(1)
		}
	}
	if c.speaks.begin != nil {
		message, err := c.speaks.begin(in, client)
		if err != nil {
			return
		}
		ask(message)
		if _, err := server.Write(message); err != nil {
			return
		}
	}
	for {
		message, asks, err := c.speaks.request(in)
		if err != nil {
			return
		}
		if asks {
			ask(message)
		}
		if _, err := server.Write(message); err != nil {
			return
		}
	}
}

// responses passes on what the server says.
func (c *counter) responses(client, server net.Conn, waiting *atomic.Int64) {
	defer client.Close()
	out := bufio.NewReader(server)
	for {
		message, ends, err := c.speaks.response(out)
		if err != nil {
			return
		}
		if ends {
			c.asked.Add(-1)
			waiting.Add(-1)
		}
		if _, err := client.Write(message); err != nil {
			return
		}
	}
}
