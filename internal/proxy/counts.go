package proxy

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Counts are totals since the Proxy was made.
type Counts struct {
	// Unprotected counts requests that have a key and passed unprotected.
	Unprotected uint64
	// Refused counts values of HeaderEmit that are no messages. Lost counts messages of responses
	// that could not be stored.
	Refused, Lost uint64
	// Busy counts requests refused by Limits.Memory or MemoryPerPeer.
	Busy uint64
	// Runs is how many protected requests the service has now.
	Runs int
	// InHand is how many bytes are in memory now: see Limits.Memory.
	InHand int64
}

// Counts returns the counts so far.
func (p *Proxy) Counts() Counts {
	return Counts{Unprotected: p.unprotected.count.Load(), Refused: p.emits.refused.Load(), Lost: p.emits.lost.Load(), Busy: uint64(p.busy.Load()), Runs: int(p.runs.Load()), InHand: p.memory.used.Load()}
}

// unprotected counts and logs requests that pass although they have a key.
type unprotected struct {
	log   *slog.Logger
	count atomic.Uint64
	due   seldom
	first sync.Once // request without a key, if there are no routes
}

// keyless logs the first request without a key of a proxy without routes.
func (u *unprotected) keyless(method string) {
	u.first.Do(func() {
		u.log.Warn("proxy: requests without an idempotency key pass unprotected: there are no routes, so a key is optional on every path. "+
			"To refuse such requests, name the path in routes, where a key is required by default. This is logged once", slog.String("method", method))
	})
}

// passed counts a request that is not protected, and logs some of them. why is "" for requests
// without a key.
func (u *unprotected) passed(method, why string) {
	if why == "" || safe(method) {
		return
	}
	if n := u.count.Add(1); u.due.due() {
		u.log.Warn("proxy: a request with an idempotency key passed unprotected: "+why, slog.String("method", method), slog.Uint64("so_far", n))
	}
}

// logEvery is the time between two lines of a seldom.
const logEvery = time.Minute

// seldom limits a line of the log that must not come with every request.
type seldom struct {
	mu   sync.Mutex
	last time.Time
}

// due reports whether the line may be written now.
func (s *seldom) due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.last.IsZero() && time.Since(s.last) < logEvery {
		return false
	}
	s.last = time.Now()
	return true
}
