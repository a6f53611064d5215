package stetmsg

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Delivery acknowledges, retries or dead-letters one message at its broker. The
// packages of the brokers implement it; so may others.
type Delivery interface {
	// Deliveries is how often the broker has delivered the message, this time included;
	// 0 if it does not say.
	Deliveries() int
	// Ack says that the message is done. After an error it may come again.
	Ack(ctx context.Context) error
	// Retry has the message delivered again, not before after has passed.
	Retry(ctx context.Context, after time.Duration) error
	// DeadLetter puts the message aside with d's Reason and Text. It returns
	// nil only if the message is durable where it was put.
	DeadLetter(ctx context.Context, d Decision) error
}

// Extender is a Delivery that the broker delivers again elsewhere after a time, unless
// it is extended.
type Extender interface {
	Delivery
	// Extend keeps the message from being delivered elsewhere for as long again.
	Extend(ctx context.Context) error
	// ExtendEvery is how often it must be called.
	ExtendEvery() time.Duration
}

// brokerTimeout bounds a call of a Delivery, or up to half as much later.
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
	ctx = c.telling(ctx)
	switch decision.Action {
	case Ack:
		err = d.Ack(ctx)
	case DeadLetter:
		err = d.DeadLetter(ctx, decision)
	default:
		err = d.Retry(ctx, decision.After)
	}
	if err != nil {
		c.log().ErrorContext(ctx, "stetmsg: the broker did not take the decision; the message will be delivered again", slog.String("action", decision.Action.String()),
			slog.String("id", decision.ID.String()), slog.Any("error", err))
	}
	return err
}

// telling is the context of calls of a Delivery: it has the values of the message's
// context.
type telling struct {
	context.Context
	values context.Context
}

// Value implements context.Context.
func (t *telling) Value(key any) any {
	if v := t.Context.Value(key); v != nil { // the context package's own, for children
		return v
	}
	return t.values.Value(key)
}

// span is a deadline that the calls of some time share.
type span struct {
	ctx    context.Context
	cancel context.CancelFunc
	ends   time.Time
}

// telling returns a context with the values of ctx that ends after brokerTimeout,
// or up to half as much later: a timer for each message would cost more.
func (c *Consumer[M]) telling(ctx context.Context) context.Context {
	now := time.Now()
	s := c.span.Load()
	if s == nil || s.ends.Sub(now) < brokerTimeout {
		s = &span{ends: now.Add(brokerTimeout + brokerTimeout/2)}
		s.ctx, s.cancel = context.WithDeadlineCause(context.Background(), s.ends, errBroker)
		c.span.Store(s) // the one before ends by itself
	}
	return &telling{s.ctx, ctx}
}

// turn decides about m when it is its turn, and keeps it in flight until then.
func (c *Consumer[M]) turn(ctx context.Context, m M, d Delivery) Decision {
	defer c.keep(ctx, d).stop() // also when the handler calls runtime.Goexit
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

// keep extends a delivery until stop is called. It starts no goroutine before the first
// extension is due.
func (c *Consumer[M]) keep(ctx context.Context, d Delivery) *extender {
	e, ok := d.(Extender)
	if !ok || e.ExtendEvery() <= 0 {
		return nil
	}
	k := &extender{ctx: ctx, e: e, log: c.o.ErrorLog}
	k.timer = time.AfterFunc(e.ExtendEvery(), k.run)
	return k
}

// renewer keeps a delivery in flight.
type extender struct {
	ctx   context.Context
	e     Extender
	log   *slog.Logger // nil for the default
	timer *time.Timer

	mu      sync.Mutex
	stopped bool
	cancel  context.CancelFunc // nil until the first call
	done    chan struct{}
}

// run extends again and again. Its goroutine ends with stop.
func (k *extender) run() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(k.ctx))
	defer cancel()
	k.mu.Lock()
	if k.stopped {
		k.mu.Unlock()
		return
	}
	k.cancel, k.done = cancel, make(chan struct{})
	k.mu.Unlock()
	defer close(k.done)
	tick := time.NewTicker(k.e.ExtendEvery())
	defer tick.Stop()
	for ctx.Err() == nil {
		k.extend(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// extend extends once. A broker that does not answer by then is asked again.
func (k *extender) extend(ctx context.Context) {
	within, cancel := context.WithTimeoutCause(ctx, k.e.ExtendEvery(), errBroker)
	defer cancel()
	if err := k.e.Extend(within); err != nil && ctx.Err() == nil {
		// It may be delivered to another process, which finds it running.
		cmp.Or(k.log, slog.Default()).WarnContext(ctx, "stetmsg: the time of a message could not be extended", slog.Any("error", err))
	}
}

// stop ends it, and waits for the last call. A nil renewer keeps nothing.
func (k *extender) stop() {
	if k == nil {
		return
	}
	if k.timer.Stop() { // run has not been called, and will not be
		return
	}
	k.mu.Lock()
	k.stopped = true
	k.mu.Unlock()
	if k.cancel != nil {
		k.cancel()
		<-k.done
	}
}
