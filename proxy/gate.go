package proxy

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/timer"
)

// The pause after the service was not reached once, and the longest; the longest that it can
// ask for; and how long one message goes ahead of the others when it may be back.
const (
	minGatePause = 250 * time.Millisecond
	maxGatePause = 10 * time.Second
	maxGateAfter = time.Hour
	gateAhead    = time.Second
)

// gate keeps messages and accepted operations from a service that is down, so that no run
// of theirs begins. While it is closed one of those that wait looks whether the service can be connected to. When
// it can, that one goes ahead, and the others follow if it fares well.
type gate struct {
	log  *slog.Logger
	dial func(ctx context.Context) error
	turn chan struct{} // held by the one that looks

	mu      sync.Mutex
	closed  bool
	since   time.Time     // it is closed
	until   time.Time     // it was closed last
	opened  chan struct{} // closed when the gate opens
	changed chan struct{} // closed when next has changed
	next    time.Time     // when to look again
	times   int           // that it was not reached, one after the other
	ahead   bool          // one has gone ahead, and its end is not known
}

func newGate(log *slog.Logger, dial func(context.Context) error) *gate {
	return &gate{log: log, dial: dial, turn: make(chan struct{}, 1), changed: make(chan struct{})}
}

// newGate returns a gate to the service of a generation.
func (g *generation) newGate(log *slog.Logger) *gate {
	return newGate(log, dialer(g.upstream, cmp.Or(time.Duration(g.config.Upstream.ConnectTimeout), defaultConnectTimeout)))
}

// dialer returns what connects to a service, and says nothing to it.
func dialer(upstream *url.URL, timeout time.Duration) func(context.Context) error {
	port := upstream.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[upstream.Scheme]
	}
	d := &net.Dialer{Timeout: timeout}
	addr := net.JoinHostPort(upstream.Hostname(), port)
	return func(ctx context.Context) error {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			_ = conn.Close() // nothing was said
		}
		return err
	}
}

// await is the Options.Await of stetmsg and of stetwork.
func (g *gate) await(ctx context.Context) error {
	for {
		g.mu.Lock()
		closed, opened := g.closed, g.opened
		g.mu.Unlock()
		if !closed {
			return nil
		}
		select {
		case <-opened:
		case <-ctx.Done():
			return context.Cause(ctx)
		case g.turn <- struct{}{}:
			pass := g.look(ctx)
			<-g.turn
			if pass {
				return nil
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
}

// look waits until it is time to look, and then looks. It is true if the caller may pass:
// ahead of the others, or with them.
func (g *gate) look(ctx context.Context) (pass bool) {
	g.mu.Lock()
	pause, changed := time.Until(g.next), g.changed
	if !g.closed {
		g.mu.Unlock()
		return true
	}
	if pause <= 0 && g.ahead { // it has been quiet for long enough
		g.open()
		g.mu.Unlock()
		return true
	}
	g.mu.Unlock()
	if pause > 0 {
		_ = timer.Until(ctx, changed, pause)
		return false // and look again
	}
	err := g.dial(ctx)
	if ctx.Err() != nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		g.wait(0)
		return false
	}
	g.ahead = true
	g.at(time.Now().Add(gateAhead))
	return true
}

// at sets when to look again. The caller holds g.mu.
func (g *gate) at(next time.Time) {
	g.next = next
	close(g.changed)
	g.changed = make(chan struct{})
}

// wait puts off the next look: twice as long each time, and as long as the service has asked
// for. The caller holds g.mu.
func (g *gate) wait(after time.Duration) {
	g.times++
	g.ahead = false
	g.at(time.Now().Add(max(timer.Doubled(g.times, minGatePause, maxGatePause), min(after, maxGateAfter))))
}

// lost says that the service was not reached, or has asked to be left alone for a time.
func (g *gate) lost(why string, after time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !g.closed:
		if time.Since(g.until) > maxGatePause { // else it was open for a moment only
			g.times = 0
		}
		g.closed, g.since, g.opened = true, time.Now(), make(chan struct{})
		g.log.Warn("proxy: the service cannot be used; nothing more is handed to it until it is back", slog.String("why", why))
	case !g.ahead && time.Now().Before(g.next): // those that were on their way when it closed
		if until := time.Now().Add(min(after, maxGateAfter)); until.After(g.next) {
			g.at(until)
		}
		return
	}
	g.wait(after)
}

// found says that the service has answered.
func (g *gate) found() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed && (g.ahead || !time.Now().Before(g.next)) {
		g.open()
	}
}

// open lets all pass. The caller holds g.mu.
func (g *gate) open() {
	g.closed, g.ahead, g.until = false, false, time.Now()
	close(g.opened)
	g.log.Info("proxy: the service is back, and is handed what has waited", slog.Duration("after", time.Since(g.since).Round(time.Millisecond)))
}

// paused reports whether messages are kept from the service.
func (g *gate) paused() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}
