package stethttp

import (
	"context"
	"errors"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

const (
	maxWaitingUnknown = 1024 // requests of a Middleware that wait for unknown operations

	// lightBody is the most bytes of a body that a waiting request holds.
	lightBody = 64 << 10

	outlastMin = 50 * time.Millisecond // between looks
	outlastMax = time.Second
)

// waiting calls try. It calls try again if a wait can help that the engine does not do itself.
// A large body is dropped before the wait: most likely the request only waits for its own
// outcome.
func waiting(c *call, try func() (*stet.Lease, error)) (*stet.Lease, error) {
	wait := c.op.Wait
	heavy := len(c.sent) > lightBody && c.patience() > 0
	if heavy {
		c.op.Wait = stet.NoWait
	}
	run, err := try()
	if own, ok := errors.AsType[*stet.Error](err); heavy && ok && own.Kind == stet.KindInFlight {
		c.lighten()
		c.op.Wait = wait
		run, err = try()
	}
	for c.outlast(err) {
		run, err = try()
	}
	return run, err
}

// patience is how long the request waits at most for a run in flight.
func (c *call) patience() time.Duration {
	if c.op.Wait > 0 {
		return c.op.Wait
	}
	p, _ := c.m.engine.Policy(c.op.Class)
	return p.Wait
}

// lighten releases a large body.
func (c *call) lighten() {
	if len(c.sent) > lightBody {
		c.close()
		c.sent, c.light = nil, true
	}
}

// outlast waits, if err says that the outcome is unknown, until it is not any
// more, for as long as the request prefers. It is true if it is worth trying
// again.
func (c *call) outlast(err error) bool {
	own, ok := errors.AsType[*stet.Error](err)
	if !ok || own.Kind != stet.KindUnknown || !c.waits || c.wait <= 0 {
		return false
	}
	ctx, cancel := context.WithDeadline(c.r.Context(), c.begun.Add(c.wait))
	defer cancel()
	c.lighten()
	id, looked := c.m.engine.ID(c.op.Scope, c.op.Key), false
	for range c.m.looks(ctx) {
		rec, err := c.m.engine.Store().Read(ctx, id)
		switch {
		case err != nil:
		case rec.State != store.Unknown:
			c.op.Wait = max(time.Until(c.begun.Add(c.wait)), stet.NoWait)
			return looked // otherwise it is this very attempt whose outcome is unknown
		}
		looked = true
	}
	return false
}

// looks yields at each time to read an unknown operation again, at once for the first time,
// until ctx ends. If too many requests wait like that, it does not yield.
func (m *Middleware) looks(ctx context.Context) func(yield func(struct{}) bool) {
	return func(yield func(struct{}) bool) {
		defer m.waitingUnknown.Add(-1)
		if m.waitingUnknown.Add(1) > maxWaitingUnknown {
			return
		}
		for pause := outlastMin; yield(struct{}{}); pause = min(2*pause, outlastMax) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
	}
}
