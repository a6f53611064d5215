package proxy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stet-go/stet/observe"
)

// health is the state of the background work, for /readyz?verbose. It is no reason to send
// requests elsewhere.
type health struct {
	mu    sync.Mutex
	swept time.Time       // the last sweep that succeeded
	wrong error           // of the last sweep
	parts map[string]bool // by name; false: it has failed, and restarts after a pause
}

// Observe implements observe.Observer.
func (h *health) Observe(_ context.Context, ev observe.Event) {
	if ev.Kind != observe.Swept {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.wrong = ev.Err; ev.Err == nil {
		h.swept = time.Now()
	}
}

// runs records that a part has started, or has failed.
func (h *health) runs(name string, is bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.parts[name] = is
}

// text has a line for the sweep and for each part. It has no errors, which may name hosts.
func (h *health) text(now time.Time) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	sweep := "none has ended yet"
	if !h.swept.IsZero() {
		sweep = fmt.Sprintf("succeeded %v ago", now.Sub(h.swept).Round(time.Second))
	}
	if h.wrong != nil {
		sweep = "the last one failed; " + sweep
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\nsweep: %s", sweep)
	for _, name := range slices.Sorted(maps.Keys(h.parts)) {
		is := "it runs"
		if !h.parts[name] {
			is = "it has failed, and restarts; the log has the error"
		}
		fmt.Fprintf(&b, "\n%s: %s", name, is)
	}
	return b.String()
}
