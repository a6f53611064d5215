package mysql

import (
	"fmt"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

// claiming is a claim, or with work an acceptance.
type claiming struct {
	*store.ClaimRequest
	work  []byte // nil: to be run now
	after time.Duration
}

// claim is the body of store.Store.Claim and store.WorkStore.Accept.
func (r *row) claim(now micros, c claiming) error {
	change, err := rules.OnClaim(r.whole(now), *c.ClaimRequest)
	switch {
	case err != nil:
		return err
	case change == rules.Grant:
		return r.grant(now, c)
	case change == rules.MarkUnknown:
		r.markUnknown(now)
	}
	return nil
}

// grant grants the claim.
func (r *row) grant(now micros, c claiming) error {
	if r.forgotten(now) {
		*r = row{Record: store.Record{ID: r.ID, Fence: r.Fence}, stored: r.stored}
	}
	verb := store.VerbClaim
	if c.work != nil {
		verb = store.VerbAccept
	}
	if err := r.own(now, verb, c.Owner); err != nil {
		return err
	}
	r.Scope, r.Fingerprint, r.Label = c.Scope, c.Fingerprint, c.Label
	if c.work != nil {
		r.lease = now + span(c.after) // before that it cannot be taken
		r.Work, r.queue, r.queueDue = c.work, job(c.Label.Name), now+span(max(c.after, c.Queued))
	} else {
		r.Attempt++
		r.lease = now + span(c.Lease)
		r.due = r.lease
	}
	return nil
}

// pending is the fence of a row whose fence is drawn when it is written. No claim has it.
const pending = -1

// own gives r to an owner, by a verb that the state machine must allow.
func (r *row) own(now micros, verb store.Verb, owner store.Owner) error {
	to, ok := r.State.Next(verb)
	if !ok {
		return unreadable(r.ID, fmt.Sprintf("it is %v", r.State))
	}
	r.State, r.Fence, r.Owner = to, pending, owner
	r.Result, r.Gone = store.Result{}, false
	r.times = times{claimed: now}
	r.queue, r.conn = "", 0
	r.drawn, r.dirty = true, true
	return nil
}

// markUnknown makes an expired run's record unknown, or accepted if the run may be repeated.
func (r *row) markUnknown(now micros) {
	if r.repeatable() {
		r.State, r.lease = store.Accepted, now
	} else {
		r.State, r.lease, r.queue, r.queueDue = store.Unknown, 0, unknowns, 0
	}
	r.settled, r.due, r.conn, r.dirty = now, 0, 0, true
}

// settle writes the outcome.
func (r *row) settle(now micros, out store.Settlement, keep store.Retention) {
	r.State, r.Gone, r.Result = out.State, out.Gone, out.Result
	if out.Gone {
		r.Result = store.Result{}
	} else {
		r.Result.Body = notNil(r.Result.Body)
	}
	r.times = times{claimed: r.claimed, settled: now, expires: now + span(keep.Result), forget: now + span(keep.Tombstone)}
	r.queue, r.conn = "", 0
	if r.Outbox = out.Outbox; out.Outbox != nil { // not forgotten before it is relayed
		r.queue, r.queueDue, r.forget = messages, now, 0
	}
	if r.due = r.expires; out.Gone {
		r.due = r.forget
	}
	r.Work, r.Notes, r.Cancelling, r.dirty = nil, store.Notes{}, false, true
}

// release makes the record retryable.
func (r *row) release(now micros, keep store.Retention) {
	forget := now + span(keep.Result)
	r.State, r.queue, r.conn, r.dirty = store.Retryable, "", 0, true
	r.times = times{claimed: r.claimed, settled: now, forget: forget, due: forget}
}

// requeue makes the record wait for a worker again.
func (r *row) requeue(now micros, after time.Duration) {
	due := now + span(after)
	r.State, r.queue, r.conn, r.dirty = store.Accepted, job(r.Label.Name), 0, true
	r.times = times{claimed: r.claimed, settled: now, lease: due, queueDue: due}
}

// take gives an accepted record to a worker.
func (r *row) take(now micros, req store.TakeRequest) error {
	if err := r.own(now, store.VerbTake, req.Owner); err != nil {
		return err
	}
	r.Attempt++
	r.lease = now + span(req.Lease)
	r.due = r.lease
	if req.Repeatable {
		r.queue, r.queueDue = job(r.Label.Name), r.lease
	}
	return nil
}

// save replaces the notes.
func (r *row) save(notes store.Notes, repeatable bool) {
	r.Notes, r.dirty = notes, true
	switch {
	case r.State != store.Running:
	case repeatable && r.Work != nil && r.queue == "":
		r.queue, r.queueDue = job(r.Label.Name), r.lease
	case !repeatable:
		r.queue, r.queueDue = "", 0
	}
}

// relayed removes the messages.
func (r *row) relayed(now micros, keep store.Retention) {
	r.Outbox, r.queue, r.queueDue, r.dirty = nil, "", 0, true
	r.forget = now + span(keep.Tombstone)
	r.scheduleSweep()
}

// expire removes the result.
func (r *row) expire(now micros) {
	if !r.Gone {
		r.expires = min(r.expires, now)
	}
	r.Gone, r.Result, r.dirty = true, store.Result{}, true
	r.due = r.forget
}

// scheduleSweep sets when a sweep must read the settled record.
func (r *row) scheduleSweep() {
	if r.due = r.forget; !r.Gone {
		r.due = min(r.expires, r.forget)
	}
}

// bury replaces a record that cannot be read by a tombstone with its fence and its readable fields.
func (r *row) bury(now micros, c store.Claim) error {
	if r.Fence != c.Fence {
		return store.ErrFenced
	}
	*r = row{Record: store.Record{ID: r.ID, Scope: r.Scope, Fingerprint: r.Fingerprint, Owner: c.Owner, Fence: r.Fence,
		State: store.Failed, Gone: true, Attempt: max(r.Attempt, 1)}, stored: true, dirty: true}
	r.times = times{claimed: now, settled: now, expires: now, forget: now + span(buried), due: now + span(buried)}
	r.drawn = r.Fence <= 0
	return nil
}
