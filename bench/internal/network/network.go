// Package network is a network between programs of one machine: a proxy that delays each
// direction of its connections by a time. It delays without limiting the rate: bytes are
// delayed at the same time as earlier ones, so a stream of many packets
// arrives as fast as it was sent, later.
package network

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

const (
	parcelSize = 64 << 10         // bytes that are read at a time
	underWay   = 32 << 20         // bytes of one direction; more are not read until some have arrived
	patience   = 10 * time.Second // for a peer that does not read
)

// Proxy delays what goes between its clients and a server.
type Proxy struct {
	target   string
	listener net.Listener
	out, in  *line
	work     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
}

// Start makes a proxy in front of target (host:port) that delays each direction.
func Start(target string, delay time.Duration) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is this machine
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, listener: l, out: newLine(delay), in: newLine(delay), conns: map[net.Conn]struct{}{}}
	p.work.Go(p.out.run)
	p.work.Go(p.in.run)
	p.work.Go(p.serve)
	return p, nil
}

// Addr is host:port of the proxy.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Close ends all connections and the proxy.
func (p *Proxy) Close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.out.end()
	p.in.end()
	p.work.Wait()
}

// keep has a connection closed with the proxy; false: it is closed already.
func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.conns[c] = struct{}{}
	}
	return !p.closed
}

func (p *Proxy) forget(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	_ = c.Close()
}

func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.work.Go(func() { p.connect(client) })
	}
}

func (p *Proxy) connect(client net.Conn) {
	defer p.forget(client)
	server, err := net.Dial("tcp", p.target) //nolint:noctx // it is this machine
	if err != nil {
		return
	}
	defer p.forget(server)
	if !p.keep(client) || !p.keep(server) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.out.carry(client, server) })
	both.Go(func() { p.in.carry(server, client) })
	both.Wait()
}

// line is one direction of all connections: bytes that are put in come out after the delay,
// in order.
type line struct {
	delay time.Duration

	mu     sync.Mutex
	turn   *sync.Cond // mu; the line has got something, has less in progress, or is over
	queue  []parcel
	bytes  int // in progress
	closed bool
}

// parcel is one read.
type parcel struct {
	due  time.Time
	to   net.Conn
	b    []byte
	last func() // of a connection: it has arrived, and b is empty
}

func newLine(delay time.Duration) *line {
	l := &line{delay: delay}
	l.turn = sync.NewCond(&l.mu)
	return l
}

// carry puts on the line what from sends, until it ends, and returns when its end has
// arrived.
func (l *line) carry(from, to net.Conn) {
	buffer := make([]byte, parcelSize)
	for {
		n, err := from.Read(buffer)
		if n > 0 && !l.put(parcel{to: to, b: append([]byte(nil), buffer[:n]...)}) {
			return
		}
		if err == nil {
			continue
		}
		arrived := make(chan struct{})
		if l.put(parcel{to: to, last: func() { close(arrived) }}) {
			<-arrived
		}
		if tcp, ok := to.(*net.TCPConn); ok && errors.Is(err, io.EOF) {
			_ = tcp.CloseWrite()
			return
		}
		_ = to.Close()
		return
	}
}

// put puts a parcel on the line, once there is room; false: the line is over.
func (l *line) put(p parcel) bool {
	p.due = time.Now().Add(l.delay)
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closed && l.bytes > underWay {
		l.turn.Wait()
	}
	if l.closed {
		return false
	}
	l.queue = append(l.queue, p)
	l.bytes += len(p.b)
	l.turn.Broadcast()
	return true
}

// run delivers parcels when they are due. All have the same delay, so the first is always the
// next.
func (l *line) run() {
	precise()
	var arrived []parcel
	for {
		l.mu.Lock()
		for len(l.queue) == 0 && !l.closed {
			l.turn.Wait()
		}
		if l.closed {
			rest := l.queue
			l.queue = nil
			l.mu.Unlock()
			for _, p := range rest {
				p.deliver(false)
			}
			return
		}
		first := l.queue[0].due
		l.mu.Unlock()
		sleepUntil(first)
		now := time.Now()
		l.mu.Lock()
		n := 0
		for n < len(l.queue) && !l.queue[n].due.After(now) {
			l.bytes -= len(l.queue[n].b)
			n++
		}
		arrived = append(arrived[:0], l.queue[:n]...)
		l.queue = append(l.queue[:0], l.queue[n:]...)
		l.turn.Broadcast()
		l.mu.Unlock()
		for _, p := range arrived {
			p.deliver(true)
		}
		clear(arrived)
	}
}

func (p parcel) deliver(write bool) {
	if p.last != nil {
		p.last()
		return
	}
	if !write {
		return
	}
	_ = p.to.SetWriteDeadline(time.Now().Add(patience))
	if _, err := p.to.Write(p.b); err != nil {
		_ = p.to.Close() // which the reader of the other direction sees
	}
}

func (l *line) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.turn.Broadcast()
}
