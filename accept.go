package stet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// Work is what an accepted operation asks a worker to do.
type Work struct {
	// Name says which handler is to run it, 1 to MaxName bytes of UTF-8 without
	// control characters. It is stored in clear: workers ask for work by it.
	Name string
	// Payload is what the handler needs to know, at most MaxWork bytes. It is
	// stored, and encrypted if Options.Encryption says so.
	Payload []byte
	// After is how long it must wait at least, at most MaxDelay. Default 0.
	After time.Duration
	// Queued says that the caller hands the operation to a queue itself, in the
	// transaction of TxEngine.Accept for one: workers and dispatchers that look for what
	// waits leave it to that queue for so long, at most MaxDelay. What the queue hands to
	// a worker before After is not run, and waits for the rest of that time. Default 0.
	Queued time.Duration
}

// Status is what is known of an operation. Accept knows neither Op, Name and AcceptedAt
// nor Progress and Doubt: ask Engine.Status.
type Status struct {
	// Record is as the store has it, without Result, Work, Notes and Outbox. Its state
	// is None if there is no such operation.
	Record store.Record
	// Op names the operation. Scope and Key are "" where its record does not keep them: it
	// was not accepted, or is settled, and its policy does not keep them (see
	// Policy.KeepScope and KeepKey). Engine.ID says which record they belong to.
	Op Op
	// Name is that of the work; "" like Scope and Key.
	Name string
	// AcceptedAt is when it was accepted, on the clock of who accepted it; zero
	// like Name.
	AcceptedAt time.Time
	// Progress is what its run has said last.
	Progress store.Progress
	// Doubt names a step that was begun, to run once, and whose end is not
	// noted: only a resolution can say whether it is to run again. "" for none.
	Doubt string
	// Outcome is what stands, once it is settled.
	Outcome Outcome
	// Counted is how many of its attempts count: Record.Attempt, less those that were
	// released Uncounted.
	Counted int
	// New reports that this very call has accepted it.
	New bool
}

// packedWork is Work as it is stored. Scope, key and namespace may hold any bytes. The
// namespace, which earlier versions did not store, is that of the engine that accepted
// it: each attempt derives the same keys, also on an engine with another Namespace.
type packedWork struct {
	Scope, Key  []byte
	Class, Name string
	Payload     []byte
	At          time.Time
	Namespace   []byte
}

// What a sealed text is, so that none can take another's place. States are
// below, see binding.
const (
	sealedWork   store.State = 0xf0
	sealedNotes  store.State = 0xf1
	sealedOutbox store.State = 0xf2

	sealedReference store.State = 0xf3
)

func (e *Engine) workStore() (store.WorkStore, error) {
	if e.works != nil {
		return e.works, nil
	}
	return nil, invalid("the store %T keeps no work; memory, sqlite, postgres and redis do, and what is in front of one if it is a store.Wrapper", e.store)
}

func (e *Engine) outboxStore() (store.OutboxStore, error) {
	if e.outbox != nil {
		return e.outbox, nil
	}
	return nil, invalid("the store %T keeps no messages; memory, sqlite, postgres and redis do, and what is in front of one if it is a store.Wrapper", e.store)
}

// Accept makes an operation durable that is to be run later, by a worker that
// takes it (see Take). An operation that was accepted before stays as it is. What
// stands now is in the Status: the caller answers "accepted" in every state,
// or with its outcome.
//
// The error is an *Error of kind KindInvalid, KindMismatch, KindDamaged, KindClosed or
// KindStore: if Execution is NotExecuted, it was not accepted; else it may have
// been, and a retry finds out.
func (e *Engine) Accept(ctx context.Context, op Op, w Work) (Status, error) {
	ws, err := e.workStore()
	if err != nil {
		return Status{}, err
	}
	t, packed, err := e.pack(ctx, op, w)
	if err != nil {
		return Status{}, err
	}
	en, err := e.enter(ctx, t, func(ctx context.Context, t *request) (rec store.Record, err error) {
		fault.At(fault.AcceptBefore)
		err = e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
			rec, err = ws.Accept(ctx, t.req, packed, w.After)
			return err
		})
		fault.At(fault.AcceptAfter)
		if err != nil {
			err = e.refused(ctx, t, rec, err)
		}
		return rec, err
	})
	if err != nil {
		return Status{}, err
	}
	st, err := e.status(en.rec)
	if st.New = en.rec.State == store.Accepted && en.rec.Owner == t.req.Owner; st.New {
		e.observe(ctx, t.event(observe.Accepted, en.rec, nil))
		e.Wake()
	}
	return st, err
}

// Accept is Engine.Accept inside the caller's own transaction: the operation is accepted if
// the transaction is committed. On an error the caller must roll back. The Status is what
// will stand then. Call Wake after the commit, so that workers of this process need not
// find out by polling.
func (te *TxEngine[Tx]) Accept(ctx context.Context, tx Tx, op Op, w Work) (Status, error) {
	e := te.e
	ws, err := te.workStore()
	if err != nil {
		return Status{}, err
	}
	t, packed, err := e.pack(ctx, op, w)
	if err != nil {
		return Status{}, err
	}
	rec, err := ws.AcceptTx(ctx, tx, t.req, packed, w.After)
	if errors.Is(err, store.ErrMismatch) {
		return Status{}, e.mismatch(ctx, t, rec)
	}
	if err != nil {
		return Status{}, e.refused(ctx, t, rec, err)
	}
	st, err := e.status(rec)
	if st.New = rec.State == store.Accepted && rec.Owner == t.req.Owner; st.New {
		e.observe(ctx, t.event(observe.Accepted, rec, nil))
	}
	return st, err
}

// refused is the caller's error for a store that did not accept; a mismatch is
// left to enter.
func (e *Engine) refused(ctx context.Context, t *request, rec store.Record, err error) error {
	switch {
	case errors.Is(err, store.ErrMismatch):
		return err
	case errors.Is(err, store.ErrInvalid):
		return &Error{Kind: KindInvalid, Execution: NotExecuted, Cause: err}
	}
	e.observe(ctx, t.event(observe.StoreFailed, rec, err))
	executed := MayHaveExecuted
	if errors.Is(err, store.ErrNotDone) {
		executed = NotExecuted
	}
	return storeFailed(executed, err)
}

func (e *Engine) pack(ctx context.Context, op Op, w Work) (*request, []byte, error) {
	t, err := e.newRequest(ctx, op)
	switch {
	case err != nil:
		return nil, nil, err
	case w.Name == "" || len(w.Name) > store.MaxName:
		return nil, nil, invalid("Work.Name has %d bytes; it must have 1 to %d", len(w.Name), store.MaxName)
	case unfit(w.Name) != "":
		return nil, nil, invalid("Work.Name %s", unfit(w.Name))
	case len(w.Payload) > store.MaxWork:
		return nil, nil, invalid("Work.Payload has %d bytes; at most %d", len(w.Payload), store.MaxWork)
	case w.After < 0 || w.After > store.MaxDelay:
		return nil, nil, invalid("Work.After is %v; it must be 0 to %v", w.After, store.MaxDelay)
	case w.Queued < 0 || w.Queued > store.MaxDelay:
		return nil, nil, invalid("Work.Queued is %v; it must be 0 to %v", w.Queued, store.MaxDelay)
	}
	t.req.Queued = w.Queued
	t.req.Label.Name = w.Name
	packed, err := json.Marshal(packedWork{[]byte(op.Scope), []byte(op.Key), op.Class, w.Name, w.Payload, time.Now().UTC(), []byte(e.o.Namespace)})
	return t, e.sealer.wrap(t.req.ID, sealedWork, packed), err
}

// unpack returns the operation and the work of a record that has any; zero ones
// if it has not.
func (e *Engine) unpack(rec store.Record) (op Op, p packedWork, err error) {
	if rec.Work == nil || rec.State.Settled() {
		return op, p, nil
	}
	plain, err := e.sealer.unwrap(rec.ID, sealedWork, rec.Work)
	if err == nil {
		err = json.Unmarshal(plain, &p)
	}
	if err != nil {
		return op, p, damaged(err)
	}
	l, _, err := e.label(rec)
	return Op{Scope: string(p.Scope), Key: string(p.Key), Fingerprint: rec.Fingerprint, Class: p.Class, Name: p.Name, Ref: l.Ref}, p, err
}

// policyOf returns the policy of a class that a record was stored under; the
// default one if this process no longer has it.
func (e *Engine) policyOf(class string) *Policy {
	if p, ok := e.policies[class]; ok {
		return p
	}
	return e.policies[""]
}

// status makes a Status of what a store returned.
func (e *Engine) status(rec store.Record) (st Status, err error) {
	op, w, err := e.unpack(rec)
	if err != nil {
		return st, err
	}
	n, err := e.notes(rec)
	var k store.Kept
	if err == nil {
		rec.Label, k, err = e.label(rec)
	}
	if err != nil {
		return st, err
	}
	if op.Key == "" {
		op = Op{Scope: k.Scope, Key: k.Key, Fingerprint: rec.Fingerprint, Class: rec.Label.Class, Name: rec.Label.Name, Ref: rec.Label.Ref}
	}
	st = Status{Record: rec, Op: op, Name: w.Name, AcceptedAt: w.At, Progress: n.Progress, Doubt: n.doubt(), Counted: rec.Attempt - uncountedAttempts(rec)}
	st.Record.Result, st.Record.Work, st.Record.Notes, st.Record.Outbox = store.Result{}, nil, store.Notes{}, nil
	switch {
	case !rec.State.Settled():
	case rec.Gone:
		st.Outcome = Outcome{Failed: rec.State == store.Failed, Gone: true}
	default:
		if st.Outcome, err = e.sealer.open(rec); err != nil {
			return st, damaged(err)
		}
		st.Outcome = st.Outcome.readBy(e.policyOf(rec.Label.Class))
	}
	return st, nil
}

// Status returns what is known of an operation of scope, by its ID (see
// Engine.ID). One of another scope does not exist. The error is an *Error of kind
// KindInvalid, KindDamaged or KindStore.
func (e *Engine) Status(ctx context.Context, scope string, id store.ID) (Status, error) {
	st, err := e.Lookup(ctx, id)
	return e.shown(scope, st, err)
}

// shown is the status of an operation as its scope may see it.
func (e *Engine) shown(scope string, st Status, err error) (Status, error) {
	if st.Record.Scope != store.DigestScope(e.o.Namespace, scope) {
		// Of a record whose scope cannot be read either, only that is said.
		if unread := KindOf(err) == KindDamaged; err != nil && (!unread || st.Record.Scope == store.ID{}) {
			return Status{}, err
		}
		return Status{Record: store.Record{ID: st.Record.ID}}, nil
	}
	return st, err
}

// Lookup is Status for operators, of any scope.
func (e *Engine) Lookup(ctx context.Context, id store.ID) (Status, error) {
	look := e.store.Read
	if e.works != nil {
		look = e.works.Look
	}
	var rec store.Record
	err := e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
		rec, err = look(ctx, id)
		return err
	})
	if err != nil {
		return Status{Record: store.Record{ID: id, Scope: rec.Scope}}, storeFailed(MayHaveExecuted, err)
	}
	st, err := e.status(rec)
	if err != nil {
		st.Record = store.Record{ID: id, Scope: rec.Scope, State: rec.State, Fence: rec.Fence, Attempt: rec.Attempt}
	}
	return st, err
}

// Cancel fails an accepted operation of scope that does not run yet, with
// ErrCancelled as its failure. A running one is asked to end: it is for its
// worker to obey, and the Status says Cancelling. One that waits and cannot be read
// is failed as well. One that has ended stays as it is. The error is an *Error of
// kind KindInvalid (it was not accepted), KindUnknown (it waits, and a step of an earlier
// run is in doubt: see Status.Doubt), KindDamaged, KindStore or KindInFlight (it changed
// all the while).
func (e *Engine) Cancel(ctx context.Context, scope string, id store.ID) (Status, error) {
	ws, err := e.workStore()
	if err != nil {
		return Status{}, err
	}
	for range enterRounds {
		st, err := e.Status(ctx, scope, id)
		asked := st.Record.State == store.Running && st.Record.Cancelling         // a run that gave it back has obeyed nothing
		unread := KindOf(err) == KindDamaged && st.Record.State == store.Accepted // it cannot be run, but it can be ended
		if err != nil && !unread || st.Record.State != store.Accepted && st.Record.State != store.Running || asked {
			return st, err
		}
		if st.Name == "" && !unread {
			return st, invalid("only accepted operations can be cancelled")
		}
		if st.Record.State == store.Accepted && st.Doubt != "" {
			return st, &Error{Kind: KindUnknown, Execution: MayHaveExecuted, Cause: fmt.Errorf("the step %q was begun, and its end was not noted", st.Doubt)}
		}
		p := e.policyOf(st.Op.Class)
		out, _ := e.sealer.seal(id, p.failure(ErrCancelled), p.MaxResult) // which has no body
		err = e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
			_, err = ws.Cancel(ctx, st.Record.Claim(), out, p.Retention)
			return err
		})
		if err == nil {
			e.observe(ctx, observe.Event{Kind: observe.Cancelled, ID: id, Class: st.Op.Class, State: st.Record.State, Fence: st.Record.Fence, Attempt: st.Record.Attempt})
			return e.Status(ctx, scope, id)
		}
		if !errors.Is(err, store.ErrFenced) { // else it was taken, or has ended: look again
			return st, storeFailed(MayHaveExecuted, err)
		}
	}
	return Status{}, &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter,
		Cause: fmt.Errorf("the record changed %d times while cancelling", enterRounds)}
}

// Progress is Run.Progress for a run of Take that another process holds, by its
// Lease.Claim: what does the work tells any engine how far it is. repeatable is whether
// that run was taken as Item.Repeatable. It reports whether the operation's cancellation
// was asked for; it is for the worker to obey. Of what comes within a second after
// another progress, nothing is kept, and what the run itself stores (steps, its own
// progress) takes the place of what was reported.
//
// The error is an *Error of kind KindFenced (the run has ended, or there is a newer one),
// KindDamaged, KindInvalid or KindStore.
func (e *Engine) Progress(ctx context.Context, c store.Claim, repeatable bool, fraction float64, message string) (cancelling bool, err error) {
	ws, err := e.workStore()
	if err != nil {
		return false, err
	}
	for range enterRounds {
		cancelling, err = e.progress(ctx, ws, c, repeatable, newProgress(fraction, message))
		if !errors.Is(err, store.ErrFenced) { // else the run has noted something down in the meantime, or has ended: look again
			break
		}
	}
	return cancelling, err
}

// reports is what the version of notes grows by when their run writes them. Those in
// between are for reports of progress by others: they give way to what the run writes, and
// can never be taken for it.
const reports = 1 << 16

// progress notes a progress down, once.
func (e *Engine) progress(ctx context.Context, ws store.WorkStore, c store.Claim, repeatable bool, p store.Progress) (cancelling bool, err error) {
	var rec store.Record
	err = e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
		rec, err = ws.Look(ctx, c.ID)
		return err
	})
	if err != nil {
		return false, storeFailed(NotExecuted, err)
	}
	if rec.Claim() != c || rec.State != store.Running || rec.Work == nil {
		return false, &Error{Kind: KindFenced, Execution: MayHaveExecuted, Cause: errors.New("the run has ended, or a newer one has begun")}
	}
	n, err := e.notes(rec)
	if err != nil {
		return rec.Cancelling, err
	}
	next := rec.Notes.Version + 1
	if since := p.At.Sub(n.Progress.At); since >= 0 && since < progressEvery || next%reports == 0 {
		return rec.Cancelling, nil
	}
	n.Progress = p
	packed, err := e.packNotes(c.ID, next, n)
	if err != nil {
		return rec.Cancelling, err
	}
	err = e.retry(ctx, claimTries, func(ctx context.Context) error { return ws.Save(ctx, c, packed, repeatable && n.doubt() == "") })
	switch {
	case errors.Is(err, store.ErrFenced):
		return rec.Cancelling, &Error{Kind: KindFenced, Execution: MayHaveExecuted, Cause: err}
	case err != nil:
		return rec.Cancelling, storeFailed(MayHaveExecuted, err)
	}
	return rec.Cancelling, nil
}

// newProgress is a progress of now, within its bounds.
func newProgress(fraction float64, message string) store.Progress {
	if !(fraction > 0) { // also what is not a number, as of 0 in 0 items
		fraction = 0
	}
	if len(message) > maxProgress {
		message = message[:maxProgress]
	}
	return store.Progress{Fraction: min(fraction, 1), Message: strings.ToValidUTF8(message, ""), At: time.Now().UTC()}
}
