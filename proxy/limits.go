package proxy

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"time"
)

// Limits bound what clients can use of the proxy. The zero value of each field stands
// for its default. All but Waiters cannot change while the proxy runs.
type Limits struct {
	// Connections is how many connections clients may have at a time. For one more, the
	// one that was idle longest is closed, or the new one if none is idle. The command
	// applies it: a Proxy sees requests only. Default DefaultConnections.
	Connections int `yaml:"connections"`
	// Memory is how many bytes may be held: content of protected requests, responses,
	// and 16 KiB for each request under way. Requests beyond it are refused (503) before
	// anything is executed. Default DefaultMemory.
	Memory Size `yaml:"memory"`
	// MemoryPerPeer is how many bytes of Memory the requests of one peer may hold, so that
	// it leaves some to others. A peer is an address; of IPv6, a network of 64 bits. With
	// Config.Forwarded, it is the last address in X-Forwarded-For. Clients behind one
	// address are one peer. Default: half of Memory.
	MemoryPerPeer Size `yaml:"memory_per_peer"`
	// Stall is how long a client may pause while it sends a request's content, or take
	// to read 64 KiB of a response. Writes are what is timed, and the kernel lets go of
	// its buffers in steps of a megabyte or so: a client has to take about that much in
	// this time. Default DefaultStall.
	Stall Duration `yaml:"stall"`
	// Upload is how long all the content of a protected request may take. For other
	// requests, and for responses, the proxy waits that long for the client in all, and one
	// second more for every MinRate bytes. Default DefaultUpload.
	Upload Duration `yaml:"upload"`
	// MinRate is how many bytes per second a client has to send or to take, once Upload is
	// used up. What a client sends over a WebSocket may be slower. Default DefaultMinRate.
	MinRate Size `yaml:"min_rate"`
	// Longest is how long an unprotected request may take in all: a WebSocket, a stream of
	// events or of HTTP/2, a download. Then its connection or stream is closed. Protected
	// requests end by Upload, Route.Timeout and Route.MaxWait. Default DefaultLongest.
	Longest Duration `yaml:"longest"`
	// Waiters is how many requests may wait, for others with their key or for the outcome
	// of an accepted operation (stet.Options.MaxWaiters), and how many may be on streams of
	// events at each Async.Status. One more is answered at once with what is known. Default
	// DefaultWaiters. It may change while the proxy runs.
	Waiters int `yaml:"waiters"`
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

// check finds out what is wrong.
func (l *Limits) check() error {
	if l.Connections < 0 {
		return &misplaced{[]any{"limits", "connections"}, fmt.Errorf("%d is negative", l.Connections)}
	}
	if l.Waiters < 0 {
		return &misplaced{[]any{"limits", "waiters"}, fmt.Errorf("%d is negative", l.Waiters)}
	}
	if l.Memory != 0 && l.Memory < minMemory {
		return &misplaced{[]any{"limits", "memory"}, fmt.Errorf("%d bytes are too few for anything; at least %d", l.Memory, minMemory)}
	}
	if l.MemoryPerPeer != 0 && (l.MemoryPerPeer < perRequest || l.MemoryPerPeer > cmp.Or(l.Memory, DefaultMemory)) {
		return &misplaced{[]any{"limits", "memory_per_peer"}, fmt.Errorf("%d bytes; give it %d, which a request counts for, to limits.memory, %d", l.MemoryPerPeer, perRequest, cmp.Or(l.Memory, DefaultMemory))}
	}
	return nil
}

const (
	// minMemory is the least Limits.Memory.
	minMemory = 1 << 20
	// perRequest is what a request counts for by itself.
	perRequest = 16 << 10
	// maxPiece is how much of a response has to be taken within Limits.Stall.
	maxPiece = 64 << 10
)

// perPeer is MemoryPerPeer, or its default.
func (l *Limits) perPeer() int64 {
	return int64(cmp.Or(l.MemoryPerPeer, cmp.Or(l.Memory, DefaultMemory)/2))
}

// memory counts the bytes that the proxy holds, of all requests or of one peer's.
type memory struct {
	limit int64
	used  atomic.Int64
}

// take takes n bytes; it is false, and takes none, if that is too much.
func (b *memory) take(n int64) bool {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return false
	}
	return true
}
