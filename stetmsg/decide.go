package stetmsg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/again"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
)

const (
	storePause    = 50 * time.Millisecond // between reads of an unavailable store
	maxStorePause = 5 * time.Second
)

// Decide runs the handler for m, unless the store shows that it must not run, and
// returns what to do with the message. deliveries is how often the broker has delivered
// m, this time included; 0 if it is unknown.
//
// While the store is unavailable Decide waits, until ctx ends. A run that has begun
// continues after ctx has ended, for as long as its policy allows.
func (c *Consumer[M]) Decide(ctx context.Context, m M, deliveries int) Decision {
	deliveries = max(deliveries, 1)
	if c.o.Split == nil {
		return c.report(ctx, c.decide(ctx, m, deliveries))
	}
	parts, err := guarded(ctx, c.Log(), "Options.Split", func() ([]M, error) { return c.o.Split(m) })
	if err == nil && len(parts) == 0 {
		err = errNoParts // acknowledged, it would be lost
	}
	if err != nil {
		return c.report(ctx, Decision{Action: DeadLetter, Reason: Invalid, Err: err})
	}
	ds := make([]Decision, 0, len(parts))
	for _, part := range parts {
		ds = append(ds, c.report(ctx, c.decide(ctx, part, deliveries)))
	}
	if len(ds) == 1 {
		return ds[0]
	}
	return combine(ds)
}

// report calls Options.Observe, and logs dead letters.
func (c *Consumer[M]) report(ctx context.Context, d Decision) Decision {
	if c.o.Observe != nil {
		c.o.Observe(ctx, d)
	}
	if d.Action == DeadLetter || d.Reason == Unsettled {
		c.Log().LogAttrs(ctx, slog.LevelError, "stetmsg: "+d.Action.String(), slog.String("reason", string(d.Reason)),
			slog.String("id", d.ID.String()), slog.Int("attempts", d.Attempts), slog.Any("error", d.Err))
	}
	return d
}

// decide deals with one operation.
func (c *Consumer[M]) decide(ctx context.Context, m M, deliveries int) Decision {
	if c.direct != nil {
		return c.direct(ctx, m, deliveries)
	}
	op, err := guarded(ctx, c.Log(), "Options.Operation", func() (stet.Op, error) { return c.o.Operation(m) })
	if err == nil {
		err = check(op)
	}
	if err != nil {
		return Decision{Action: DeadLetter, Reason: Invalid, Err: err}
	}
	sound := 0
	for pause := storePause; ; pause = min(2*pause, maxStorePause) {
		if err := c.await(ctx); err != nil {
			return Decision{Action: Retry, Reason: Stopped, ID: c.engine.ID(op.Scope, op.Key), Err: err}
		}
		d := c.execute(ctx, op, m, deliveries)
		if d.ID == (store.ID{}) { // there was no run
			d.ID = c.engine.ID(op.Scope, op.Key)
		}
		switch {
		case d.Reason == NotReady && c.o.Await != nil, d.Reason == Unknown && c.unasked(op):
			timer.Sleep(ctx, pause)
			continue
		case d.Reason != Unavailable:
			return d
		}
		// A store that works, and refuses this operation twice, refuses it permanently.
		if _, err := c.engine.Store().Read(ctx, d.ID); err == nil {
			if sound++; sound > 1 {
				kept := c.kept(ctx, op, m, Decision{Attempts: deliveries, Err: d.Err})
				kept.ID = d.ID
				return kept
			}
		}
		timer.Sleep(ctx, pause)
	}
}

// unasked reports whether a verifier may resolve the unknown operation once its source is
// available.
func (c *Consumer[M]) unasked(op stet.Op) bool {
	if p, _ := c.engine.Policy(op.Class); p.Verify == nil || c.o.Await == nil {
		return false
	}
	return c.o.Await(ended) != nil
}

// ended is a context that has.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// await returns nil when a run may begin, and an error when ctx has ended.
func (c *Consumer[M]) await(ctx context.Context) error {
	if ctx.Err() == nil && c.o.Await != nil {
		if err := c.o.Await(ctx); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func check(op stet.Op) error {
	switch {
	case op.Scope == "" || len(op.Scope) > store.MaxScope:
		return fmt.Errorf("the message's scope has %d bytes; it must have 1 to %d", len(op.Scope), store.MaxScope)
	case op.Key == "" || len(op.Key) > store.MaxKey:
		return fmt.Errorf("the message's key has %d bytes; it must have 1 to %d", len(op.Key), store.MaxKey)
	}
	return nil
}

// lease runs or replays an operation in lease mode.
func (c *Consumer[M]) lease(ctx context.Context, op stet.Op, m M, deliveries int) Decision {
	run, err := c.engine.Begin(ctx, op)
	if err != nil {
		return c.refused(ctx, op, deliveries, err)
	}
	if run.Replayed() {
		return settled(run.Outcome())
	}
	n := run.Attempt()
	if c.used(n) { // some may not count
		n = c.counted(ctx, run)
	}
	if c.used(n - 1) { // each run crashed
		out := stet.Outcome{Failed: true, Reason: store.ReasonExhausted, Adapter: store.AdapterMessage}
		if err := run.Settle(ctx, out); err != nil {
			return unsettled(c.o.Backoff(1), n, err)
		}
		return Decision{Action: DeadLetter, Reason: Exhausted, ID: run.ID(), Attempts: n, Outcome: out, Err: errExhausted}
	}
	t := &try[M]{c: c, run: run, m: m, n: n}
	out, err := run.Do(ctx, t.again, t.call)
	return c.ended(op, t, out, err)
}

// ended is the decision after a run.
func (c *Consumer[M]) ended(op stet.Op, t *try[M], out stet.Outcome, err error) Decision {
	d := Decision{ID: t.run.ID(), Attempts: t.n, Outcome: out, Err: t.handled}
	switch {
	case err == nil && !out.Failed:
		d.Action, d.Reason, d.Err = Ack, Handled, nil
	case err == nil:
		d.Action, d.Reason, d.Err = DeadLetter, Failed, cmp.Or(t.handled, out.Decode(new(any)), errNothing)
		if t.used {
			d.Reason = Exhausted
		}
	case stet.KindOf(err) == stet.KindRetryable:
		// If the claim was not released, the next delivery finds out.
		d = Decision{Action: Retry, Reason: NoEffect, After: max(t.next.After, c.o.Backoff(t.n)), Attempts: t.n, Err: err}
		if t.next.Uncounted {
			d.Reason = NotReady
		}
	case t.run.Declared() == stet.MayHaveExecuted && stet.KindOf(err) == stet.KindUnknown:
		d = Decision{Action: DeadLetter, Reason: Unknown, Attempts: t.n, Err: errors.Join(errUnknown, err)}
		if p, _ := c.engine.Policy(op.Class); p.Verify != nil && !c.used(t.n) {
			d.Action, d.After = Retry, c.o.Backoff(t.n)
		}
	default:
		return unsettled(c.o.Backoff(1), t.n, err)
	}
	return d
}

// try is a run of a message in lease mode.
type try[M any] struct {
	c   *Consumer[M]
	run *stet.Lease
	m   M
	n   int // of the attempts that count

	handled error // what the handler returned
	used    bool  // no attempt is left
	next    stet.Again
}

// call calls the handler.
func (t *try[M]) call(ctx context.Context) (stet.Outcome, error) {
	out, err := guarded(ctx, t.c.Log(), theHandler, func() (stet.Outcome, error) { return t.c.handle(ctx, t.run, t.m) })
	if t.handled = err; err == nil {
		return out, nil
	}
	if !out.Failed {
		out = *t.c.failure(t.run.Op().Class, err)
	}
	_, panics := errors.AsType[panicked](err)
	switch {
	case t.c.o.Retryable != nil && t.c.o.Retryable(err):
		return out, stet.Repeatable(err)
	case panics:
		return stet.Outcome{Failed: true, Reason: store.ReasonPanicked, Adapter: store.AdapterMessage}, nil
	}
	return out, err
}

// again returns how the operation is tried again, or that it has failed.
func (t *try[M]) again(err error) stet.Again {
	if own, ok := again.Of(err, func() time.Duration { return t.c.o.Backoff(t.n) }); ok {
		t.next = own
	}
	if t.next.Uncounted {
		return t.next
	}
	if t.used = t.c.used(t.n); !t.used {
		return t.next
	}
	return stet.Again{Failed: cmp.Or(err, errNothing)}
}

// counted is the number of attempts that count. It reads the store; if that fails, the run
// counts as the first.
func (c *Consumer[M]) counted(ctx context.Context, run *stet.Lease) int {
	st, err := c.engine.Lookup(ctx, run.ID())
	switch {
	case err == nil:
		return st.Counted
	case stet.KindOf(err) == stet.KindDamaged: // which it stays
		return run.Attempt()
	}
	return 1
}

// unsettled is the decision about an outcome that was not made durable.
func unsettled(after time.Duration, n int, err error) Decision {
	return Decision{Action: Retry, Reason: Unsettled, After: after, Attempts: n, Err: err}
}

var (
	errExhausted = errors.New("Options.MaxAttempts is reached, and no run has ended")
	errDelivered = errors.New("it was delivered Options.MaxAttempts times, and may never have run; it is not settled, and runs if it is delivered again")
	errAside     = errors.New("not handled")
	errUnknown   = errors.New("the handler declared that its outcome is unknown")
	errNoParts   = errors.New("Options.Split returned no parts")
	errNothing   = errors.New("the handler declared that nothing happened")
)

// used reports whether no attempt is left after n.
func (c *Consumer[M]) used(n int) bool { return c.o.MaxAttempts > 0 && n >= c.o.MaxAttempts }

const theHandler = "the handler"

// call calls a handler. A panic is an error.
func (c *Consumer[M]) call(ctx context.Context, handler func() ([]byte, error)) ([]byte, error) {
	return guarded(ctx, c.Log(), theHandler, handler)
}

// guarded calls f. A panic is an error: otherwise the message would kill one process after the
// other.
func guarded[T any](ctx context.Context, log *slog.Logger, who string, f func() (T, error)) (v T, err error) {
	defer func() {
		if value := recover(); value != nil {
			log.ErrorContext(ctx, "stetmsg: "+who+" panicked", slog.Any("panic", value), slog.String("stack", string(debug.Stack())))
			err = panicked(who)
		}
	}()
	return f()
}

// transaction runs or replays an operation in a transaction.
func (c *Consumer[M]) transaction(ctx context.Context, op stet.Op, m M, deliveries int) Decision {
	if c.used(deliveries - 1) {
		return c.putAside(ctx, op, m, Decision{Attempts: deliveries, Err: errDelivered})
	}
	var run *stet.Lease
	var err error
	if c.groups != nil && deliveries == 1 { // an earlier delivery may have broken its group
		var done func()
		run, done = c.groups.join(ctx, op, m)
		defer done()
	}
	if run == nil {
		run, err = c.transactAlone(ctx, op, m)
	}
	switch {
	case err == nil && run.Replayed():
		return settled(run.Outcome())
	case err == nil && run.Outcome().Failed: // it was permanent
		return Decision{Action: DeadLetter, Reason: Failed, ID: run.ID(), Attempts: deliveries, Outcome: run.Outcome(), Err: run.Outcome().Decode(new(any))}
	case err == nil:
		return Decision{Action: Ack, Reason: Handled, ID: run.ID(), Attempts: deliveries, Outcome: run.Outcome()}
	case stet.KindOf(err) == stet.KindRetryable:
		return c.rolledBack(ctx, op, m, Decision{Attempts: deliveries, Err: cause(err)})
	default:
		return c.refused(ctx, op, deliveries, err)
	}
}

// transactAlone runs or replays an operation in a separate transaction. More operations may
// wait for a group than may run at the same time.
func (c *Consumer[M]) transactAlone(ctx context.Context, op stet.Op, m M) (*stet.Lease, error) {
	if c.alone != nil {
		c.alone <- struct{}{} // each run is bounded
		defer func() { <-c.alone }()
	}
	return c.transact(ctx, op, m, nil)
}

// rolledBack decides about a run that ended without an effect, with d.Err.
func (c *Consumer[M]) rolledBack(ctx context.Context, op stet.Op, m M, d Decision) Decision {
	if c.used(d.Attempts) {
		d.Action, d.Reason = DeadLetter, Exhausted
		return c.giveUp(ctx, op, m, d)
	}
	d.Action, d.Reason, d.After = Retry, NoEffect, c.o.Backoff(d.Attempts)
	return d
}

// kept decides about an operation that the store refuses, with d.Err.
func (c *Consumer[M]) kept(ctx context.Context, op stet.Op, m M, d Decision) Decision {
	if c.transact != nil && c.used(d.Attempts) {
		return c.putAside(ctx, op, m, d)
	}
	d.Action, d.Reason, d.After = Retry, NoEffect, c.o.Backoff(d.Attempts)
	return d
}

// putAside dead-letters an operation that may never have run, and therefore settles nothing:
// the broker also counts deliveries of messages that only waited while another message crashed
// the consumer. A stored outcome is respected.
func (c *Consumer[M]) putAside(ctx context.Context, op stet.Op, m M, d Decision) Decision {
	run, err := c.transact(context.WithoutCancel(ctx), op, m, func() (stet.Outcome, error) { return stet.Outcome{}, errAside })
	switch {
	case err == nil:
		return settled(run.Outcome())
	case errors.Is(err, errAside):
		d.Action, d.Reason = DeadLetter, Exhausted
		return d
	default:
		return c.refused(ctx, op, d.Attempts, err)
	}
}

// giveUp settles an operation as failed, in a transaction of its own, unless it
// has been settled in the meantime.
func (c *Consumer[M]) giveUp(ctx context.Context, op stet.Op, m M, d Decision) Decision {
	out := c.failure(op.Class, d.Err)
	run, err := c.transact(context.WithoutCancel(ctx), op, m, func() (stet.Outcome, error) { return *out, nil })
	switch {
	case err != nil:
		return c.refused(ctx, op, d.Attempts, err)
	case run.Replayed():
		return settled(run.Outcome())
	}
	d.Outcome = *out
	return d
}

// settled is the decision about a stored outcome.
func settled(out stet.Outcome) Decision {
	if out.Failed {
		return Decision{Action: DeadLetter, Reason: Failed, Outcome: out, Err: fmt.Errorf("it failed before: %w", out.Decode(new(any)))}
	}
	return Decision{Action: Ack, Reason: Replayed, Outcome: out}
}

// refused is the decision about an operation that was not run, or whose outcome is unknown.
func (c *Consumer[M]) refused(ctx context.Context, op stet.Op, deliveries int, err error) Decision {
	d := Decision{Action: Retry, Err: err}
	var hint time.Duration
	if e, ok := errors.AsType[*stet.Error](err); ok {
		hint = e.RetryAfter
	}
	switch stet.KindOf(err) {
	case stet.KindMismatch:
		d.Action, d.Reason = DeadLetter, Mismatch
	case stet.KindInFlight:
		d.Reason, d.After = InFlight, max(hint, c.o.Backoff(deliveries))
	case stet.KindUnknown:
		// With a hint it will become known: by a verifier, or in a transaction by the
		// next delivery.
		d.Reason, d.After = Unknown, max(hint, c.o.Backoff(deliveries))
		if hint == 0 || c.transact == nil && c.used(deliveries) {
			d.Action = DeadLetter
		}
	case stet.KindExpired, stet.KindDamaged:
		rec, readErr := c.engine.Store().Read(ctx, c.engine.ID(op.Scope, op.Key))
		switch {
		case readErr == nil && rec.State.Settled():
			d = settled(stet.Outcome{Failed: rec.State == store.Failed, Gone: true})
		case stet.KindOf(err) == stet.KindDamaged && (readErr == nil || stet.KindOf(readErr) == stet.KindDamaged):
			// A newer version of this program may be able to read the outcome.
			d.Reason, d.After = Unknown, c.o.Backoff(deliveries)
			if c.used(deliveries) {
				d.Action = DeadLetter
			}
		default:
			d.Reason, d.After = Unavailable, c.o.Backoff(deliveries)
		}
	case stet.KindClosed: // the broker must not deliver it at once
		d.Reason, d.After = Stopped, c.o.Backoff(deliveries)
	case stet.KindInvalid:
		d.Reason = Stopped
		if ctx.Err() == nil { // the class is at fault
			d.Reason, d.After = Unsettled, c.o.Backoff(deliveries)
			if c.used(deliveries) { // or the message, if it names the class
				d.Action, d.Reason = DeadLetter, Invalid
			}
		}
	default:
		d.Reason, d.After = Unavailable, c.o.Backoff(deliveries)
	}
	return d
}

// cause returns the error of a handler that was rolled back.
func cause(err error) error {
	if e, ok := errors.AsType[*stet.Error](err); ok && e.Cause != nil {
		return e.Cause
	}
	return err
}
