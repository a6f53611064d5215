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

// The first and the longest pause between two checks of a service that is down, the longest
// Retry-After, and how long one message runs alone when the service can be connected to.
const (
	minCheckPause = 250 * time.Millisecond
	maxCheckPause = 10 * time.Second
	maxRetryAfter = time.Hour
	trialTime     = time.Second
)

// availability holds back messages and accepted operations while the service is down, so that
// no run of theirs begins. One of the waiting calls tries to connect to the service. If that
// succeeds it runs alone for trialTime, and the others follow unless it fails.
type availability struct {
	log  *slog.Logger
	dial func(ctx context.Context) error
	turn chan struct{} // held by the call that checks

	mu     sync.Mutex
	closed bool
	since  time.Time     // it is down
	until  time.Time     // it was down last
	opened chan struct{} // closed when the service is available
	next   time.Time     // when to check again
	times  int           // it was not reached, in a row
	ahead  bool          // one call runs alone, and its end is not known
}

// newAvailability returns the availability of the upstream.
func (c *Config) newAvailability(upstream *url.URL, log *slog.Logger) *availability {
	dial := dialer(upstream, cmp.Or(time.Duration(c.Upstream.ConnectTimeout), defaultConnectTimeout))
	return &availability{log: log, dial: dial, turn: make(chan struct{}, 1)}
}

// dialer returns a function that connects to a service, and sends nothing.
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
			_ = conn.Close()
		}
		return err
	}
}

// await is the Options.Await of stetmsg and of stetwork.
func (g *availability) await(ctx context.Context) error {
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
			pass := g.check(ctx)
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

// check waits until a check is due, and then tries to connect. It returns true if the caller
// may run: alone, or with the others.
func (g *availability) check(ctx context.Context) (pass bool) {
	g.mu.Lock()
	pause := time.Until(g.next)
	if !g.closed {
		g.mu.Unlock()
		return true
	}
	if pause <= 0 && g.ahead { // the trial has not failed
		g.open()
		g.mu.Unlock()
		return true
	}
	g.mu.Unlock()
	if pause > 0 {
		timer.Sleep(ctx, min(pause, minCheckPause)) // what others find out changes g.next
		return false
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
	g.next = time.Now().Add(trialTime)
	return true
}

// wait delays the next check: twice as long each time, and at least for the Retry-After of
// the service. The caller holds g.mu.
func (g *availability) wait(after time.Duration) {
	g.times++
	g.ahead = false
	g.next = time.Now().Add(max(timer.Doubled(g.times, minCheckPause, maxCheckPause), min(after, maxRetryAfter)))
}

// lost records that the service was not reached, or has sent a Retry-After.
func (g *availability) lost(why string, after time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !g.closed:
		if time.Since(g.until) > maxCheckPause { // else it was available for a moment only
			g.times = 0
		}
		g.closed, g.since, g.opened = true, time.Now(), make(chan struct{})
		g.log.Warn("proxy: the service is unavailable; no more work is sent to it until it is back", slog.String("why", why))
	case !g.ahead && time.Now().Before(g.next): // calls that began before it was down
		if until := time.Now().Add(min(after, maxRetryAfter)); until.After(g.next) {
			g.next = until
		}
		return
	}
	g.wait(after)
}

// found records that the service has answered.
func (g *availability) found() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed && (g.ahead || !time.Now().Before(g.next)) {
		g.open()
	}
}

// open releases all waiting calls. The caller holds g.mu.
func (g *availability) open() {
	g.closed, g.ahead, g.until = false, false, time.Now()
	close(g.opened)
	g.log.Info("proxy: the service is available again; waiting work is sent to it", slog.Duration("after", time.Since(g.since).Round(time.Millisecond)))
}

// paused reports whether messages are held back.
func (g *availability) paused() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}
