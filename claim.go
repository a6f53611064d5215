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
	retryAfter = time.Second // RetryAfter if a run is in flight or the store failed

	enterRounds = 4 // claims of one call: after a takeover or a resolution, it must claim again

	claimTries   = 4 // tries of a claim or read; settles and releases are retried until StoreTimeout
	storeBackoff = 10 * time.Millisecond
	maxBackoff   = 500 * time.Millisecond

	followersPerWaiter = 16 // calls that follow another call with the same key, for each of Options.MaxWaiters

	pollMin = 5 * time.Millisecond // poll interval if the store cannot watch a record
	pollMax = 500 * time.Millisecond
)

// acquire claims an operation or reads its outcome. The first call of a key in this process
// leads and calls lead. Other calls follow it. acquire fails on a mismatch. While the operation
// runs elsewhere, it waits or fails. The returned entry is granted or settled.
func (e *Engine) acquire(ctx context.Context, t *request, lead func(*inFlight) (entry, error)) (entry, error) {
	var f *inFlight
	var leader bool
	for {
		if e.ctx.Err() != nil {
			return entry{}, &Error{Kind: KindClosed, Execution: NotExecuted}
		}
		if f == nil {
			if err := e.chooseName(ctx, t); err != nil {
				return entry{}, err
			}
			f, leader = e.inFlight.join(t.req.ID, t.req.Fingerprint)
		}
		en, err := e.tryEnter(ctx, t, f, leader, lead)
		if errors.Is(err, errBothNames) {
			err = e.pauseNames(ctx, t)
		}
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
		// The fingerprint is checked first, so a request with another payload learns nothing
		// about the stored operation.
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
				f = nil // its state is as old as the wait
			}
		default:
			err := fmt.Errorf("the store returned a record in state %v that it did not grant", en.rec.State)
			return en, &Error{Kind: KindStore, Execution: NotExecuted, Cause: err}
		}
	}
}

// currentRecord returns the record to compare the call with. A transaction of this process may
// be running for another fingerprint. It may have begun before the operation of this call
// committed elsewhere. currentRecord therefore reads the store.
func (e *Engine) currentRecord(ctx context.Context, t *request, rec store.Record) (store.Record, error) {
	if rec.Fingerprint == t.req.Fingerprint || rec.Fence != 0 || rec.InTx {
		return rec, nil // no mismatch, or the record comes from the store
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

// enter calls claim, and resolves an operation whose lease has expired.
func (e *Engine) enter(ctx context.Context, t *request, claim func(context.Context, *request) (store.Record, error)) (entry, error) {
	for range enterRounds {
		rec, err := claim(ctx, t)
		// Not errors.Is: the error of a transaction's function may wrap ErrMismatch.
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
			if e.o.Observer != nil { // avoids making the event
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

// unclaimed returns the error for a claim that may have been granted. Nothing runs under it.
func (e *Engine) unclaimed(ctx context.Context, t *request, rec store.Record, err error) error {
	e.observe(ctx, t.event(observe.StoreFailed, rec, err))
	if !errors.Is(err, store.ErrDamaged) && !errors.Is(err, store.ErrNotDone) {
		e.rememberLostClaim(t)
	}
	return storeFailed(NotExecuted, err)
}

// checkLease renews a lease that has less than a third left, because its claim was slow or was
// repeated. It reports whether the claim still holds. The record may have become unknown in the
// meantime.
func (e *Engine) checkLease(ctx context.Context, t *request, rec store.Record) (store.Record, bool, error) {
	for range enterRounds {
		if t.claimSentAt.IsZero() || rec.LeaseLeft-time.Since(t.claimSentAt) >= t.req.Lease/3 { // a transaction has no lease
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

// retry makes a store call and repeats it while it fails, until StoreTimeout. It makes at most
// tries calls; 0 for no limit. It does not end with the caller's context. A call that is cut
// off may leave a record that can only become unknown.
func (e *Engine) retry(ctx context.Context, tries int, call func(context.Context) error) error {
	ctx = e.storeContext(ctx)
	var err, earlier error // an earlier try may have had its effect
	for try, pause := 1, storeBackoff; ; try, pause = try+1, min(2*pause, maxBackoff) {
		err = call(ctx)
		switch {
		case earlier != nil && errors.Is(err, store.ErrNotDone):
			err = fmt.Errorf("%w; and then: %v", earlier, err) //nolint:errorlint // err is ErrNotDone, and the result must not be
		case err == nil || errors.Is(err, store.ErrMismatch) || errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrInvalid) || errors.Is(err, store.ErrDamaged):
			return err
		case errors.Is(earlier, store.ErrUnknown): // a settled record was read, but the store could not confirm it
			err = fmt.Errorf("%w; and then: %w", earlier, err)
		}
		if try == tries || !timer.Sleep(ctx, timer.Around(pause)) {
			return err
		}
		if !errors.Is(err, store.ErrNotDone) {
			earlier = err
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

// settle retries until StoreTimeout, because giving up leaves an unknown operation.
func (e *Engine) settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	return e.retry(ctx, 0, func(ctx context.Context) error { return e.store.Settle(ctx, c, out, keep) })
}

func (e *Engine) release(ctx context.Context, c store.Claim, keep store.Retention) error {
	return e.retry(ctx, 0, func(ctx context.Context) error { return e.store.Release(ctx, c, keep) })
}

// names are the two names of an operation while Options.Previous is set. A handler runs under
// one name only if the other is free (isFree) after its claim was granted. The claim of one name
// is visible to each later read, so of two claims at most one passes that check.
type names struct {
	current   Op
	previous  Op
	namespace string      // of previous
	ids       [2]store.ID // of previous and current
	givenUp   int         // claims
}

var (
	// errBothNames means that a claim was given up because the other name has a record.
	errBothNames = fmt.Errorf("the operation has a record under its other name: %w", errTryAgain)
	errOtherRuns = errors.New("a transaction runs the operation under its other name")
)

// other returns the ID of the other name.
func (n *names) other(id store.ID) store.ID {
	if id == n.ids[0] {
		return n.ids[1]
	}
	return n.ids[0]
}

// nameBoth gives t its current name, and computes the previous one if there is a change.
func (e *Engine) nameBoth(ctx context.Context, t *request, op Op) error {
	e.rename(t, op, e.o.Namespace)
	if e.o.Previous == nil {
		return nil
	}
	namespace, before, err := e.o.previous(ctx, op)
	if err != nil {
		return err
	}
	if err := checkOp(before); err != nil {
		return invalid("Options.Previous returned a wrong name: %w", err)
	}
	t.names = &names{current: op, previous: before, namespace: namespace, ids: [2]store.ID{store.Digest(namespace, before.Scope, before.Key), t.req.ID}}
	return nil
}

// previous returns the name that an operation had before.
func (o *Options) previous(ctx context.Context, op Op) (namespace string, before Op, err error) {
	namespace, named := o.Previous(ctx, op)
	if namespace == o.Namespace || len(namespace) > store.MaxScope {
		return "", op, invalid("Options.Previous returned the namespace %.40q; it must differ from Namespace, and have at most %d bytes", namespace, store.MaxScope)
	}
	op.Scope, op.Key, op.Fingerprint = named.Scope, named.Key, named.Fingerprint
	return namespace, op, nil
}

// rename sets the name under which t claims.
func (e *Engine) rename(t *request, op Op, namespace string) {
	t.op, t.namespace = op, nil
	if namespace != e.o.Namespace {
		t.namespace = []byte(namespace)
	}
	id := store.Digest(namespace, op.Scope, op.Key)
	t.req.ID, t.req.Scope, t.req.Fingerprint = id, store.DigestScope(namespace, op.Scope), op.Fingerprint
	t.req.Label = store.Label{Class: op.Class, Name: op.Name, Ref: store.WithScopeLabel(e.scopeLabel(op), e.sealer.sealRef(id, t.p.keep(op).Pack()))}
}

// chooseName reads the records of both names, and selects the name of the next claim.
func (e *Engine) chooseName(ctx context.Context, t *request) error {
	if t.names == nil {
		return nil
	}
	var recs [2]store.Record
	for i, id := range t.names.ids {
		rec, err := e.read(ctx, id)
		if err != nil {
			e.observe(ctx, t.event(observe.StoreFailed, rec, err))
			return storeFailed(NotExecuted, err)
		}
		recs[i] = rec
	}
	if usesPrevious(recs[0], recs[1], e.o.ClaimPrevious) {
		e.rename(t, t.names.previous, t.names.namespace)
	} else {
		e.rename(t, t.names.current, e.o.Namespace)
	}
	return nil
}

// usesPrevious reports whether an operation with these records continues under its previous
// name. Two records exist only if two claims met, or if a process died between its claim and
// its check.
func usesPrevious(previous, current store.Record, claims bool) bool {
	switch before, now := progressOf(previous), progressOf(current); {
	case before != now:
		return before > now
	case previous.State.Settled():
		return !current.SettledAt.Before(previous.SettledAt)
	case previous.State == store.Running || previous.State == store.Unknown: // the later claim does not pass its check
		return !current.ClaimedAt.Before(previous.ClaimedAt)
	case previous.State == store.None:
		return claims
	}
	return true
}

// progressOf orders the records of one operation. The record with more progress is used.
func progressOf(rec store.Record) int {
	switch {
	case rec.State.Settled():
		return 5
	case rec.State == store.Running && rec.LeaseLeft > 0:
		return 4
	case rec.State == store.Running, rec.State == store.Unknown:
		return 3
	case rec.State == store.Accepted:
		return 2
	case rec.State == store.Retryable:
		return 1
	}
	return 0
}

// otherNameFree returns errBothNames if the other name has a record that excludes a run.
func (e *Engine) otherNameFree(ctx context.Context, t *request) error {
	rec, err := e.read(ctx, t.names.other(t.req.ID))
	if err == nil && rec.State == store.Retryable {
		rec, _, err = e.readNotes(ctx, rec)
	}
	if err == nil && !isFree(rec) {
		err = errBothNames
	}
	return err
}

// isFree reports whether a name has no record, or was released without a stored step. A later
// claim of that name finds the record of this one, and is given up.
func isFree(rec store.Record) bool {
	return rec.State == store.None || rec.State == store.Retryable && len(rec.Notes.Data) == 0
}

// confirmName checks that the other name of a granted claim is free. If it is not, the claim
// is released, and a record without a stored step is deleted.
func (e *Engine) confirmName(ctx context.Context, t *request, rec store.Record) error {
	if t.names == nil {
		return nil
	}
	failed := e.otherNameFree(ctx, t)
	if failed == nil {
		return nil
	}
	keep := t.p.Retention
	now, _, err := e.readNotes(ctx, rec)
	if err == nil && len(now.Notes.Data) == 0 && !t.resent { // a repeated claim may arrive later
		keep = store.Retention{}
	}
	if err = e.release(ctx, rec.Claim(), keep); err != nil && !errors.Is(err, store.ErrFenced) {
		return e.unclaimed(ctx, t, rec, err)
	}
	e.observe(ctx, t.event(observe.Released, rec, nil))
	if errors.Is(failed, errBothNames) {
		return failed
	}
	return storeFailed(NotExecuted, failed)
}

// pauseNames returns errTryAgain after a pause, or KindInFlight if too many claims were given
// up.
func (e *Engine) pauseNames(ctx context.Context, t *request) error {
	t.req.Owner = store.NewOwner()
	if t.names.givenUp++; t.names.givenUp < enterRounds && timer.Sleep(ctx, timer.Around(pollMin)) {
		return errTryAgain
	}
	return &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter, Cause: errors.New("it has two records")}
}
