package stet

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// awaitPausePerCall limits the load of all calls of Await. Together they read the store about
// 1,000 times a second at most, once they have waited for some time.
const awaitPausePerCall = time.Millisecond

// endSignals wakes calls of Await when an operation ends in this process.
type endSignals struct {
	calls atomic.Int64 // all calls of Await
	mu    sync.Mutex
	m     map[store.ID]*endSignal
}

// endSignal is the signal of one operation.
type endSignal struct {
	calls int           // calls of Await for it
	ended chan struct{} // closed when it ends
}

// join registers a call; leave removes it.
func (b *endSignals) join(id store.ID) (leave func()) {
	b.calls.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.m == nil {
		b.m = make(map[store.ID]*endSignal)
	}
	one := b.m[id]
	if one == nil {
		one = &endSignal{ended: make(chan struct{})}
		b.m[id] = one
	}
	one.calls++
	return func() {
		defer b.calls.Add(-1)
		b.mu.Lock()
		defer b.mu.Unlock()
		if one.calls--; one.calls == 0 {
			delete(b.m, id)
		}
	}
}

// listen returns a channel that the next signal closes. The caller must have joined.
func (b *endSignals) listen(id store.ID) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.m[id].ended
}

// signal is called with each event, after the store has the change.
func (b *endSignals) signal(ev observe.Event) {
	switch ev.Kind {
	case observe.Settled, observe.Resolved, observe.MarkedUnknown, observe.Cancelled, observe.Released, observe.Fenced:
	default:
		return
	}
	if b.calls.Load() == 0 { // a call that joins now reads the store afterwards
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if one := b.m[ev.ID]; one != nil {
		close(one.ended)
		one.ended = make(chan struct{})
	}
}

// Await waits until the operation is settled or unknown, or does not exist, and returns its
// Status. If ctx ends first, it returns the current Status without an error. It returns at once
// if the operation ends in this process. Await works on any store. It polls a store that cannot
// watch a record, at most twice a second once it has waited for some time. With more than 500
// calls, it polls less often. At most Options.MaxWaiters calls wait; further calls return the
// current Status at once.
func (e *Engine) Await(ctx context.Context, scope string, id store.ID) (Status, error) {
	waiting := e.waiting.waiters.Add(1)
	defer func() { e.waiting.waiters.Add(-1) }()
	if waiting > int64(e.o.MaxWaiters) {
		return e.Status(context.WithoutCancel(ctx), scope, id)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()
	defer e.waiting.ends.join(id)()
	for pause := pollMin; ; pause = min(2*pause, max(pollMax, time.Duration(e.waiting.waiters.Load())*awaitPausePerCall)) {
		rung := e.waiting.ends.listen(id) // before the read, so that no end is missed
		rec, err := e.read(ctx, id)       // cheaper than Status, which also reads job and steps
		if err != nil {
			return e.shown(ctx, scope, Status{Record: store.Record{ID: id, Scope: rec.Scope}}, storeFailed(MayHaveExecuted, err))
		}
		waits := e.isOfScope(ctx, rec, scope) && (rec.State == store.Accepted || rec.State == store.Running)
		if !waits || ctx.Err() != nil {
			return e.Status(context.WithoutCancel(ctx), scope, id)
		}
		if rec.State == store.Running && rec.LeaseLeft > 0 && !e.inFlight.runsHere(id) {
			_ = e.watch(ctx, rec)
			continue
		}
		_ = timer.Until(ctx, rung, timer.Around(pause))
	}
}

// wait returns when the call should try to claim again. followed is true if the call that it
// followed has ended. The error is of KindInFlight if the time is over or the caller does not
// wait. wait writes nothing to the store.
func (e *Engine) wait(ctx context.Context, t *request, f *inFlight, leader bool, rec store.Record) (followed bool, err error) {
	refuse := func(cause error) (bool, error) {
		e.observe(ctx, t.event(observe.InFlight, rec, cause))
		return false, &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter, Cause: cause}
	}
	if t.deadline.IsZero() || !time.Now().Before(t.deadline) {
		return refuse(nil)
	}
	if e.waiting.waiters.Add(1) > int64(e.o.MaxWaiters) {
		e.waiting.waiters.Add(-1)
		return refuse(errors.New("too many waiters"))
	}
	defer e.waiting.waiters.Add(-1)
	ctx, cancel := context.WithDeadline(ctx, t.deadline)
	defer cancel()
	stop := context.AfterFunc(e.ctx, cancel)
	defer stop()
	if !leader {
		if ph, _, _, changed := e.inFlight.state(f); ph == running {
			select {
			case <-changed:
				return true, nil
			case <-ctx.Done():
				return refuse(context.Cause(ctx))
			}
		}
	}
	if err := e.watch(ctx, rec); err != nil {
		return refuse(err)
	}
	return false, nil
}

// watch returns nil once the record may have changed.
func (e *Engine) watch(ctx context.Context, rec store.Record) error {
	if rec.Fence == 0 && !rec.InTx {
		return sleepErr(ctx, pollMin) // a call of this process that has ended since
	}
	if e.watcher != nil {
		if err := e.watcher.Watch(ctx, rec.ID, rec.Fence); err == nil || ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// The store cannot watch at present.
	}
	for pause := pollMin; ; pause = min(2*pause, pollMax) {
		if err := sleepErr(ctx, timer.Around(pause)); err != nil {
			return err
		}
		now, err := e.read(ctx, rec.ID)
		if errors.Is(err, store.ErrDamaged) || err == nil && (now.State != store.Running || now.Fence != rec.Fence || now.LeaseLeft <= 0) {
			return nil
		}
	}
}

func sleepErr(ctx context.Context, d time.Duration) error {
	if !timer.Sleep(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}
