package stetmsg

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Delivery acknowledges, retries or dead-letters one message at its broker. The
// packages of the brokers implement it; so may others.
type Delivery interface {
	// Deliveries is how often the broker has delivered the message, this time included;
	// 0 if it is unknown.
	Deliveries() int
	// Ack acknowledges the message. After an error it may be delivered again.
	Ack(ctx context.Context) error
	// Retry returns the message, to be delivered again after the given time.
	Retry(ctx context.Context, after time.Duration) error
	// DeadLetter stores the message elsewhere, with d's Reason and Text. It returns
	// nil only if the message is durable there.
	DeadLetter(ctx context.Context, d Decision) error
}

// Extender is a Delivery that the broker delivers again elsewhere after a time, unless
// it is extended.
type Extender interface {
	Delivery
	// Extend starts the time until another delivery again.
	Extend(ctx context.Context) error
	// ExtendEvery is how often it must be called.
	ExtendEvery() time.Duration
}

// brokerTimeout bounds a call of a Delivery.
const brokerTimeout = 30 * time.Second

var errBroker = errors.New("stetmsg: the broker did not answer in time")

// Handle waits until fewer than Options.Concurrency messages are being handled, calls
// Decide for m, and acknowledges, retries or dead-letters it through d. The error is
// that of d: then the message will be delivered again, and its outcome is in the store.
//
// After ctx has ended no run begins. A run in progress is finished, and d is called.
//
// A handler that calls runtime.Goexit ends Handle, too: the outcome is in the store,
// and the message is delivered again.
func (c *Consumer[M]) Handle(ctx context.Context, m M, d Delivery) (Decision, error) {
	decided := false
	defer func() {
		if !decided { // else the broker would wait for it permanently
			_ = c.tell(ctx, d, Decision{After: c.o.Backoff(max(d.Deliveries(), 1))})
		}
	}()
	decision := c.turn(ctx, m, d)
	decided = true
	return decision, c.tell(ctx, d, decision)
}

// tell carries out the decision at the broker.
func (c *Consumer[M]) tell(ctx context.Context, d Delivery, decision Decision) (err error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), brokerTimeout, errBroker)
	defer cancel()
	switch decision.Action {
	case Ack:
		err = d.Ack(ctx)
	case DeadLetter:
		err = d.DeadLetter(ctx, decision)
	default:
		err = d.Retry(ctx, decision.After)
	}
	if err != nil {
		c.Log().ErrorContext(ctx, "stetmsg: the decision could not be sent to the broker; the message will be delivered again", slog.String("action", decision.Action.String()),
			slog.String("id", decision.ID.String()), slog.Any("error", err))
	}
	return err
}

// turn waits for a slot, decides about m, and extends it in the meantime.
func (c *Consumer[M]) turn(ctx context.Context, m M, d Delivery) Decision {
	defer c.extend(ctx, d)() // also when the handler calls runtime.Goexit
	if !c.begin(ctx) {
		return Decision{Action: Retry, Reason: Stopped, Err: context.Cause(ctx)}
	}
	defer func() { <-c.slots }()
	return c.Decide(ctx, m, d.Deliveries())
}

// begin takes a slot when there is one. It returns false if ctx has ended.
func (c *Consumer[M]) begin(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	select {
	case c.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// extend extends a delivery until stop is called, which waits for the last call.
func (c *Consumer[M]) extend(ctx context.Context, d Delivery) (stop func()) {
	e, ok := d.(Extender)
	if !ok || e.ExtendEvery() <= 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() { // ends with stop
		defer close(ended)
		tick := time.NewTicker(e.ExtendEvery())
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				c.extendOnce(ctx, e)
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// extendOnce gives the broker the time until the next call.
func (c *Consumer[M]) extendOnce(ctx context.Context, e Extender) {
	within, cancel := context.WithTimeoutCause(ctx, e.ExtendEvery(), errBroker)
	defer cancel()
	if err := e.Extend(within); err != nil && ctx.Err() == nil {
		// It may be delivered to another process, which finds it running.
		c.Log().WarnContext(ctx, "stetmsg: the time limit of a message could not be extended", slog.Any("error", err))
	}
}
