package stet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/lapse"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// Resolve decides on a person's word what became of an expired run: an operator's,
// usually, who has looked in the processor's books. shown is the record that the
// decision is about, as Browse or Read returned it; class names the policy whose
// Retention the outcome gets.
//
// The record must be Unknown, or Running with a lease that has run out, which
// makes it Unknown, and must have the fence of shown still. ItHappened settles it
// with that outcome, which every retry gets from then on. ItDidNotHappen makes it
// Retryable, or Accepted if it was accepted: who says so must know that the run
// is dead and not just paused, because the next attempt runs the operation, and
// again the step that it may have died in (see StepOnce). Steps that are known to
// have been done stay done. MayRunAgain does the same, unless there is such a step.
//
// Resolving again with the same resolution is a success. The error is an *Error of
// kind KindInvalid (no resolution, or no such class), KindInFlight (the lease is
// alive; RetryAfter says for how long), KindUnknown (MayRunAgain, of a run that died
// in such a step), KindFenced (the record has changed since it was shown; nothing
// was written), KindDamaged (it, or its notes, cannot be read, so what was done of it
// is not known; ItHappened needs no notes) or KindStore (it may or may not have been
// written: look again).
func (e *Engine) Resolve(ctx context.Context, shown store.Record, class string, v Resolution) error {
	p, ok := e.policies[class]
	switch {
	case !ok:
		return invalid("class %q is not among Options.Classes", class)
	case v.State() == store.Unknown:
		return invalid("Resolve needs ItHappened, ItDidNotHappen or MayRunAgain; a record whose outcome is not known stays unknown")
	}
	rec, err := e.abandonedRecord(ctx, shown)
	kind := observe.Resolved
	var lost error
	switch {
	case err != nil:
	case v.kind == itHappened:
		var sealed store.Settlement
		sealed, lost = e.sealer.seal(rec.ID, v.outcome, p.MaxResult)
		err = e.settle(ctx, rec.Claim(), sealed, p.Retention)
	case v.kind == mayRunAgain:
		kind = observe.TakenOver
		err = e.takeOver(ctx, rec, p.Retention)
	default:
		err = e.releaseNotHappened(ctx, rec, p.Retention)
	}
	switch {
	case err == nil:
		e.observe(ctx, observe.Event{Kind: kind, ID: rec.ID, Class: class, State: v.State(), Fence: rec.Fence, Attempt: rec.Attempt, Err: lost})
		return nil
	case KindOf(err) == KindFenced:
		return &Error{Kind: KindFenced, Execution: MayHaveExecuted, Cause: errors.New("the record has changed since it was shown; look again")}
	}
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	return storeFailed(MayHaveExecuted, err)
}

// State returns what the resolution makes of a record: Completed or Failed, Retryable
// for ItDidNotHappen and MayRunAgain (Accepted if it was accepted), and Unknown for
// CannotKnow.
func (v Resolution) State() store.State {
	switch v.kind {
	case itHappened:
		return v.outcome.state()
	case itDidNotHappen, mayRunAgain:
		return store.Retryable
	default:
		return store.Unknown
	}
}

// disown carries out ItDidNotHappen: what an Unknown record says to have been begun
// is struck from its notes, and then it is released. In between, the resolution stands
// in the record already; the release says whether it still is the one that it is
// about.
func (e *Engine) releaseNotHappened(ctx context.Context, rec store.Record, keep store.Retention) error {
	now, n, err := e.readNotes(ctx, rec)
	if err != nil {
		return err
	}
	if n.doubt() != "" && now.State == store.Unknown && now.Fence == rec.Fence {
		err = e.removeOpenSteps(ctx, now, n)
	}
	if err != nil && KindOf(err) != KindFenced { // else another was faster, perhaps with the same resolution
		return err
	}
	return e.release(ctx, rec.Claim(), keep)
}

// takeOver releases an Unknown record, so that it is run again, whatever became of
// the expired run. If that had begun what must not be repeated, it is KindUnknown: only
// a resolution can say whether that is to run again.
func (e *Engine) takeOver(ctx context.Context, rec store.Record, keep store.Retention) error {
	now, n, err := e.readNotes(ctx, rec)
	switch step := n.doubt(); {
	case err != nil:
		return err
	case now.Fence != rec.Fence:
		return store.ErrFenced
	case step != "":
		return &Error{Kind: KindUnknown, Execution: MayHaveExecuted, Cause: fmt.Errorf("the step %q was begun, and its end was not noted", step)}
	}
	return e.release(ctx, rec.Claim(), keep)
}

// noted returns a record as it is now, with its notes if the store keeps any.
func (e *Engine) readNotes(ctx context.Context, rec store.Record) (store.Record, notes, error) {
	if e.works == nil {
		return rec, notes{}, nil
	}
	var now store.Record
	err := e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
		now, err = e.works.Look(ctx, rec.ID)
		return err
	})
	if err != nil {
		return rec, notes{}, err
	}
	n, err := e.notes(now)
	return now, n, err
}

// strike removes the steps in doubt from the notes of an Unknown record.
func (e *Engine) removeOpenSteps(ctx context.Context, rec store.Record, n notes) error {
	n.Steps = maps.Clone(n.Steps)
	maps.DeleteFunc(n.Steps, func(_ string, s step) bool { return !s.Done })
	packed, err := e.packNotes(rec.ID, rec.Notes.Version+1, n)
	if err != nil {
		return err
	}
	fault.At(fault.StepBefore)
	defer fault.At(fault.StepAfter)
	return e.retry(ctx, 0, func(ctx context.Context) error { return e.works.Strike(ctx, rec.Claim(), packed) })
}

// dead returns the record if it still is the one that was shown and its run is
// dead, marked unknown if it was not yet.
func (e *Engine) abandonedRecord(ctx context.Context, shown store.Record) (store.Record, error) {
	rec, err := e.read(ctx, shown.ID)
	if err != nil {
		return rec, err
	}
	if rec.State == store.Running && rec.Fence == shown.Fence && rec.LeaseLeft <= 0 {
		rec, err = e.endLapsed(ctx, rec)
	}
	switch {
	case err != nil:
		return rec, err
	case rec.State == store.None || rec.Fence != shown.Fence:
		return rec, store.ErrFenced
	case rec.State == store.Running:
		return rec, &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: rec.LeaseLeft,
			Cause: fmt.Errorf("its lease is alive for %v; what still runs cannot be resolved", rec.LeaseLeft)}
	}
	return rec, nil
}

// endLapsed ends a run whose lease has run out, and returns its record.
func (e *Engine) endLapsed(ctx context.Context, rec store.Record) (now store.Record, err error) {
	err = e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
		now, err = lapse.End(ctx, e.store, rec, defaultPolicy.Retention)
		return err
	})
	return now, err
}

// leave cuts a claim's lease short, so that its record becomes unknown once still
// is over: now, if that is 0.
func (e *Engine) expireLease(ctx context.Context, rec store.Record, still time.Duration) error {
	if lost, err := e.shortenLease(ctx, rec.Claim(), max(still, time.Microsecond)); err != nil || lost || still > 0 {
		if err == nil && lost {
			err = store.ErrFenced
		}
		return err // marked unknown by the next caller, once still is over
	}
	for pause := time.Millisecond; ; pause *= 2 { // the store's clock may be coarse
		now, err := e.endLapsed(ctx, rec)
		if err != nil || now.State != store.Running || now.Fence != rec.Fence || pause > pollMax {
			return err
		}
		if !timer.Sleep(e.ctx, pause) {
			return nil // by the next caller
		}
	}
}

// cuts gathers claims whose leases are to be cut short while others are on their
// way: when a service further down breaks, all its runs are left at once, and
// must not queue in front of the heartbeats of the others.
type leaseCuts struct {
	mu      sync.Mutex
	waiting map[time.Duration]*cutting // by what the lease becomes
	turn    chan struct{}              // held by who is on the way
}

type cutting struct {
	claims []store.Claim
	lost   map[store.Claim]bool
	err    error
	failed map[store.ID]bool // those that err is about; nil: all
	done   chan struct{}
}

// of returns what became of one claim.
func (b *cutting) of(c store.Claim) (lost bool, err error) {
	if b.failed != nil && !b.failed[c.ID] {
		return b.lost[c], nil
	}
	return b.lost[c], b.err
}

// cut gives a claim a lease to end with, together with others, and reports
// whether it was lost.
func (e *Engine) shortenLease(ctx context.Context, c store.Claim, lease time.Duration) (lost bool, err error) {
	e.cuts.mu.Lock()
	batch, follows := e.cuts.waiting[lease]
	if !follows {
		batch = &cutting{done: make(chan struct{})}
		e.cuts.waiting[lease] = batch
	}
	batch.claims = append(batch.claims, c)
	e.cuts.mu.Unlock()
	if follows {
		<-batch.done // its leader is bounded
		return batch.of(c)
	}
	e.cuts.turn <- struct{}{}
	defer func() { <-e.cuts.turn }()
	e.cuts.mu.Lock()
	delete(e.cuts.waiting, lease)
	e.cuts.mu.Unlock()
	defer close(batch.done)
	batch.err = errors.New("the store's call broke off")
	batch.err = e.retry(ctx, claimTries, func(ctx context.Context) error {
		gone, err := e.store.Extend(ctx, batch.claims, lease)
		batch.lost = make(map[store.Claim]bool, len(gone))
		for _, c := range gone {
			batch.lost[c] = true
		}
		batch.failed = nil
		if partial, ok := errors.AsType[*store.PartialError](err); ok {
			batch.failed = make(map[store.ID]bool, len(partial.Claims))
			for _, c := range partial.Claims {
				batch.failed[c.ID] = true
			}
		}
		return err
	})
	return batch.of(c)
}

// resolve deals with an unknown record: it asks the verifier, then the policy.
// It reports whether the record may have changed.
func (e *Engine) resolve(ctx context.Context, t *request, rec store.Record) (again bool, err error) {
	var settle *Outcome
	kind := observe.Resolved
	verdict, sure := e.verify(ctx, t, rec)
	if verdict.State() == store.Unknown {
		verdict = t.p.Stale
	}
	switch {
	case rec.Owner == t.req.Owner:
		// Our own claim, marked unknown before its reply came. We never ran.
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
		err = e.releaseNotHappened(ctx, rec, t.p.Retention)
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
func (e *Engine) verify(ctx context.Context, t *request, rec store.Record) (v Resolution, sure bool) {
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
// run was called. Work and notes that cannot be read are left out: a resolution that depends
// on them is refused when it is carried out.
func (e *Engine) unresolved(ctx context.Context, t *request, rec store.Record) (st Status, err error) {
	now, n, err := e.readNotes(ctx, rec)
	if err != nil && KindOf(err) != KindDamaged {
		return st, err
	}
	_, w, _ := e.unpack(now)
	rec.Label, _, err = e.label(rec)
	rec.Result, rec.Work, rec.Notes, rec.Outbox = store.Result{}, nil, store.Notes{}, nil
	st = Status{Record: rec, Op: t.op, Name: w.Name, AcceptedAt: w.At, Progress: n.Progress, Doubt: n.doubt(), Counted: rec.Attempt - uncountedAttempts(rec)}
	st.Op.Name, st.Op.Ref, st.Op.Wait = rec.Label.Name, rec.Label.Ref, 0
	return st, err
}
