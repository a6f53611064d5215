package stet

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
)

const (
	maxLostClaims  = 1 << 16 // claims beyond this number become unknown when their lease ends, which is safe
	lostClaimBatch = 64      // read at the same time

	maxLostClaimPause = time.Minute // between two reads of one record
)

// lostClaim is a claim whose reply was lost: the store may have granted it.
type lostClaim struct {
	id        store.ID
	owner     store.Owner
	accepted  bool // claimed by Take
	repeat    bool // see Item.Repeatable
	uncounted bool // the record already excludes this attempt from the limit
	keep      store.Retention
	lease     time.Duration
	pause     time.Duration // before the next read
	next      time.Time
	latest    time.Time // the claim cannot arrive after this time
}

// lostClaims are released by one goroutine. It ends when there are none.
type lostClaims struct {
	mu        sync.Mutex
	waiting   []lostClaim
	releasing bool
}

// rememberLostClaim schedules the release of a claim that the store may have granted. The
// claim request may still arrive until its lease would have ended, so the record is read until
// then. No handler ran under the claim: without the release, the operation would become
// unknown for no reason.
func (e *Engine) rememberLostClaim(t *request) {
	now := time.Now()
	e.lostClaims.mu.Lock()
	defer e.lostClaims.mu.Unlock()
	if len(e.lostClaims.waiting) >= maxLostClaims {
		return
	}
	e.lostClaims.waiting = append(e.lostClaims.waiting, lostClaim{id: t.req.ID, owner: t.req.Owner, accepted: t.taken, repeat: t.repeatable, keep: t.p.Retention, lease: t.req.Lease,
		pause: storeBackoff, next: now.Add(storeBackoff), latest: now.Add(t.req.Lease + e.o.StoreTimeout)})
	if !e.lostClaims.releasing {
		e.lostClaims.releasing = e.background(e.releaseLostClaims)
	}
}

// releaseLostClaims runs until no claims are left.
func (e *Engine) releaseLostClaims(ctx context.Context) {
	for rest := storeBackoff; ; {
		batch, more := e.lostClaims.due(time.Now())
		if !more || !timer.Sleep(ctx, rest) {
			return
		}
		var mu sync.Mutex
		var wg sync.WaitGroup
		var again []lostClaim
		failed := false
		for _, o := range batch {
			wg.Go(func() {
				done, err := e.releaseLostClaim(ctx, &o)
				mu.Lock()
				defer mu.Unlock()
				failed = failed || err != nil
				if !done {
					again = append(again, o.later(time.Now()))
				}
			})
		}
		wg.Wait()
		e.lostClaims.again(again)
		// The load on a store that has just recovered stays low.
		rest = storeBackoff
		if failed {
			rest = maxBackoff / 10
		}
	}
}

// due removes and returns the claims whose records must be read now. If none are waiting, more
// is false and the goroutine must end.
func (os *lostClaims) due(now time.Time) (batch []lostClaim, more bool) {
	os.mu.Lock()
	defer os.mu.Unlock()
	if len(os.waiting) == 0 {
		os.waiting, os.releasing = nil, false
		return nil, false
	}
	rest := os.waiting[:0]
	for _, o := range os.waiting {
		if len(batch) < lostClaimBatch && !now.Before(o.next) {
			batch = append(batch, o)
		} else {
			rest = append(rest, o)
		}
	}
	os.waiting = rest
	return batch, true
}

// again adds the claims that were not released yet.
func (os *lostClaims) again(again []lostClaim) {
	os.mu.Lock()
	defer os.mu.Unlock()
	os.waiting = append(os.waiting, again...)
}

// later schedules the next read: often while the claim can still arrive, then with growing
// pauses until the store can be reached.
func (o lostClaim) later(now time.Time) lostClaim {
	most := maxLostClaimPause
	if now.Before(o.latest) {
		most = min(most, o.lease/4+pollMin)
	}
	o.pause = min(2*o.pause, most)
	o.next = now.Add(o.pause)
	return o
}

// releaseLostClaim releases the claim if the store has it. It is done if the store answered at
// a time when the claim can no longer arrive.
func (e *Engine) releaseLostClaim(ctx context.Context, o *lostClaim) (done bool, err error) {
	ctx = e.storeContext(ctx)
	late := !time.Now().Before(o.latest)
	read, release := e.store.Read, func(rec store.Record) error { return e.store.Release(ctx, rec.Claim(), o.keep) }
	if ws := e.works; ws != nil && o.accepted {
		read, release = ws.Look, func(rec store.Record) error {
			o.uncounted = o.uncounted || e.markUncounted(ctx, ws, rec, o.repeat)
			return ws.Return(ctx, rec.Claim(), 0)
		}
	}
	rec, err := read(ctx, o.id)
	if err == nil && rec.Owner == o.owner && (rec.State == store.Running || rec.State == store.Unknown) {
		err = release(rec)
	}
	switch {
	case err == nil, errors.Is(err, store.ErrFenced):
		return late, nil
	case errors.Is(err, store.ErrDamaged), errors.Is(err, store.ErrInvalid):
		return true, nil
	}
	return false, err
}

// maxFinishing bounds the runs whose end is written in the background.
const maxFinishing = 1024

// finishLater repeats call in the background, until the lease has ended, for a run whose
// settle or release failed. Call marks the record unknown or releases it. Otherwise retries
// would be refused as in flight until the lease ends. If the first write was applied after
// all, the fence refuses the second.
func (e *Engine) finishLater(lease time.Duration, call func(context.Context) error) {
	if e.finishing.Add(1) > maxFinishing { // the others end with their lease
		e.finishing.Add(-1)
		return
	}
	started := e.background(func(ctx context.Context) {
		defer e.finishing.Add(-1)
		e.renewer.waitForRenewal(lease)
		end := time.Now().Add(lease)
		for pause := storeBackoff; time.Now().Before(end) && timer.Sleep(ctx, pause); pause = min(2*pause, maxBackoff) {
			if err := call(ctx); err == nil || KindOf(err) == KindFenced {
				return
			}
		}
	})
	if !started {
		e.finishing.Add(-1)
	}
}
