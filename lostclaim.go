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
	maxLostClaims  = 1 << 16 // claims with a lost reply that are remembered; more are marked unknown, which is safe
	lostClaimBatch = 64      // that are looked for at a time

	maxLostClaimPause = time.Minute // between two looks for one
)

// orphan is a claim that may have been granted without our hearing of it.
type lostClaim struct {
	id        store.ID
	owner     store.Owner
	accepted  bool // by Take
	repeat    bool // see Item.Repeatable
	uncounted bool // it is stored that this attempt does not count
	keep      store.Retention
	lease     time.Duration
	pause     time.Duration // before the next look
	next      time.Time
	latest    time.Time // when it can have arrived at the latest
}

// orphans are released by one goroutine, which lives while there are any.
type lostClaims struct {
	mu        sync.Mutex
	waiting   []lostClaim
	releasing bool
}

// abandon releases a claim that may have been granted without our hearing of
// it, whenever it arrives within the time that its lease could live, and whenever
// the store can be asked again. Nothing was run under it, so without this a key
// would be marked unknown as unknown for no reason.
func (e *Engine) rememberLostClaim(t *request) {
	now := time.Now()
	e.lostClaims.mu.Lock()
	defer e.lostClaims.mu.Unlock()
	if len(e.lostClaims.waiting) >= maxLostClaims {
		return
	}
	e.lostClaims.waiting = append(e.lostClaims.waiting, lostClaim{id: t.req.ID, owner: t.req.Owner, accepted: t.taken, repeat: t.repeats, keep: t.p.Retention, lease: t.req.Lease,
		pause: storeBackoff, next: now.Add(storeBackoff), latest: now.Add(t.req.Lease + e.o.StoreTimeout)})
	if !e.lostClaims.releasing {
		e.lostClaims.releasing = e.background(e.releaseLostClaims)
	}
}

// cleanUp looks for orphans until there are none.
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
		// A store that has just come back is not run down.
		rest = storeBackoff
		if failed {
			rest = maxBackoff / 10
		}
	}
}

// due takes a batch of those that are to be looked for now; without any orphans
// at all, more is false, and the cleaning ends.
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

// back has those looked for again that were not to be found yet.
func (os *lostClaims) again(again []lostClaim) {
	os.mu.Lock()
	defer os.mu.Unlock()
	os.waiting = append(os.waiting, again...)
}

// later is the orphan that is looked for again: as often as its lease demands,
// and less often once only the store is waited for.
func (o lostClaim) later(now time.Time) lostClaim {
	most := maxLostClaimPause
	if now.Before(o.latest) {
		most = min(most, o.lease/4+pollMin)
	}
	o.pause = min(2*o.pause, most)
	o.next = now.Add(o.pause)
	return o
}

// disclaim releases the claim if the store has it. It is done when the store has
// said so after the claim can have arrived.
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

// maxForsaken bounds how many records are ended so at a time.
const maxFinishing = 1024

// forsake ends, in the background, the record of a run that has ended and whose end
// did not reach the store: call parks what could not be settled or marked unknown, and gives
// back what could not be released. Retries would otherwise be told until the lease
// has run out that it is being executed, and then that it is not known. What was sent
// may still come through, and stands then.
func (e *Engine) finishLater(lease time.Duration, call func(context.Context) error) {
	if e.finishing.Add(1) > maxFinishing { // those learn it when the lease has run out
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
