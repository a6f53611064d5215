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

	enterRounds = 4 // claims in one try to enter: a takeover or a verdict needs a second one

	claimTries   = 4 // calls of one claim or read, the first included; others go on until StoreTimeout
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
func (e *Engine) admit(ctx context.Context, t *ticket, lead func(*flight) (entry, error)) (entry, error) {
	var f *flight
	var leader bool
	for {
		if e.ctx.Err() != nil {
			return entry{}, &Error{Kind: KindClosed, Execution: NotExecuted}
		}
		if f == nil {
			f, leader = e.flights.join(t.req.ID, t.req.Fingerprint)
		}
		en, err := e.tryEnter(ctx, t, f, leader, lead)
		if errors.Is(err, errTryAgain) {
			f = nil
			continue
		}
		if err != nil || en.granted {
			return en, err
		}
		if en.rec, err = e.standing(ctx, t, en.rec); err != nil {
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
// of this process that asks for something else may run in vain: it began before
// this very operation was committed elsewhere. The store knows.
func (e *Engine) standing(ctx context.Context, t *ticket, rec store.Record) (store.Record, error) {
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

// errTryAgain: the flight that was followed ended in a way that says nothing
// about this call.
var errTryAgain = errors.New("try again")

// tryEnter leads the flight, or follows it past its entering.
func (e *Engine) tryEnter(ctx context.Context, t *ticket, f *flight, leader bool, lead func(*flight) (entry, error)) (en entry, err error) {
	if !leader {
		return e.follow(ctx, t, f)
	}
	inside := false
	defer func() { // also when lead panics
		if inside {
			return
		}
		e.flights.end(f, en.share(err))
	}()
	en, err = lead(f)
	inside = err == nil && en.granted
	return en, err
}

// share makes of the entry what the followers of the flight may be told.
func (en entry) share(err error) entry {
	switch KindOf(err) {
	case 0:
		en.shared = err == nil && en.rec.State != store.None
	case KindStore, KindDamaged:
		// It failed for the followers, too: taking turns at a store that hangs
		// would not help.
		en.err, en.shared = err, true
	case KindMismatch:
		// The record refuses all that ask for something else. A transaction of another
		// process need not say what it asks for.
		en.refuses, en.shared = true, en.rec.State != store.None && (en.rec.Fence != 0 || en.rec.Fingerprint != (store.Fingerprint{}))
	}
	return en
}

// follow waits until the flight's leader has entered, for as long as a store
// call may take or the caller wants to wait, in all that a call follows.
func (e *Engine) follow(ctx context.Context, t *ticket, f *flight) (entry, error) {
	refuse := func(cause error) (entry, error) { // nothing was done on behalf of this call
		rec := store.Record{ID: f.id, State: store.Running}
		e.observe(ctx, t.event(observe.InFlight, rec, cause))
		return entry{}, &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter, Cause: cause}
	}
	if t.patience.IsZero() {
		t.patience = time.Now().Add(max(e.o.StoreTimeout+e.o.StoreTimeout/2, time.Until(t.deadline)))
	}
	bound := time.NewTimer(time.Until(t.patience))
	defer bound.Stop()
	if e.followers.Add(1) > followersPerWaiter*int64(e.o.MaxWaiters) {
		e.followers.Add(-1)
		return refuse(errors.New("too many calls at a time"))
	}
	defer e.followers.Add(-1)
	for {
		ph, fp, shared, changed := e.flights.look(f)
		switch {
		case ph == running:
			return entry{rec: store.Record{ID: f.id, State: store.Running, Fingerprint: fp}}, nil
		case ph == over && shared.refuses && shared.rec.Fingerprint == t.req.Fingerprint:
			return entry{}, errTryAgain // it was the leader's request that does not stand
		case ph == over && shared.shared:
			shared.granted = false
			return shared, shared.err
		case ph == over:
			return entry{}, errTryAgain
		}
		select {
		case <-changed:
		case <-bound.C:
			return refuse(nil)
		case <-e.ctx.Done():
			return refuse(ErrClosed)
		case <-ctx.Done():
			return refuse(context.Cause(ctx))
		}
	}
}

// wait returns when it is worth trying to enter again, followed if because the
// flight has ended, and KindInFlight when waiting is over or was not wanted. It
// changes nothing in the store.
func (e *Engine) wait(ctx context.Context, t *ticket, f *flight, leader bool, rec store.Record) (followed bool, err error) {
	refuse := func(cause error) (bool, error) {
		e.observe(ctx, t.event(observe.InFlight, rec, cause))
		return false, &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter, Cause: cause}
	}
	if t.deadline.IsZero() || !time.Now().Before(t.deadline) {
		return refuse(nil)
	}
	if e.waiters.Add(1) > int64(e.o.MaxWaiters) {
		e.waiters.Add(-1)
		return refuse(errors.New("too many waiters"))
	}
	defer e.waiters.Add(-1)
	ctx, cancel := context.WithDeadline(ctx, t.deadline)
	defer cancel()
	stop := context.AfterFunc(e.ctx, cancel)
	defer stop()
	if !leader {
		if ph, _, _, changed := e.flights.look(f); ph == running {
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
		return sleepErr(ctx, pollMin) // a flight of this process that has ended since
	}
	if e.watcher != nil {
		if err := e.watcher.Watch(ctx, rec.ID, rec.Fence); err == nil || ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// A store that cannot tell right now is polled.
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

// enter asks the store with claim, and settles what a dead run left behind.
func (e *Engine) enter(ctx context.Context, t *ticket, claim func(context.Context, *ticket) (store.Record, error)) (entry, error) {
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
			rec, held, err := e.hold(ctx, t, rec)
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
func (e *Engine) claim(ctx context.Context, t *ticket) (rec store.Record, err error) {
	fault.At(fault.ClaimBefore)
	asked := time.Now()
	t.asked = asked
	tries := 0
	err = e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
		if tries++; tries > 1 {
			t.asked = time.Now()
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
func (e *Engine) unclaimed(ctx context.Context, t *ticket, rec store.Record, err error) error {
	e.observe(ctx, t.event(observe.StoreFailed, rec, err))
	if !errors.Is(err, store.ErrDamaged) && !errors.Is(err, store.ErrNotDone) {
		e.abandon(t)
	}
	return storeFailed(NotExecuted, err)
}

// hold sees to it that no run begins with a lease that is nearly over, because its
// claim was slow, or was repeated. It reports whether the claim is held: one that
// was parked meanwhile is not.
func (e *Engine) hold(ctx context.Context, t *ticket, rec store.Record) (store.Record, bool, error) {
	for range enterRounds {
		if t.asked.IsZero() || rec.LeaseLeft-time.Since(t.asked) >= t.req.Lease/3 { // a transaction asks for no lease
			return rec, true, nil
		}
		var lost []store.Claim
		err := e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
			t.asked = time.Now()
			lost, err = e.store.Extend(ctx, []store.Claim{rec.Claim()}, t.req.Lease)
			return err
		})
		switch {
		case err != nil:
			e.abandon(t)
			e.observe(ctx, t.event(observe.StoreFailed, rec, err))
			return rec, false, storeFailed(NotExecuted, err)
		case len(lost) > 0:
			return rec, false, nil
		}
		rec.LeaseLeft = t.req.Lease
	}
	return rec, false, e.unclaimed(ctx, t, rec, fmt.Errorf("the store takes longer than the lease of %v allows", t.req.Lease))
}

// resolve deals with an unknown record: it asks the verifier, then the policy.
// It reports whether the record may have changed.
func (e *Engine) resolve(ctx context.Context, t *ticket, rec store.Record) (again bool, err error) {
	var settle *Outcome
	kind := observe.Resolved
	verdict, sure := e.verify(ctx, t, rec)
	if verdict.State() == store.Unknown {
		verdict = t.p.Stale
	}
	switch {
	case rec.Owner == t.req.Owner:
		// Our own claim, parked before its reply came. We never ran.
	case !sure:
		return false, nil // asked again by the next retry
	case verdict.kind == itHappened:
		settle = &verdict.outcome
	case verdict.kind == itDidNotHappen:
	case verdict.kind == mayRunAgain:
		kind = observe.TakenOver
	default:
		return false, nil
	}
	var lost error
	fault.At(fault.TakeoverBefore)
	switch {
	case settle != nil:
		var sealed store.Settlement
		sealed, lost = e.sealer.seal(rec.ID, *settle, t.p.MaxResult)
		err = e.settle(ctx, rec.Claim(), sealed, t.p.Retention)
	case kind == observe.TakenOver:
		err = e.takeOver(ctx, rec, t.p.Retention)
	case verdict.kind == itDidNotHappen: // Policy.Stale cannot be
		err = e.disown(ctx, rec, t.p.Retention)
	default:
		err = e.release(ctx, rec.Claim(), t.p.Retention)
	}
	fault.At(fault.TakeoverAfter)
	switch own, ok := errors.AsType[*Error](err); {
	case ok && own.Kind == KindUnknown:
		return false, nil // a step is in doubt
	case ok:
		e.observe(ctx, t.event(observe.StoreFailed, rec, err))
		return false, own
	case errors.Is(err, store.ErrFenced):
		return true, nil // another caller was faster; look again
	case err != nil:
		e.observe(ctx, t.event(observe.StoreFailed, rec, err))
		return false, storeFailed(MayHaveExecuted, err)
	}
	e.observe(ctx, t.event(kind, rec, lost))
	return true, nil
}

// verify asks the policy's verifier, whose answer should not depend on whether
// this caller stays. It is not sure when the verifier failed.
func (e *Engine) verify(ctx context.Context, t *ticket, rec store.Record) (v Verdict, sure bool) {
	if t.p.Verify == nil || rec.Owner == t.req.Owner {
		return CannotKnow(), true
	}
	st, err := e.unresolved(ctx, t, rec)
	if err == nil {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.p.VerifyTimeout)
		defer cancel()
		v, err = t.p.Verify(bounded, st)
	}
	if err != nil {
		e.observe(ctx, t.event(observe.Resolved, rec, fmt.Errorf("verify: %w", err)))
		return CannotKnow(), false
	}
	return v, true
}

// unresolved is the Status that a verifier gets: what the call asks for, but as the dead
// run was called. Work and notes that cannot be read are left out: a verdict that depends
// on them is refused when it is carried out.
func (e *Engine) unresolved(ctx context.Context, t *ticket, rec store.Record) (st Status, err error) {
	now, n, err := e.noted(ctx, rec)
	if err != nil && KindOf(err) != KindDamaged {
		return st, err
	}
	_, w, _ := e.unpack(now)
	rec.Label, _, err = e.label(rec)
	rec.Result, rec.Work, rec.Notes, rec.Outbox = store.Result{}, nil, store.Notes{}, nil
	st = Status{Record: rec, Op: t.op, Name: w.Name, AcceptedAt: w.At, Progress: n.Progress, Doubt: n.doubt(), Counted: rec.Attempt - interruptions(rec)}
	st.Op.Name, st.Op.Ref, st.Op.Wait = rec.Label.Name, rec.Label.Ref, 0
	return st, err
}

// retry makes a store call and repeats it while it fails, tries times at most, or
// without limit if 0, until StoreTimeout. The end of the caller's context does not
// end it: a call cut off in the middle leaves a record that can only be parked.
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
