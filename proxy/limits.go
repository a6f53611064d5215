package proxy

import (
	"cmp"
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
