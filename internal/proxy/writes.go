package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// writesRemembered is how long a failed call of the store counts: without requests it is not
// known whether writes succeed.
const writesRemembered = time.Minute

// writes observes whether the store takes writes.
type writes struct {
	next observe.Observer // may be nil

	mu          sync.Mutex
	since, last time.Time // of the failures since a write last succeeded; zero: there is none
}

// Observe implements observe.Observer.
func (w *writes) Observe(ctx context.Context, ev observe.Event) {
	switch ev.Kind {
	case observe.StoreFailed:
		if !errors.Is(ev.Err, context.Canceled) && !errors.Is(ev.Err, store.ErrDamaged) && stet.KindOf(ev.Err) != stet.KindDamaged {
			w.failed(time.Now())
		}
	case observe.Claimed, observe.Settled, observe.Released, observe.MarkedUnknown, observe.Accepted, observe.Resolved, observe.Relayed:
		w.mu.Lock()
		w.since = time.Time{}
		w.mu.Unlock()
	}
	if w.next != nil {
		w.next.Observe(ctx, ev)
	}
}

func (w *writes) failed(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() || now.Sub(w.last) > writesRemembered {
		w.since = now
	}
	w.last = now
}

// degraded describes a store without successful writes, "" if there is none.
func (w *writes) degraded(now time.Time) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() || now.Sub(w.last) > writesRemembered {
		return ""
	}
	return fmt.Sprintf("degraded: the store answers reads, and no write has succeeded for %v; stored responses are replayed, new operations cannot be recorded; the log has the error (store_failed)",
		now.Sub(w.since).Round(time.Second))
}
