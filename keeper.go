package stet

import (
	"context"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/fault"
)

// beatBatch bounds how many leases are renewed in one store call.
const beatBatch = 1000

// minTick bounds how often the keeper looks for runs that have used up their
// time; MinLease/6 is above it.
const minTick = 5 * time.Millisecond

// heartbeat is a run's place in the keeper's list.
type heartbeat struct {
	renewed    time.Time // when the last successful renewal was sent
	prev, next *Run
	listed     bool
}

// keeper renews the leases of all runs of the process together, in one
// goroutine that lives while there are runs. A run that ends within a third of
// its lease costs no heartbeat at all.
type keeper struct {
	e    *Engine
	tick time.Duration

	mu      sync.Mutex
	head    *Run
	beating bool
}

func (k *keeper) init(e *Engine) {
	k.e = e
	k.tick = MaxLease
	for _, p := range e.policies {
		k.tick = min(k.tick, p.Lease/6, max(p.RunTimeout/20, minTick))
	}
}

func (k *keeper) add(r *Run, renewed time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r.beat = heartbeat{renewed: renewed, next: k.head, listed: true}
	if k.head != nil {
		k.head.beat.prev = r
	}
	k.head = r
	if !k.beating {
		k.beating = k.e.background(k.loop)
	}
}

func (k *keeper) remove(r *Run) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !r.beat.listed {
		return
	}
	if r.beat.prev != nil {
		r.beat.prev.beat.next = r.beat.next
	} else {
		k.head = r.beat.next
	}
	if r.beat.next != nil {
		r.beat.next.beat.prev = r.beat.prev
	}
	r.beat = heartbeat{}
}

func (k *keeper) loop(ctx context.Context) {
	ticker := time.NewTicker(k.tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		due, expired, more := k.due(time.Now())
		if !more {
			return
		}
		for _, r := range expired {
			k.lose(ctx, r, ErrRunTimeout)
		}
		for lease, runs := range due {
			for len(runs) > 0 {
				n := min(len(runs), beatBatch)
				k.renew(ctx, runs[:n], lease)
				runs = runs[n:]
			}
		}
	}
}

// due returns the runs whose leases are to be renewed now, by lease, and those
// that have used up their time. Without any runs at all the loop ends: more is
// false.
func (k *keeper) due(now time.Time) (due map[time.Duration][]*Run, expired []*Run, more bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.head == nil {
		k.beating = false
		return nil, nil, false
	}
	for r := k.head; r != nil; r = r.beat.next {
		switch {
		case now.Sub(r.begun) >= r.p.RunTimeout:
			expired = append(expired, r)
		case now.Sub(r.beat.renewed) >= r.p.Lease/3:
			if due == nil {
				due = make(map[time.Duration][]*Run)
			}
			due[r.p.Lease] = append(due[r.p.Lease], r)
		}
	}
	return due, expired, true
}

// renew extends the leases of runs, and cancels those that are lost.
func (k *keeper) renew(ctx context.Context, runs []*Run, lease time.Duration) {
	byID := make(map[ID]*Run, len(runs))
	claims := make([]Claim, len(runs))
	for i, r := range runs {
		claims[i] = r.rec.Claim()
		byID[r.rec.ID] = r
	}
	// A slow store must not keep this goroutine from noticing lost leases.
	cctx, cancel := context.WithTimeout(ctx, min(k.e.o.StoreTimeout, 2*k.tick))
	defer cancel()
	fault.At(fault.HeartbeatBefore)
	sent := time.Now()
	lost, err := k.e.store.Extend(cctx, claims, lease)
	fault.At(fault.HeartbeatAfter)
	if err != nil {
		if ctx.Err() == nil {
			k.e.observe(ctx, Event{Kind: EventStoreFailed, State: Running, Err: err})
		}
		k.loseLapsed(ctx, runs, lease)
		return
	}
	for _, c := range lost {
		if r := byID[c.ID]; r != nil && r.rec.Fence == c.Fence {
			k.lose(ctx, r, ErrLeaseLost)
			delete(byID, c.ID)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range byID {
		r.beat.renewed = sent
	}
}

// loseLapsed gives up the runs that could not be renewed for a whole lease: the
// store may have let others in by now.
func (k *keeper) loseLapsed(ctx context.Context, runs []*Run, lease time.Duration) {
	now := time.Now()
	var lapsed []*Run
	k.mu.Lock()
	for _, r := range runs {
		if r.beat.listed && now.Sub(r.beat.renewed) >= lease {
			lapsed = append(lapsed, r)
		}
	}
	k.mu.Unlock()
	for _, r := range lapsed {
		k.lose(ctx, r, ErrLeaseLost)
	}
}

// lose cancels a run that still goes on. It may settle nevertheless, if its
// fence is still the newest.
func (k *keeper) lose(ctx context.Context, r *Run, cause error) {
	k.mu.Lock()
	listed := r.beat.listed
	k.mu.Unlock()
	if !listed {
		return // it ended meanwhile
	}
	k.remove(r)
	r.cancel(cause)
	k.e.flights.end(r.f, entry{})
	k.e.observe(ctx, Event{Kind: EventLeaseLost, ID: r.rec.ID, Class: r.op.Class, State: Running,
		Fence: r.rec.Fence, Attempt: r.rec.Attempt, Elapsed: time.Since(r.begun), Err: cause})
}
