package stet

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

const (
	// renewBatch bounds the leases in one store call.
	renewBatch = 1000

	// minTick bounds how often the loop checks the run timeouts. MinLease/6 is longer.
	minTick = 5 * time.Millisecond
)

// leaseRenewer renews the leases of all runs of the process. One goroutine watches them while
// there are runs. Store calls are made in others, one round at a time for each lease length,
// so that a slow store does not delay the detection of an expired lease. A run that ends
// within a third of its lease needs no renewal.
type leaseRenewer struct {
	e      *Engine
	tick   time.Duration
	active atomic.Bool // the loop runs; changed with mu held

	mu       sync.Mutex
	renewing map[time.Duration]bool // by lease length: a renewal is in progress
}

func (k *leaseRenewer) init(e *Engine) {
	k.e = e
	k.renewing = make(map[time.Duration]bool)
	k.tick = store.MaxLease
	for _, p := range e.policies {
		k.tick = min(k.tick, p.Lease/6, max(p.RunTimeout/20, minTick))
	}
}

// start starts the loop if it is not running. It returns false if the engine is closed.
// Callers add their run first.
func (k *leaseRenewer) start() bool {
	if k.active.Load() {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.active.Load() {
		k.active.Store(k.e.background(k.loop))
	}
	return k.active.Load()
}

// stopIfIdle reports whether the loop must end because there are no runs. A run that is added
// later starts the loop again.
func (k *leaseRenewer) stopIfIdle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.active.Store(false) // first: a run that is added during the check starts the loop again
	k.e.inFlight.leased(func(*Run, time.Time) { k.active.Store(true) })
	return !k.active.Load()
}

func (k *leaseRenewer) loop(ctx context.Context) {
	ticker := time.NewTicker(k.tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			k.close(ctx)
			return
		case <-ticker.C:
		}
		due, over, some := k.due(time.Now())
		if !some && k.stopIfIdle() {
			return
		}
		for r, cause := range over {
			k.lose(ctx, r, cause)
		}
		for lease, runs := range due {
			sent := k.e.background(func(ctx context.Context) {
				var wg sync.WaitGroup // separate calls: a failed shard delays only its own
				for some := range slices.Chunk(runs, renewBatch) {
					wg.Go(func() { k.renew(ctx, some, lease) })
				}
				wg.Wait()
				k.renewed(lease)
			})
			if !sent {
				k.renewed(lease)
			}
		}
	}
}

func (k *leaseRenewer) renewed(lease time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.renewing, lease)
}

// waitForRenewal waits until no renewal of that lease length is in progress, at most half a
// lease.
func (k *leaseRenewer) waitForRenewal(lease time.Duration) {
	for end := time.Now().Add(lease / 2); time.Now().Before(end); {
		k.mu.Lock()
		busy := k.renewing[lease]
		k.mu.Unlock()
		if !busy || !timer.Sleep(k.e.ctx, time.Millisecond) {
			return
		}
	}
}

// due returns the runs whose leases must be renewed now, by lease length, and the runs to
// cancel, with the cause. If there are no runs, some is false. A run that is being settled is
// not cancelled.
func (k *leaseRenewer) due(now time.Time) (due map[time.Duration][]*Run, over map[*Run]error, some bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	due, over = make(map[time.Duration][]*Run), make(map[*Run]error)
	k.e.inFlight.leased(func(r *Run, renewed time.Time) {
		some = true
		unrenewed := now.Sub(renewed)
		switch {
		case now.Sub(r.begun) >= r.p.RunTimeout && !r.settling():
			over[r] = ErrRunTimeout
		case unrenewed >= r.p.Lease && !r.settling():
			// The store may have granted the key to another claimant.
			over[r] = ErrLeaseLost
		case unrenewed >= r.p.Lease/3 && !k.renewing[r.p.Lease]:
			due[r.p.Lease] = append(due[r.p.Lease], r)
		}
	})
	for lease, runs := range due {
		k.renewing[lease] = true
		slices.SortFunc(runs, func(a, b *Run) int { return bytes.Compare(a.rec.ID[:], b.rec.ID[:]) }) // the order of locks in the store
	}
	return due, over, some
}

// renew extends the leases of runs, and cancels the runs whose lease is lost.
func (k *leaseRenewer) renew(ctx context.Context, runs []*Run, lease time.Duration) {
	byID := make(map[store.ID]*Run, len(runs))
	claims := make([]store.Claim, len(runs))
	for i, r := range runs {
		claims[i] = r.rec.Claim()
		byID[r.rec.ID] = r
	}
	// Renewal starts before half of the lease has passed. Calls to a failed shard take
	// the whole timeout, and must end well before the lease does.
	bounded, cancel := context.WithTimeout(ctx, min(k.e.o.StoreTimeout, lease/3))
	defer cancel()
	fault.At(fault.HeartbeatBefore)
	sent := time.Now()
	lost, err := k.e.store.Extend(bounded, claims, lease)
	fault.At(fault.HeartbeatAfter)
	if err != nil {
		if ctx.Err() == nil {
			k.e.observe(ctx, observe.Event{Kind: observe.StoreFailed, State: store.Running, Err: err})
		}
		unasked, ok := errors.AsType[*store.PartialError](err)
		if !ok {
			return // the next tick tries again, until due cancels the run
		}
		for _, c := range unasked.Claims { // the other leases were extended
			delete(byID, c.ID)
		}
	}
	for _, c := range lost {
		if r := byID[c.ID]; r != nil && r.rec.Fence == c.Fence {
			// A run that is being settled may already be settled in the store.
			if !r.settling() {
				k.lose(ctx, r, ErrLeaseLost)
			}
			delete(byID, c.ID)
		}
	}
	for _, r := range byID {
		k.e.inFlight.renewed(r.f, sent)
	}
}

// cancelled returns the event for a run that the engine cancels with this cause.
func cancelled(cause error) observe.Kind {
	switch {
	case errors.Is(cause, ErrRunTimeout):
		return observe.TimedOut
	case errors.Is(cause, ErrClosed):
		return observe.CutOff
	}
	return observe.LeaseLost
}

// lose cancels a run that is in progress. The run can still settle while its fence is the
// newest.
func (k *leaseRenewer) lose(ctx context.Context, r *Run, cause error) {
	if !k.e.inFlight.lose(r.f) {
		return // it ended in the meantime
	}
	r.cancel(cause)
	k.e.inFlight.end(r.f, entry{})
	k.e.observe(ctx, observe.Event{Kind: cancelled(cause), ID: r.rec.ID, Class: r.op.Class, Label: r.labelOf(r.rec), State: store.Running,
		Fence: r.rec.Fence, Attempt: r.rec.Attempt, Elapsed: time.Since(r.begun), Err: cause})
}

// close cancels the remaining runs when the engine is closed.
func (k *leaseRenewer) close(ctx context.Context) {
	for !k.stopIfIdle() {
		var left []*Run
		k.e.inFlight.leased(func(r *Run, _ time.Time) { left = append(left, r) })
		for _, r := range left {
			k.lose(ctx, r, ErrClosed)
		}
	}
}
