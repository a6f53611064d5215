package proxy

import (
	"bufio"
	"cmp"
	"errors"
	"net"
	"sync/atomic"
	"time"
)

// Limits bound what clients can use of the proxy. Only Waiters can change while it runs.
type Limits struct {
	Connections   int      `yaml:"connections"`
	Memory        Size     `yaml:"memory"`
	MemoryPerPeer Size     `yaml:"memory_per_peer"`
	Stall         Duration `yaml:"stall"`
	Upload        Duration `yaml:"upload"`
	MinRate       Size     `yaml:"min_rate"`
	Longest       Duration `yaml:"longest"`
	Waiters       int      `yaml:"waiters"`
}

// Defaults of Limits.
const (
	DefaultConnections = 4096
	DefaultMemory      = 256 << 20
	DefaultWaiters     = 1024
	DefaultStall       = 30 * time.Second
	DefaultUpload      = time.Minute
	DefaultMinRate     = 1 << 10 // bytes per second
	DefaultLongest     = 24 * time.Hour
)

// drainStall is the greatest Limits.Stall while the proxy drains.
const drainStall = 2 * time.Second

func (l *Limits) check() error {
	if l.Memory != 0 && l.Memory < minMemory {
		return at("memory", "%d bytes are too few for anything; at least %d", l.Memory, minMemory)
	}
	if l.MemoryPerPeer != 0 && (l.MemoryPerPeer < perRequest || l.MemoryPerPeer > cmp.Or(l.Memory, DefaultMemory)) {
		return at("memory_per_peer", "%d bytes; give it %d, which a request counts for, to limits.memory, %d", l.MemoryPerPeer, perRequest, cmp.Or(l.Memory, DefaultMemory))
	}
	return nil
}

const (
	// minMemory is the least Limits.Memory.
	minMemory = 1 << 20
	// perRequest is what each request counts for.
	perRequest = 16 << 10
	// maxPiece is how much of a response a client must read within Limits.Stall.
	maxPiece = 64 << 10
)

// perPeer is MemoryPerPeer, or its default.
func (l *Limits) perPeer() int64 {
	return int64(cmp.Or(l.MemoryPerPeer, cmp.Or(l.Memory, DefaultMemory)/2))
}

// memory counts the bytes in memory, of all requests or of one peer.
type memory struct {
	limit int64
	used  atomic.Int64
}

// take takes n bytes. It returns false, and takes none, if that exceeds the limit.
func (b *memory) take(n int64) bool {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return false
	}
	return true
}

// pace is how many bytes a client has sent or read, and how long the proxy has waited for it.
type pace struct {
	began  time.Time // when it was waited for last
	waited time.Duration
	bytes  int64
}

// maxCredit is the longest time that bytes add.
const maxCredit = 1000 * time.Hour

// upload is Upload, or its default.
func (l *Limits) upload() time.Duration { return cmp.Or(time.Duration(l.Upload), DefaultUpload) }

// patience is how much longer the proxy waits for a client.
func (l *Limits) patience(p *pace) time.Duration {
	credit := float64(p.bytes) / float64(cmp.Or(l.MinRate, DefaultMinRate)) // seconds
	return l.upload() + time.Duration(min(credit, maxCredit.Seconds())*float64(time.Second)) - p.waited
}

// Hijack implements http.Hijacker, for WebSocket.
func (v *requestState) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := v.control.Hijack()
	if err != nil {
		return nil, nil, err
	}
	return &switched{c, v}, rw, nil
}

// switched is a client's connection after it has switched to another protocol.
type switched struct {
	net.Conn
	state *requestState
}

// Write implements io.Writer. It takes the client to make progress.
func (s *switched) Write(p []byte) (int, error) {
	s.state.deadline(s.SetWriteDeadline, &s.state.writing)
	n, err := s.Conn.Write(p)
	s.state.done(s.SetWriteDeadline, &s.state.writing, true, n)
	return n, err
}

// CloseWrite closes the writing side, if the connection can.
func (s *switched) CloseWrite() error {
	if c, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}
