package main

import (
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// gate is a listener with a limit of open connections. At the limit, it closes the connection
// that has been idle longest, or the new one if none is idle. A connection that has not sent the
// whole header of a request is idle, too.
type gate struct {
	net.Listener
	most int
	log  *slog.Logger

	mu      sync.Mutex
	in      map[*passage]time.Time // since when they are idle; zero: they are not
	refused uint64
	said    time.Time // when the log had it last
}

// turnedAwayEvery is the shortest time between two lines about refused connections.
const turnedAwayEvery = time.Minute

func newGate(l net.Listener, most int, log *slog.Logger) *gate {
	return &gate{Listener: l, most: most, log: log, in: map[*passage]time.Time{}}
}

// passage is a connection that was let in.
type passage struct {
	net.Conn
	gate *gate
}

// Accept implements net.Listener.
func (g *gate) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if p := g.admit(c); p != nil {
			return p, nil
		}
		_ = c.Close() // nothing was read
	}
}

// admit makes room for a connection, and returns nil if there is none.
func (g *gate) admit(c net.Conn) *passage {
	g.mu.Lock()
	var oldest *passage
	if len(g.in) >= g.most {
		for p, since := range g.in {
			if !since.IsZero() && (oldest == nil || since.Before(g.in[oldest])) {
				oldest = p
			}
		}
		if oldest == nil {
			g.refused++
			refused, due := g.refused, time.Since(g.said) >= turnedAwayEvery
			if due {
				g.said = time.Now()
			}
			g.mu.Unlock()
			if due {
				g.log.Warn("connections are refused: limits.connections are open, and none of them is idle",
					slog.Int("connections", g.most), slog.Uint64("so_far", refused))
			}
			return nil
		}
		delete(g.in, oldest)
	}
	p := &passage{c, g}
	g.in[p] = time.Now()
	g.mu.Unlock()
	if oldest != nil {
		_ = oldest.Conn.Close()
	}
	return p
}

// state is for http.Server.ConnState.
func (g *gate) state(c net.Conn, s http.ConnState) {
	for {
		inner, ok := c.(interface{ NetConn() net.Conn }) // TLS
		if !ok {
			break
		}
		c = inner.NetConn()
	}
	p, ok := c.(*passage)
	if !ok {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, in := g.in[p]; !in {
		return
	}
	switch s {
	case http.StateNew: // it is idle since it was let in
	case http.StateIdle:
		g.in[p] = time.Now()
	default:
		g.in[p] = time.Time{}
	}
}

// Close implements net.Conn.
func (p *passage) Close() error {
	p.gate.mu.Lock()
	delete(p.gate.in, p)
	p.gate.mu.Unlock()
	return p.Conn.Close()
}

// turnedAway counts the refused connections.
func (g *gate) turnedAway() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refused
}
