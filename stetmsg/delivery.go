package stetmsg

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Delivery is a message that a broker has handed over, as far as the broker can
// be told about it. The packages of the brokers implement it; so may others.
type Delivery interface {
	// Deliveries is how often the broker has handed the message over, this
	// time included; 0 if it does not say.
	Deliveries() int
	// Ack says that the message is done. After an error it may come again.
	Ack(ctx context.Context) error
	// Retry has the message delivered again, not before after has passed.
	Retry(ctx context.Context, after time.Duration) error
	// DeadLetter puts the message aside with d's Reason and Text. It returns
	// nil only if the message is durable where it was put.
	DeadLetter(ctx context.Context, d Decision) error
}

// Extender is a Delivery that the broker gives to somebody else, unless it hears
// now and then that it is being worked on.
type Extender interface {
	Delivery
	// Extend keeps the message in hand for as long again.
	Extend(ctx context.Context) error
	// ExtendEvery is how often it is to be called.
	ExtendEvery() time.Duration
}

// brokerTimeout bounds what a broker is told.
const brokerTimeout = 30 * time.Second

// Handle waits until fewer than Options.Concurrency messages are being handled,
// decides about m, and tells the broker through d. It returns the decision,
// and an error if the broker could not be told: then the message will come
// again, and what was decided will be found in the store.
//
// ctx asks it to stop: it begins no run after ctx has ended, but ends the one it
// has begun, and tells the broker.
func (c *Consumer[M]) Handle(ctx context.Context, m M, d Delivery) (Decision, error) {
	decision := c.turn(ctx, m, d)
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), brokerTimeout, errors.New("stetmsg: the broker did not answer in time"))
	defer cancel()
	var err error
	switch decision.Action {
	case Ack:
		err = d.Ack(ctx)
	case DeadLetter:
		err = d.DeadLetter(ctx, decision)
	default:
		err = d.Retry(ctx, decision.After)
	}
	if err != nil {
		c.log().ErrorContext(ctx, "stetmsg: the broker was not told; the message will come again", slog.String("action", decision.Action.String()),
			slog.String("id", decision.ID.String()), slog.Any("error", err))
	}
	return decision, err
}

// turn decides about m when it is its turn, and keeps it in hand until then.
func (c *Consumer[M]) turn(ctx context.Context, m M, d Delivery) Decision {
	defer c.keep(ctx, d)() // also when the handler calls runtime.Goexit
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
		return c.Decide(ctx, m, d.Deliveries())
	case <-ctx.Done():
		return Decision{Action: Retry, Reason: Stopped, Err: context.Cause(ctx)}
	}
}

// keep extends a delivery until stop is called, which waits for the last call.
// Short handlers pay for a timer only.
func (c *Consumer[M]) keep(ctx context.Context, d Delivery) (stop func()) {
	e, ok := d.(Extender)
	if !ok || e.ExtendEvery() <= 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	timer := time.AfterFunc(e.ExtendEvery(), func() { // its goroutine ends with stop
		defer close(done)
		tick := time.NewTicker(e.ExtendEvery())
		defer tick.Stop()
		for ctx.Err() == nil {
			if err := e.Extend(ctx); err != nil && ctx.Err() == nil {
				// It may come to somebody else, who finds it running.
				c.log().WarnContext(ctx, "stetmsg: a message was not kept in hand", slog.Any("error", err))
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	return func() {
		cancel()
		if !timer.Stop() {
			<-done
		}
	}
}
