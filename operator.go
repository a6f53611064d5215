package stet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/lapse"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// maxShortening bounds the leases that are shortened at the same time.
const maxShortening = 16

// Resolve stores an operator's decision about an abandoned run, usually after a look into the
// books of the payment processor. shown is the record of the decision, as Browse or Read
// returned it. class names the policy whose Retention the outcome gets.
//
// The record must be Unknown, or Running with an expired lease, and must still have the fence
// of shown. ItHappened settles it with that outcome. ItDidNotHappen makes it Retryable, or
// Accepted if it was accepted. Use it only if the run is dead and not just paused: the next
// attempt runs the operation, and repeats the unresolved StepOnce. Finished steps are not
// repeated. MayRunAgain does the same, but fails if a StepOnce is unresolved.
//
// Resolving again with the same resolution succeeds. The error is an *Error of kind
// KindInvalid (no resolution, or no such class), KindInFlight (the lease is alive; RetryAfter
// is the rest of it), KindUnknown (MayRunAgain with an unresolved StepOnce), KindFenced (the
// record has changed since it was shown; nothing was written), KindDamaged (record or notes
// cannot be read; ItHappened needs no notes) or KindStore (it may or may not be written: read
// the record again).
func (e *Engine) Resolve(ctx context.Context, shown store.Record, class string, v Resolution) error {
	p, ok := e.policies[class]
	switch {
	case !ok:
		return invalid("class %q is not among Options.Classes", class)
	case v.State() == store.Unknown:
		return invalid("Resolve needs ItHappened, ItDidNotHappen or MayRunAgain; with CannotKnow the record stays unknown")
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
		why := observe.OperatorOf(ctx)
		why.Text, why.Owner = strings.TrimPrefix(why.Text+" ("+v.words()+")", " "), rec.Owner
		e.observe(ctx, observe.Event{Kind: kind, ID: rec.ID, Class: class, Label: rec.Label, State: v.State(), Fence: rec.Fence, Attempt: rec.Attempt, Why: &why, Err: lost})
		return nil
	case KindOf(err) == KindFenced:
		return &Error{Kind: KindFenced, Execution: MayHaveExecuted, Cause: errors.New("the record has changed since it was shown; read it again")}
	}
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	return storeFailed(MayHaveExecuted, err)
}

// State returns the state that the resolution leads to: Completed or Failed for ItHappened,
// Retryable for ItDidNotHappen and MayRunAgain (Accepted if the operation was accepted), and
// Unknown for CannotKnow.
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

// words returns the resolution in words, such as "it happened: completed".
func (v Resolution) words() string {
	switch v.kind {
	case itHappened:
		return "it happened: " + v.outcome.state().String()
	case itDidNotHappen:
		return "it did not happen"
	case mayRunAgain:
		return "it may run again"
	}
	return "it cannot be known"
}

// releaseNotHappened carries out ItDidNotHappen: it removes unresolved steps from the notes of
// an Unknown record, then releases it. The release compares the fence.
func (e *Engine) releaseNotHappened(ctx context.Context, rec store.Record, keep store.Retention) error {
	now, n, err := e.readNotes(ctx, rec)
	if err != nil {
		return err
	}
	if n.openStep() != "" && now.State == store.Unknown && now.Fence == rec.Fence {
		err = e.removeOpenSteps(ctx, now, n)
	}
	if err != nil && KindOf(err) != KindFenced { // fenced: another resolution was first, perhaps the same
		return err
	}
	return e.release(ctx, rec.Claim(), keep)
}

// takeOver releases an Unknown record, so that the operation runs again. With an unresolved
// StepOnce it fails with KindUnknown.
func (e *Engine) takeOver(ctx context.Context, rec store.Record, keep store.Retention) error {
	now, n, err := e.readNotes(ctx, rec)
	switch step := n.openStep(); {
	case err != nil:
		return err
	case now.Fence != rec.Fence:
		return store.ErrFenced
	case step != "":
		return &Error{Kind: KindUnknown, Execution: MayHaveExecuted, Cause: fmt.Errorf("the step %q began, and its end is not stored", step)}
	}
	return e.release(ctx, rec.Claim(), keep)
}

// readNotes reads a record again, with its notes if the store has any.
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

// removeOpenSteps removes the unresolved steps from the notes of an Unknown record.
func (e *Engine) removeOpenSteps(ctx context.Context, rec store.Record, n notes) error {
	n.Steps = maps.Clone(n.Steps)
	maps.DeleteFunc(n.Steps, func(_ string, s step) bool { return !s.Done })
	packed, err := e.packNotes(rec.ID, rec.Notes.Version+1, n)
	if err != nil {
		return err
	}
	fault.At(fault.StepBefore)
	defer fault.At(fault.StepAfter)
	return e.retry(ctx, 0, func(ctx context.Context) error { return e.works.Amend(ctx, rec.Claim(), packed) })
}

// abandonedRecord reads the record of shown. If its lease has expired, it is marked unknown.
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
			Cause: fmt.Errorf("its lease is alive for %v; a running operation cannot be resolved", rec.LeaseLeft)}
	}
	return rec, nil
}

// endLapsed ends a run with an expired lease, and returns its record.
func (e *Engine) endLapsed(ctx context.Context, rec store.Record) (now store.Record, err error) {
	err = e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
		now, err = lapse.End(ctx, e.store, rec, defaultPolicy.Retention)
		return err
	})
	return now, err
}

// expireLease shortens the lease of a claim to still. If still is 0, the record is marked
// unknown now; otherwise by the next caller after that time.
func (e *Engine) expireLease(ctx context.Context, rec store.Record, still time.Duration) error {
	if lost, err := e.shortenLease(ctx, rec.Claim(), max(still, time.Microsecond)); err != nil || lost || still > 0 {
		if err == nil && lost {
			err = store.ErrFenced
		}
		return err
	}
	for pause := time.Millisecond; ; pause *= 2 { // the store's clock may be coarse
		now, err := e.endLapsed(ctx, rec)
		if err != nil || now.State != store.Running || now.Fence != rec.Fence || pause > pollMax {
			return err
		}
		if !timer.Sleep(e.ctx, pause) {
			return nil // the next caller marks it unknown
		}
	}
}

// shortenLease sets the lease of a claim that its run gives up, and reports whether the
// claim was lost. If a service fails that all handlers call, all runs end at once: a limit
// keeps their calls from delaying the renewal of other leases. A claim for which there is
// no time ends with its lease.
func (e *Engine) shortenLease(ctx context.Context, c store.Claim, lease time.Duration) (lost bool, err error) {
	select {
	case e.shortening <- struct{}{}:
	case <-time.After(e.o.StoreTimeout):
		return false, fmt.Errorf("%d other leases are being shortened", maxShortening)
	}
	defer func() { <-e.shortening }()
	err = e.retry(ctx, claimTries, func(ctx context.Context) error {
		gone, err := e.store.Extend(ctx, []store.Claim{c}, lease)
		lost = len(gone) > 0
		return err
	})
	return lost, err
}

// resolve resolves an unknown record by the verifier, or else by the policy. It reports
// whether the caller must read the record again.
func (e *Engine) resolve(ctx context.Context, t *request, rec store.Record) (again bool, err error) {
	var settle *Outcome
	kind := observe.Resolved
	resolution, sure := e.verify(ctx, t, rec)
	why := observe.Why{Reason: observe.ReasonVerifier, Text: resolution.words(), Owner: rec.Owner}
	if resolution.State() == store.Unknown {
		if t.p.Verify != nil && sure && rec.Owner != t.req.Owner {
			ev := t.event(observe.Resolved, rec, nil)
			ev.Why = &why
			e.remember(ev)
		}
		resolution = t.p.Stale
		why = observe.Why{Reason: observe.ReasonPolicy, Text: resolution.words(), Owner: rec.Owner}
	}
	switch {
	case rec.Owner == t.req.Owner:
		// Our own claim became unknown before its reply arrived. It never ran.
	case !sure:
		return false, nil // the next retry calls the verifier again
	case resolution.kind == itHappened:
		settle = &resolution.outcome
	case resolution.kind == itDidNotHappen:
	case resolution.kind == mayRunAgain:
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
	case resolution.kind == itDidNotHappen: // from the verifier: Policy.Stale cannot have it
		err = e.releaseNotHappened(ctx, rec, t.p.Retention)
	default:
		err = e.release(ctx, rec.Claim(), t.p.Retention)
	}
	fault.At(fault.TakeoverAfter)
	switch own, ok := errors.AsType[*Error](err); {
	case ok && own.Kind == KindUnknown:
		return false, nil // a StepOnce is unresolved
	case ok:
		e.observe(ctx, t.event(observe.StoreFailed, rec, err))
		return false, own
	case errors.Is(err, store.ErrFenced):
		return true, nil // another caller was first
	case err != nil:
		e.observe(ctx, t.event(observe.StoreFailed, rec, err))
		return false, storeFailed(MayHaveExecuted, err)
	}
	ev := t.event(kind, rec, lost)
	ev.Why = &why
	e.observe(ctx, ev)
	return true, nil
}

// verify calls the policy's verifier. The end of the caller's context does not interrupt it.
// If the verifier fails, sure is false.
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
		ev := t.event(observe.Resolved, rec, fmt.Errorf("verify: %w", err))
		ev.Why = &observe.Why{Reason: observe.ReasonVerifier, Text: "it failed", Owner: rec.Owner}
		e.observe(ctx, ev)
		return CannotKnow(), false
	}
	return v, true
}

// unresolved returns the Status for a verifier: the operation of this call, with name and
// reference of the abandoned run. Work and notes that cannot be read are left out; a
// resolution that needs them fails later.
func (e *Engine) unresolved(ctx context.Context, t *request, rec store.Record) (st Status, err error) {
	now, n, err := e.readNotes(ctx, rec)
	if err != nil && KindOf(err) != KindDamaged {
		return st, err
	}
	_, w, _ := e.unpack(now)
	rec.Label, _, err = e.label(rec)
	rec.Result, rec.Work, rec.Notes, rec.Outbox = store.Result{}, nil, store.Notes{}, nil
	st = Status{Record: rec, Op: t.op, Name: w.Name, AcceptedAt: w.At, Progress: n.Progress, OpenStep: n.openStep(), Counted: rec.Attempt - uncountedAttempts(rec)}
	st.Op.Name, st.Op.Ref, st.Op.Wait = rec.Label.Name, rec.Label.Ref, 0
	return st, err
}
