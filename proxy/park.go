package proxy

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stet-go/stet"
)

// parking is a store in which runs can be left as unknown: neither settled, for
// their outcome is not known, nor released, for they may have had an effect.
// A run's end is a Settle or a Release in any case; for one that was left it
// changes the record in another way, and is refused.
type parking struct {
	stet.Store
	observer stet.Observer // may be nil

	mu   sync.Mutex
	left map[place]*leaving
}

// place is one run of an operation.
type place struct {
	id    stet.ID
	fence int64
}

type leaving struct {
	rec   stet.Record
	after time.Duration
}

const parkTries = 20

var errLeft = errors.New("proxy: the service may have executed the operation")

func newParking(store stet.Store, observer stet.Observer) *parking {
	return &parking{Store: store, observer: observer, left: map[place]*leaving{}}
}

// leave makes the run one that will be unknown: at once, or when so much time has
// passed during which the service may still be at work.
func (p *parking) leave(run *stet.Run, after time.Duration) {
	rec := run.Record()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left[place{rec.ID, rec.Fence}] = &leaving{rec, after}
}

func (p *parking) leaving(c stet.Claim) *leaving {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left[place{c.ID, c.Fence}]
}

// end parks the record, or sees to it that it will be. What fails here is done
// later by the engine's sweep, or by the next request, once the lease has run out.
func (p *parking) end(ctx context.Context, l *leaving) error {
	c := l.rec.Claim()
	lost, err := p.Store.Extend(ctx, []stet.Claim{c}, max(l.after, time.Microsecond))
	if err != nil || len(lost) > 0 || l.after > 0 {
		return errors.Join(stet.ErrFenced, errLeft)
	}
	// A claim is what parks a record whose lease has run out, which on a coarse
	// clock it has not yet.
	owner := stet.NewOwner()
	for range parkTries {
		rec, err := p.Claim(ctx, stet.ClaimRequest{ID: c.ID, Scope: l.rec.Scope, Fingerprint: l.rec.Fingerprint, Owner: owner, Lease: stet.MinLease})
		if err != nil || rec.State != stet.Running {
			break
		}
		if rec.Owner == owner { // an operator was faster, and it may run again
			_ = p.Store.Release(ctx, rec.Claim(), stet.Retention{Result: day, Tombstone: day}) // else it is parked
			break
		}
		time.Sleep(time.Millisecond)
	}
	return errors.Join(stet.ErrFenced, errLeft)
}

// Settle implements stet.Store.
func (p *parking) Settle(ctx context.Context, c stet.Claim, out stet.Outcome, keep stet.Retention) error {
	if l := p.leaving(c); l != nil {
		return p.end(ctx, l)
	}
	return p.Store.Settle(ctx, c, out, keep)
}

// Release implements stet.Store.
func (p *parking) Release(ctx context.Context, c stet.Claim, keep stet.Retention) error {
	if l := p.leaving(c); l != nil {
		return p.end(ctx, l)
	}
	return p.Store.Release(ctx, c, keep)
}

// Extend implements stet.Store: the engine's heartbeats do not reach a run that
// was left.
func (p *parking) Extend(ctx context.Context, claims []stet.Claim, lease time.Duration) ([]stet.Claim, error) {
	p.mu.Lock()
	if len(p.left) > 0 {
		kept := make([]stet.Claim, 0, len(claims))
		for _, c := range claims {
			if p.left[place{c.ID, c.Fence}] == nil {
				kept = append(kept, c)
			}
		}
		claims = kept
	}
	p.mu.Unlock()
	if len(claims) == 0 {
		return nil, nil
	}
	return p.Store.Extend(ctx, claims, lease)
}

// Watch implements stet.Watcher; without one below, waiters poll.
func (p *parking) Watch(ctx context.Context, id stet.ID, fence int64) error {
	if w, ok := p.Store.(stet.Watcher); ok {
		return w.Watch(ctx, id, fence)
	}
	return errors.ErrUnsupported
}

// Sweep implements stet.Sweeper; a store that needs none has nothing to do.
func (p *parking) Sweep(ctx context.Context, limit int) (stet.Swept, error) {
	if s, ok := p.Store.(stet.Sweeper); ok {
		return s.Sweep(ctx, limit)
	}
	return stet.Swept{}, nil
}

// Observe implements stet.Observer. The end of a run that was left, which is the
// last that is heard of it, is no fencing.
func (p *parking) Observe(ctx context.Context, ev stet.Event) {
	if ev.Kind == stet.EventFenced {
		at := place{ev.ID, ev.Fence}
		p.mu.Lock()
		if p.left[at] != nil {
			delete(p.left, at)
			ev.Kind, ev.Err = stet.EventToldUnknown, errLeft
		}
		p.mu.Unlock()
	}
	if p.observer != nil {
		p.observer.Observe(ctx, ev)
	}
}
