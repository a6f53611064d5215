package redis_test

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// lossy is a proxy in front of a Redis server that loses replies to scripts: the
// server executes, and then the connection is reset instead of the reply being
// forwarded.
type lossy struct {
	net.Listener
	target string
	armed  atomic.Int64 // replies that are still to be lost
	lost   atomic.Int64
	work   sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func newLossy(t testing.TB, target string) *lossy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &lossy{Listener: l, target: target, conns: make(map[net.Conn]struct{})}
	p.work.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		p.work.Wait()
	})
	return p
}

func (p *lossy) keep(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = struct{}{}
}

// cut resets all connections.
func (p *lossy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
		delete(p.conns, c)
	}
}

func (p *lossy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	p.keep(client)
	p.keep(server)
	var doomed atomic.Bool
	p.work.Go(func() {
		defer server.Close()
		b := make([]byte, 64<<10)
		for {
			n, err := client.Read(b)
			if bytes.Contains(b[:n], []byte("EVALSHA")) && p.armed.Add(-1) >= 0 {
				doomed.Store(true)
			}
			if _, werr := server.Write(b[:n]); err != nil || werr != nil {
				return
			}
		}
	})
	b := make([]byte, 64<<10)
	for {
		n, err := server.Read(b)
		if n > 0 && doomed.Load() {
			p.lost.Add(1)
			_ = client.(*net.TCPConn).SetLinger(0)
			return
		}
		if _, werr := client.Write(b[:n]); err != nil || werr != nil {
			return
		}
	}
}

// lose arranges for the replies to the next n scripts to be lost.
func (p *lossy) lose(n int) { p.armed.Store(int64(n)) }

var _ io.Closer = (*lossy)(nil)
