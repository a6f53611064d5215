package stetwork

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/again"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/store"
)

var (
	errStopped   = fmt.Errorf("stetwork: the worker is shutting down: %w", stet.ErrClosed)
	errExhausted = errors.New("Options.MaxAttempts is reached, and no run has ended")
)

// Do runs an accepted operation that has no outcome, and returns when the run has ended: the
// consumer of a Queue calls it. It waits until fewer than Options.Concurrency operations run. It
// begins no run after ctx has ended, but finishes a run that has begun.
//
// Of an item only the ID is trusted. The record has the class and the name.
//
// After nil the queue can drop the item: the operation has an outcome, runs elsewhere, waits for
// an operator, or will be passed again, for which Run must be running in some process. After an
// error the queue should deliver the item again soon; otherwise Run passes it again later. The
// error is an *stet.Error of kind stet.KindStore, stet.KindClosed (the worker shuts down, or ctx
// has ended) or stet.KindInvalid (no handler here for that name or class).
func (w *Worker) Do(ctx context.Context, it stet.Item) error {
	if !w.enter() {
		return closed(errStopped)
	}
	defer w.active.Done()
	if w.o.Await != nil {
		if err := w.o.Await(ctx); err != nil {
			return closed(err)
		}
	}
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-w.stopping:
	case <-ctx.Done():
	}
	switch { // also if there was a slot at the same moment
	case ctx.Err() != nil:
		return closed(context.Cause(ctx))
	case isClosed(w.stopping):
		return closed(errStopped)
	}
	return w.do(ctx, it)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func closed(cause error) error {
	return &stet.Error{Kind: stet.KindClosed, Execution: stet.NotExecuted, Cause: cause}
}

// enter begins a call that Shutdown waits for. It returns false after Shutdown.
func (w *Worker) enter() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return false
	}
	w.active.Add(1)
	return true
}

// do is Do for a caller that has a slot.
func (w *Worker) do(ctx context.Context, it stet.Item) error {
	h, ok := w.handler(it.Name)
	if !ok {
		return misuse.Errorf("stetwork: no handler is registered for %.40q", it.Name)
	}
	it.Repeatable = h.again
	run, err := w.engine.Take(ctx, it)
	switch {
	case err != nil:
		return w.refused(ctx, it, err)
	case run.Replayed():
		return nil
	}
	name := run.Work.Name
	if name != it.Name { // the item is forged, or of another operation
		own, ok := w.handler(name)
		switch {
		case !ok:
			err := misuse.Errorf("stetwork: no handler is registered for %.40q", name)
			return errors.Join(err, run.Release(ctx, stet.Again{After: strayRest, Uncounted: true}))
		case own.again != h.again: // it was taken as one of another kind
			if err := run.Release(ctx, stet.Again{Uncounted: true}); err != nil {
				return w.refused(ctx, it, err)
			}
			it.Name = name
			return w.do(ctx, it)
		}
		h = own
	}
	a := &attempt{w: w, run: run, h: h, log: w.o.ErrorLog.With(slog.String("name", name), slog.String("id", it.ID.String()), slog.Int("attempt", run.Attempt()))}
	a.perform(ctx)
	return nil
}

// refused returns the error of Do for an operation that was not taken.
func (w *Worker) refused(ctx context.Context, it stet.Item, err error) error {
	e, ok := errors.AsType[*stet.Error](err)
	if !ok {
		return err
	}
	switch e.Kind {
	case stet.KindStore, stet.KindClosed, stet.KindInvalid:
		return err
	case stet.KindDamaged:
		w.o.ErrorLog.ErrorContext(ctx, "stetwork: an operation cannot be read", slog.String("name", it.Name), slog.String("id", it.ID.String()), slog.Any("error", err))
	}
	return nil
}

// readTimeout bounds a read of a record.
const readTimeout = 5 * time.Second

// attempt is one run of an operation.
type attempt struct {
	w   *Worker
	run *stet.Lease
	h   handler
	log *slog.Logger
}

// perform calls the handler, and ends the run.
func (a *attempt) perform(ctx context.Context) {
	switch {
	case a.run.Declared() == stet.MayHaveExecuted: // an earlier run has left an open step
		a.markUnknown(ctx)
		return
	case a.run.Cancelling:
		a.fail(ctx, stet.ErrCancelled)
		return
	case a.w.o.MaxAttempts > 0 && a.run.Counted > a.w.o.MaxAttempts: // each run crashed
		a.fail(ctx, errExhausted)
		return
	}
	if !a.begin() { // it was being taken when Shutdown ended the handlers' contexts
		a.logUnstored(ctx, a.run.Release(ctx, stet.Again{Uncounted: true}))
		return
	}
	defer func() {
		a.w.mu.Lock()
		delete(a.w.running, a)
		a.w.mu.Unlock()
	}()
	defer a.watchCancellation()()
	out, err := a.run.Do(ctx, func(err error) stet.Again { return a.again(ctx, err) }, a.call)
	switch {
	case stet.KindOf(err) == stet.KindRetryable && (a.run.Declared() != stet.MayHaveExecuted || a.outside()):
	case stet.KindOf(err) == stet.KindUnknown:
		a.log.ErrorContext(ctx, "stetwork: the outcome of an operation is unknown until a verifier or an operator has found it out", slog.Any("error", err))
	case err != nil:
		a.logUnstored(ctx, err)
	case out.Failed:
		a.log.ErrorContext(ctx, "stetwork: an operation failed", slog.Any("error", failure(out)))
	}
}

// failure is the logged error of a failed outcome, without the content of a service's response.
func failure(out stet.Outcome) error {
	if out.Adapter == store.AdapterSQL && out.Reason.Returned() {
		return fmt.Errorf("the service has settled it as failed, with the status %d", out.Status)
	}
	return out.Decode(new(any))
}

// outside reports whether a service settles the run.
func (a *attempt) outside() bool {
	p, _ := a.w.engine.Policy(a.run.Op().Class)
	return p.Outside
}

// begin registers the handler's context for Shutdown. It returns false if Shutdown has ended the
// contexts.
func (a *attempt) begin() bool {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	if a.w.hurry {
		return false
	}
	a.w.running[a] = struct{}{}
	return true
}

// call calls the handler. A panic is an outcome.
func (a *attempt) call(ctx context.Context) (out stet.Outcome, err error) {
	defer func() {
		if v := recover(); v != nil {
			a.log.ErrorContext(ctx, "stetwork: a handler panicked", slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
			out, err = stet.Outcome{Failed: true, Reason: store.ReasonPanicked, Adapter: store.AdapterGo}, nil
		}
		declared := a.run.Declared()
		if a.h.tx && declared == stet.MayHaveExecuted {
			a.storeOpenStep()
		}
		if errors.Is(context.Cause(a.run.Context()), stet.ErrCancelled) && (err != nil || out.Failed || declared != stet.Executed) {
			err = stet.Permanent(stet.ErrCancelled)
		}
	}()
	return a.h.run(ctx, a)
}

// watchCancellation ends the handler's context when the operation is cancelled, until stop is
// called, which waits for the last read.
func (a *attempt) watchCancellation() (stop func()) {
	if a.w.o.CancelEvery <= 0 {
		return func() {}
	}
	over, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		tick := time.NewTicker(a.w.o.CancelEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-over:
				return
			}
			if a.cancelling(a.run.Context()) {
				a.run.Cancel(stet.ErrCancelled)
				return
			}
		}
	}()
	return func() {
		close(over)
		<-done
	}
}

// again decides about a run that must be repeated.
func (a *attempt) again(ctx context.Context, err error) (next stet.Again) {
	defer func() {
		if next.Failed == nil {
			a.log.WarnContext(ctx, "stetwork: an operation will be run again", slog.Duration("after", next.After), slog.Any("error", err))
		}
	}()
	if err == nil {
		err = errDeclared // or panicked, which is logged
	}
	if errors.Is(context.Cause(a.run.Context()), stet.ErrClosed) {
		return stet.Again{Uncounted: true}
	}
	how, ok := again.Of(err, a.backoff)
	if how.Uncounted {
		return how
	}
	switch {
	case a.cancelling(context.WithoutCancel(ctx)): // the end of the queue's context does not end the run
		return stet.Again{Failed: stet.ErrCancelled}
	case a.w.o.MaxAttempts > 0 && a.run.Counted >= a.w.o.MaxAttempts:
		return stet.Again{Failed: err}
	case ok:
		return how
	}
	return stet.Again{After: a.backoff()}
}

// cancelling reports whether the operation was cancelled. It reads the
// record without its work. If the store does not answer, the next attempt reads it again.
func (a *attempt) cancelling(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	rec, err := a.w.engine.Store().Read(ctx, a.run.ID())
	return err == nil && rec.Cancelling && rec.Fence == a.run.Fence()
}

func (a *attempt) backoff() time.Duration {
	return min(max(a.w.o.Backoff(a.run.Counted), 0), store.MaxDelay)
}

// storeOpenStep stores the effect that a handler of HandleTx has declared as an open step.
// Otherwise the unknown operation would run again after the rollback.
func (a *attempt) storeOpenStep() {
	_, err := stet.StepOnce(a.run.Context(), "what Declare was called for", func(context.Context) (struct{}, error) { return struct{}{}, errDeclared })
	if !errors.Is(err, errDeclared) {
		a.logUnstored(a.run.Context(), err)
	}
}

func (a *attempt) fail(ctx context.Context, err error) {
	a.log.ErrorContext(ctx, "stetwork: an operation failed", slog.Any("error", err))
	failed := err
	_, err = a.run.Do(ctx, func(error) stet.Again { return stet.Again{Failed: failed} }, func(context.Context) (stet.Outcome, error) { return stet.Outcome{}, stet.Permanent(failed) })
	a.logUnstored(ctx, err)
}

func (a *attempt) markUnknown(ctx context.Context) {
	a.log.ErrorContext(ctx, "stetwork: the outcome of an operation is unknown; a verifier or an operator must resolve it")
	a.logUnstored(ctx, a.run.MarkUnknown(ctx))
}

// logUnstored logs that the end of a run may not be stored.
func (a *attempt) logUnstored(ctx context.Context, err error) {
	if err != nil {
		a.log.ErrorContext(ctx, "stetwork: the end of a run may not be stored", slog.Any("error", err))
	}
}
