package stet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

const (
	retryAfter = time.Second // hint for a run in flight, or a store that failed

	enterRounds = 4 // claims in one try to enter: a takeover or a resolution needs a second one

	claimTries   = 4 // calls of one claim or read, the first included; others continue until StoreTimeout
	storeBackoff = 10 * time.Millisecond
	maxBackoff   = 500 * time.Millisecond

	followersPerWaiter = 16 // calls that follow another into the store, for each of Options.MaxWaiters

	pollMin = 5 * time.Millisecond // of a waiter on a store that cannot tell
	pollMax = 500 * time.Millisecond
)

// admit takes a call through the door: it follows a flight of the same key in
// this process, or leads one by calling lead; it refuses mismatches, waits or
// refuses while the operation runs, and returns an entry that is granted or
// settled.
func (e *Engine) acquire(ctx context.Context, t *request, lead func(*inFlight) (entry, error)) (entry, error) {
	var f *inFlight
	var leader bool
	for {
		if e.ctx.Err() != nil {
			return entry{}, &Error{Kind: KindClosed, Execution: NotExecuted}
		}
		if f == nil {
			f, leader = e.inFlight.join(t.req.ID, t.req.Fingerprint)
		}
		en, err := e.tryEnter(ctx, t, f, leader, lead)
		if errors.Is(err, errTryAgain) {
			f = nil
			continue
		}
		if err != nil || en.granted {
			return en, err
		}
		if en.rec, err = e.currentRecord(ctx, t, en.rec); err != nil {
			return en, err
		}
		// This comes before any other answer about the key.
		if en.rec.Fingerprint != t.req.Fingerprint {
			return en, e.mismatch(ctx, t, en.rec)
		}
		switch en.rec.State {
		case store.Completed, store.Failed:
			return en, nil
		case store.Unknown:
			e.observe(ctx, t.event(observe.ToldUnknown, en.rec, nil))
			err := &Error{Kind: KindUnknown, Execution: MayHaveExecuted}
			if t.p.Verify != nil {
				err.RetryAfter = 5 * retryAfter
			}
			return en, err
		case store.Accepted:
			e.observe(ctx, t.event(observe.InFlight, en.rec, nil))
			return en, &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter, Cause: errors.New("it was accepted, and waits for a worker")}
		case store.Running:
			followed, err := e.wait(ctx, t, f, leader, en.rec)
			if err != nil {
				return en, err
			}
			if !followed {
				f = nil // what it knows is what was waited on
			}
		default:
			err := fmt.Errorf("the store returned a record in state %v that it did not grant", en.rec.State)
			return en, &Error{Kind: KindStore, Execution: NotExecuted, Cause: err}
		}
	}
}

// standing returns the record that the call is to be compared with. A transaction
// of this process that asks for something else may run without effect: it began before
// this very operation was committed elsewhere. The store knows.
func (e *Engine) currentRecord(ctx context.Context, t *request, rec store.Record) (store.Record, error) {
	if rec.Fingerprint == t.req.Fingerprint || rec.Fence != 0 || rec.InTx {
		return rec, nil // nothing to refuse, or the store's own word
	}
	now, err := e.read(ctx, rec.ID)
	if err != nil {
		e.observe(ctx, t.event(observe.StoreFailed, rec, err))
		return rec, storeFailed(NotExecuted, err)
	}
	if now.State.Settled() {
		return now, nil
	}
	return rec, nil
}

// enter asks the store with claim, and settles what an expired run left behind.
func (e *Engine) enter(ctx context.Context, t *request, claim func(context.Context, *request) (store.Record, error)) (entry, error) {
	for range enterRounds {
		rec, err := claim(ctx, t)
		// What fn of a transaction returned is no word of the store.
		if KindOf(err) == KindMismatch {
			return entry{rec: rec}, e.mismatch(ctx, t, rec)
		}
		if err != nil {
			return entry{rec: rec}, err
		}
		if rec.State == store.Running && rec.Owner == t.req.Owner {
			rec, held, err := e.checkLease(ctx, t, rec)
			if held || err != nil {
				return entry{rec: rec, granted: held}, err
			}
			continue
		}
		if rec.Fingerprint != t.req.Fingerprint || rec.State != store.Unknown && rec.State != store.Retryable {
			return entry{rec: rec}, nil
		}
		if rec.State == store.Unknown {
			again, err := e.resolve(ctx, t, rec)
			if err != nil || !again {
				return entry{rec: rec}, err
			}
		}
		t.req.Owner = store.NewOwner() // an owner claims once
	}
	return entry{}, &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter,
		Cause: fmt.Errorf("the record changed %d times while entering", enterRounds)}
}

// claim claims in lease mode.
func (e *Engine) claim(ctx context.Context, t *request) (rec store.Record, err error) {
	fault.At(fault.ClaimBefore)
	asked := time.Now()
	t.claimSentAt = asked
	tries := 0
	err = e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
		if tries++; tries > 1 {
			t.claimSentAt = time.Now()
		}
		rec, err = e.store.Claim(ctx, t.req)
		return err
	})
	t.resent = t.resent || tries > 1
	fault.At(fault.ClaimAfter)
	if err == nil || errors.Is(err, store.ErrMismatch) {
		if err == nil && rec.State == store.Running && rec.Owner == t.req.Owner {
			if e.o.Observer != nil { // nothing else wants to know
				ev := t.event(observe.Claimed, rec, nil)
				ev.Elapsed = time.Since(asked)
				e.observe(ctx, ev)
			}
		}
		return rec, err
	}
	if errors.Is(err, store.ErrInvalid) {
		return rec, &Error{Kind: KindInvalid, Execution: NotExecuted, Cause: err}
	}
	return rec, e.unclaimed(ctx, t, rec, err)
}

// unclaimed is the caller's error for a claim that may have been granted, and under
// which nothing runs.
func (e *Engine) unclaimed(ctx context.Context, t *request, rec store.Record, err error) error {
	e.observe(ctx, t.event(observe.StoreFailed, rec, err))
	if !errors.Is(err, store.ErrDamaged) && !errors.Is(err, store.ErrNotDone) {
		e.rememberLostClaim(t)
	}
	return storeFailed(NotExecuted, err)
}

// hold sees to it that no run begins with a lease that is nearly over, because its
// claim was slow, or was repeated. It reports whether the claim is held: one that
// was marked unknown in the meantime is not.
func (e *Engine) checkLease(ctx context.Context, t *request, rec store.Record) (store.Record, bool, error) {
	for range enterRounds {
		if t.claimSentAt.IsZero() || rec.LeaseLeft-time.Since(t.claimSentAt) >= t.req.Lease/3 { // a transaction asks for no lease
			return rec, true, nil
		}
		var lost []store.Claim
		err := e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
			t.claimSentAt = time.Now()
			lost, err = e.store.Extend(ctx, []store.Claim{rec.Claim()}, t.req.Lease)
			return err
		})
		switch {
		case err != nil:
			e.rememberLostClaim(t)
			e.observe(ctx, t.event(observe.StoreFailed, rec, err))
			return rec, false, storeFailed(NotExecuted, err)
		case len(lost) > 0:
			return rec, false, nil
		}
		rec.LeaseLeft = t.req.Lease
	}
	return rec, false, e.unclaimed(ctx, t, rec, fmt.Errorf("the store takes longer than the lease of %v allows", t.req.Lease))
}

// retry makes a store call and repeats it while it fails, tries times at most, or
// without limit if 0, until StoreTimeout. The end of the caller's context does not
// end it: a call cut off in the middle leaves a record that can only be marked unknown.
func (e *Engine) retry(ctx context.Context, tries int, call func(context.Context) error) error {
	ctx = e.storeContext(ctx)
	var err, doubt error // doubt: an earlier try may have had its effect
	for try, pause := 1, storeBackoff; ; try, pause = try+1, min(2*pause, maxBackoff) {
		err = call(ctx)
		switch {
		case doubt != nil && errors.Is(err, store.ErrNotDone):
			err = fmt.Errorf("%w; and then: %v", doubt, err) //nolint:errorlint // which is not ErrNotDone
		case err == nil || errors.Is(err, store.ErrMismatch) || errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrInvalid) || errors.Is(err, store.ErrDamaged):
			return err
		case errors.Is(doubt, store.ErrUnknown): // a settled record was read that could not be confirmed
			err = fmt.Errorf("%w; and then: %w", doubt, err)
		}
		if try == tries || !timer.Sleep(ctx, timer.Around(pause)) {
			return err
		}
		if !errors.Is(err, store.ErrNotDone) {
			doubt = err
		}
	}
}

func (e *Engine) read(ctx context.Context, id store.ID) (rec store.Record, err error) {
	err = e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
		rec, err = e.store.Read(ctx, id)
		return err
	})
	return rec, err
}

// settle does not give up before StoreTimeout: what happened would be unknown.
func (e *Engine) settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	return e.retry(ctx, 0, func(ctx context.Context) error { return e.store.Settle(ctx, c, out, keep) })
}

func (e *Engine) release(ctx context.Context, c store.Claim, keep store.Retention) error {
	return e.retry(ctx, 0, func(ctx context.Context) error { return e.store.Release(ctx, c, keep) })
}
