package stet

import (
	"context"
	"time"
)

// joined is a context that ends with one context and has the values of another.
type joined struct {
	context.Context                 // when it ends, and why
	values          context.Context // of the caller
	run             *Run            // found by FromContext; nil in a store call
	deadline        time.Time       // zero: that of Context
}

// Value looks at the ending context first, because there the context package
// finds what it needs to make children without a goroutine each.
func (j *joined) Value(key any) any {
	if _, ok := key.(runKey); ok && j.run != nil {
		return j.run
	}
	if v := j.Context.Value(key); v != nil {
		return v
	}
	return j.values.Value(key)
}

// Deadline returns when the context ends at the latest.
func (j *joined) Deadline() (time.Time, bool) {
	if !j.deadline.IsZero() {
		return j.deadline, true
	}
	return j.Context.Deadline()
}

// epoch is a context that all store calls of some time share as their end.
type epoch struct {
	ctx    context.Context
	cancel context.CancelFunc
	ends   time.Time
}

// storeContext returns the context of a store call: it has the values of ctx and
// ends StoreTimeout from now, or up to half as much later. Sharing that end
// spares each call a timer.
func (e *Engine) storeContext(ctx context.Context) context.Context {
	now := time.Now()
	ep := e.epoch.Load()
	if ep == nil || ep.ends.Sub(now) < e.o.StoreTimeout {
		ep = &epoch{ends: now.Add(e.o.StoreTimeout + e.o.StoreTimeout/2)}
		ep.ctx, ep.cancel = context.WithDeadline(context.Background(), ep.ends)
		e.epoch.Store(ep) // the one before ends by itself
	}
	return &joined{Context: ep.ctx, values: ctx}
}
