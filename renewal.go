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
	// beatBatch bounds how many leases are renewed in one store call.
	renewBatch = 1000

	// minTick bounds how often the keeper looks for runs that have used up
	// their time; MinLease/6 is above it.
	minTick = 5 * time.Millisecond
)

// keeper renews the leases of all runs of the process together: those that flights have.
// One goroutine, which lives while there are runs, watches them; what it sends to the
// store goes out from others, one round at a time for each length of lease, so that a slow
// store does not keep it from seeing that a lease has run out. A run that ends
// within a third of its lease costs no heartbeat at all.
type leaseRenewer struct {
	e      *Engine
	tick   time.Duration
	active atomic.Bool // the loop runs; it is changed with mu held

	mu       sync.Mutex
	renewing map[time.Duration]bool // by lease: a renewal is on its way
}

func (k *leaseRenewer) init(e *Engine) {
	k.e = e
	k.renewing = make(map[time.Duration]bool)
	k.tick = store.MaxLease
	for _, p := range e.policies {
		k.tick = min(k.tick, p.Lease/6, max(p.RunTimeout/20, minTick))
	}
}

// start watches runs from now on, also after one that was added just before; false if
// the engine was closed.
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

// rest reports whether the loop may end, as there is no run. One that is added from now
// on starts it anew.
func (k *leaseRenewer) stopIfIdle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.active.Store(false) // before it looks: a run that it does not see finds it false
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
				var wg sync.WaitGroup // none waits for another, of which a part of the store may be down
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

// quiet waits until no renewal of that length is on its way, or is given up.
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

// due returns the runs whose leases are to be renewed now, by lease, and those
// that are over, with the cause; some is false if there are no runs at all. Runs that are
// being settled are neither expired nor given up.
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
			// The store may have let others in by now.
			over[r] = ErrLeaseLost
		case unrenewed >= r.p.Lease/3 && !k.renewing[r.p.Lease]:
			due[r.p.Lease] = append(due[r.p.Lease], r)
		}
	})
	for lease, runs := range due {
		k.renewing[lease] = true
		slices.SortFunc(runs, func(a, b *Run) int { return bytes.Compare(a.rec.ID[:], b.rec.ID[:]) }) // flights have no order
	}
	return due, over, some
}

// renew extends the leases of runs, and cancels those that are lost.
func (k *leaseRenewer) renew(ctx context.Context, runs []*Run, lease time.Duration) {
	byID := make(map[store.ID]*Run, len(runs))
	claims := make([]store.Claim, len(runs))
	for i, r := range runs {
		claims[i] = r.rec.Claim()
		byID[r.rec.ID] = r
	}
	// It is begun before half of the lease has gone, and must be over well before all
	// of it has: those whose part of the store is down take all of this time.
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
			return // tried again; see due for when it is too late
		}
		for _, c := range unasked.Claims { // the others stand
			delete(byID, c.ID)
		}
	}
	for _, c := range lost {
		if r := byID[c.ID]; r != nil && r.rec.Fence == c.Fence {
			// One that is being settled is found settled.
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

// cancelled is the event of a run that the engine cancels, with the cause.
func cancelled(cause error) observe.Kind {
	switch cause { //nolint:errorlint // the very values
	case ErrRunTimeout:
		return observe.TimedOut
	case ErrClosed:
		return observe.CutOff
	}
	return observe.LeaseLost
}

// lose cancels a run that still continues. It may settle nevertheless, if its
// fence is still the newest.
func (k *leaseRenewer) lose(ctx context.Context, r *Run, cause error) {
	if !k.e.inFlight.lose(r.f) {
		return // it ended in the meantime
	}
	r.cancel(cause)
	k.e.inFlight.end(r.f, entry{})
	k.e.observe(ctx, observe.Event{Kind: cancelled(cause), ID: r.rec.ID, Class: r.op.Class, State: store.Running,
		Fence: r.rec.Fence, Attempt: r.rec.Attempt, Elapsed: time.Since(r.begun), Err: cause})
}

// close cancels the runs that are left when the engine is closed: it renews their leases
// no longer.
func (k *leaseRenewer) close(ctx context.Context) {
	for !k.stopIfIdle() {
		var left []*Run
		k.e.inFlight.leased(func(r *Run, _ time.Time) { left = append(left, r) })
		for _, r := range left {
			k.lose(ctx, r, ErrClosed)
		}
	}
}
