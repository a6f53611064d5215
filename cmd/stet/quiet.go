package main

import (
	"context"
	"sync"
	"time"

	"github.com/stet-go/stet/observe"
)

// quiet passes events on to what logs them, and of messages that were not sent one in a
// while: each is tried again and again while its target is away, about which the proxy has
// a line of its own.
type quiet struct {
	next observe.Observer

	mu   sync.Mutex
	told time.Time
}

// quietFor is how long the log is silent about messages that were not sent.
const quietFor = time.Minute

// Observe implements observe.Observer.
func (q *quiet) Observe(ctx context.Context, ev observe.Event) {
	if ev.Kind == observe.Unsent {
		q.mu.Lock()
		silent := !q.told.IsZero() && time.Since(q.told) < quietFor
		if !silent {
			q.told = time.Now()
		}
		q.mu.Unlock()
		if silent {
			return
		}
	}
	q.next.Observe(ctx, ev)
}
