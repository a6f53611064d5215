package stet

import (
	"bytes"
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

// Work is the job of an accepted operation.
type Work struct {
	// Name selects the handler: 1 to MaxName bytes of UTF-8 without control characters. It is
	// stored unencrypted, because workers query by it.
	Name string
	// Payload is the handler's input, at most MaxWork bytes. It is encrypted if
	// Options.Encryption is set.
	Payload []byte
	// After delays the first run, at most MaxDelay. Default 0.
	After time.Duration
	// Queued is for callers that enqueue the operation themselves, for example in the
	// transaction of TxEngine.Accept. Workers and dispatchers that poll leave it to that queue
	// for this time, at most MaxDelay. A delivery before After is delayed until then. Default
	// 0.
	Queued time.Duration
}

// Status describes an operation. Accept leaves Op, Name, AcceptedAt, Progress and OpenStep empty:
// call Engine.Status for them.
type Status struct {
	// Record is the stored record without Result, Work, Notes and Outbox. Its state is None if
	// there is no such operation.
	Record store.Record
	// Op names the operation. Scope and Key are "" if the record does not have them: it was
	// not accepted, or is settled, and its policy does not store them (see Policy.KeepScope
	// and KeepKey). Engine.ID returns the record ID of a scope and key.
	Op Op
	// Name is Work.Name. "" if Scope and Key are.
	Name string
	// AcceptedAt is the time of acceptance, on the clock of the accepting process. Zero if
	// Name is "".
	AcceptedAt time.Time
	// Progress is the latest progress of the run.
	Progress store.Progress
	// OpenStep is the name of a StepOnce that began and whose end is not stored. Only a
	// resolution decides whether it runs again. "" if there is none.
	OpenStep string
	// Outcome is the stored outcome of a settled operation.
	Outcome Outcome
	// Counted is the number of attempts that count towards the limit: Record.Attempt without
	// the attempts that were released Uncounted.
	Counted int
	// New reports that this call accepted the operation.
	New bool
}

// packedWork is the stored form of Work. Scope, key and namespace may hold any bytes. The
// namespace is that of the accepting engine, so that each attempt derives the same keys on an
// engine with another Namespace. Earlier versions stored neither Namespace nor Other.
type packedWork struct {
	Scope, Key  []byte
	Class, Name string
	Payload     []byte
	At          time.Time
	Namespace   []byte
	Other       []byte `json:",omitempty"` // the ID of the other name; see Options.Previous
}

// The kinds of sealed texts. Each is bound to its kind, so that one cannot replace another.
// Sealed outcomes are bound to their state, a smaller number.
const (
	sealedWork   store.State = 0xf0
	sealedNotes  store.State = 0xf1
	sealedOutbox store.State = 0xf2

	sealedReference store.State = 0xf3
	sealedHistory   store.State = 0xf4
)

func (e *Engine) workStore() (store.WorkStore, error) {
	if e.works != nil {
		return e.works, nil
	}
	return nil, invalid("the store %T does not store work; use memory, sqlite, postgres or redis, or a store.Wrapper around one", e.store)
}

func (e *Engine) outboxStore() (store.OutboxStore, error) {
	if e.outbox != nil {
		return e.outbox, nil
	}
	return nil, invalid("the store %T has no outbox; use memory, sqlite, postgres or redis, or a store.Wrapper around one", e.store)
}

// Accept stores an operation that a worker will run later (see Take). If the operation exists,
// its record stays unchanged. The Status describes the record after the call; the caller
// answers "accepted", or with the outcome if there is one.
//
// The error is an *Error of kind KindInvalid, KindMismatch, KindDamaged, KindClosed or
// KindStore. If its Execution is NotExecuted, the operation was not accepted; otherwise it may
// have been, and a retry with the same key is safe.
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

// Accept is Engine.Accept inside the caller's transaction: the commit accepts the operation.
// On an error the caller must roll back. The Status describes the record as it will be after
// the commit. Call Wake after the commit, so that workers of this process start at once
// instead of at their next poll.
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

// refused converts an error of a store that did not accept. A mismatch is reported by the
// caller.
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
	if err := e.chooseName(ctx, t); err != nil {
		return nil, nil, err
	}
	t.req.Queued = w.Queued
	t.req.Label.Name = w.Name
	namespace := []byte(e.o.Namespace)
	if t.namespace != nil {
		namespace = t.namespace
	}
	pw := packedWork{[]byte(t.op.Scope), []byte(t.op.Key), op.Class, w.Name, w.Payload, time.Now().UTC(), namespace, nil}
	if t.names != nil {
		other := t.names.other(t.req.ID)
		pw.Other = other[:]
	}
	packed, err := json.Marshal(pw)
	return t, e.sealer.wrap(t.req.ID, sealedWork, packed), err
}

// unpack returns the operation and the work of a record, or zero values if the record has no
// work.
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

// policyOf returns the policy of a stored class, or the default policy if this process does
// not have the class.
func (e *Engine) policyOf(class string) *Policy {
	if p, ok := e.policies[class]; ok {
		return p
	}
	return e.policies[""]
}

// status converts a record.
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
	st = Status{Record: rec, Op: op, Name: w.Name, AcceptedAt: w.At, Progress: n.Progress, OpenStep: n.openStep(), Counted: rec.Attempt - uncountedAttempts(rec)}
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

// Status reads an operation of scope by its ID (see Engine.ID). For an operation of another
// scope it returns the state None. The error is an *Error of kind KindInvalid, KindDamaged or
// KindStore.
func (e *Engine) Status(ctx context.Context, scope string, id store.ID) (Status, error) {
	st, err := e.Lookup(ctx, id)
	return e.shown(ctx, scope, st, err)
}

// shown hides an operation of another scope.
func (e *Engine) shown(ctx context.Context, scope string, st Status, err error) (Status, error) {
	if !e.isOfScope(ctx, st.Record, scope) {
		// If the scope cannot be read either, only the damage is reported.
		if unread := KindOf(err) == KindDamaged; err != nil && (!unread || st.Record.Scope == store.ID{}) {
			return Status{}, err
		}
		return Status{Record: store.Record{ID: st.Record.ID}}, nil
	}
	return st, err
}

// Lookup is Status without the check of the scope, for operators.
func (e *Engine) Lookup(ctx context.Context, id store.ID) (Status, error) {
	read := e.store.Read
	if e.works != nil {
		read = e.works.Look
	}
	var rec store.Record
	err := e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
		rec, err = read(ctx, id)
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

// Cancel fails an accepted operation of scope with ErrCancelled if it does not run yet, also
// if its work cannot be decoded. If it runs, its worker is asked to end it and the Status says
// Cancelling; the worker may ignore this. A settled operation stays unchanged.
//
// The error is an *Error of kind KindInvalid (it was not accepted), KindUnknown (it waits, and
// a StepOnce of an earlier run is unresolved: see Status.OpenStep), KindDamaged, KindStore or
// KindInFlight (the record changed during each try, or the operation runs under its other name:
// see Options.Previous).
func (e *Engine) Cancel(ctx context.Context, scope string, id store.ID) (Status, error) {
	ws, err := e.workStore()
	if err != nil {
		return Status{}, err
	}
	for range enterRounds {
		st, err := e.Status(ctx, scope, id)
		asked := st.Record.State == store.Running && st.Record.Cancelling         // a released run did not end the operation
		unread := KindOf(err) == KindDamaged && st.Record.State == store.Accepted // it cannot run, but can be cancelled
		if err != nil && !unread || st.Record.State != store.Accepted && st.Record.State != store.Running || asked {
			return st, err
		}
		if st.Name == "" && !unread {
			return st, invalid("only accepted operations can be cancelled")
		}
		if st.Record.State == store.Accepted && st.OpenStep != "" {
			return st, &Error{Kind: KindUnknown, Execution: MayHaveExecuted, Cause: fmt.Errorf("the step %q began, and its end is not stored; resolve the operation first", st.OpenStep)}
		}
		if st.Record.State == store.Accepted {
			if err := e.runsByOtherName(ctx, ws, id); err != nil {
				return st, err
			}
		}
		p := e.policyOf(st.Op.Class)
		out, _ := e.sealer.seal(id, p.failure(ErrCancelled), p.MaxResult) // no body, so nothing is discarded
		err = e.retry(ctx, claimTries, func(ctx context.Context) (err error) {
			_, err = ws.Cancel(ctx, st.Record.Claim(), out, p.Retention)
			return err
		})
		if err == nil {
			e.observe(ctx, observe.Event{Kind: observe.Cancelled, ID: id, Class: st.Op.Class, State: st.Record.State, Fence: st.Record.Fence, Attempt: st.Record.Attempt})
			return e.Status(ctx, scope, id)
		}
		if !errors.Is(err, store.ErrFenced) { // else it was taken, or has ended: read it again
			return st, storeFailed(MayHaveExecuted, err)
		}
	}
	return Status{}, &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter,
		Cause: fmt.Errorf("the record changed %d times while cancelling", enterRounds)}
}

// runsByOtherName returns an error if the other name of a job has a record that may run; see confirmJob. This one
// then gets its outcome.
func (e *Engine) runsByOtherName(ctx context.Context, ws store.WorkStore, id store.ID) error {
	var here, there store.Record
	look := func(ctx context.Context) (err error) {
		if here, err = ws.Look(ctx, id); err != nil {
			return err
		}
		_, w, _ := e.unpack(here) // a job that cannot be decoded cannot run
		if there = (store.Record{}); len(w.Other) == len(id) && bytes.Compare(id[:], w.Other) > 0 {
			there, err = ws.Look(ctx, store.ID(w.Other))
		}
		return err
	}
	switch err := e.retry(ctx, claimTries, look); {
	case err != nil:
		return storeFailed(MayHaveExecuted, err)
	case there.State != store.None:
		return &Error{Kind: KindInFlight, Execution: MayHaveExecuted, RetryAfter: retryAfter, Cause: errors.New("it was accepted under its other name, too, and runs there")}
	}
	return nil
}

// Progress is Run.Progress for a run of Take in another process, named by its Lease.Claim.
// repeatable must be the Item.Repeatable of that run. Progress within a second after the
// previous one is dropped, and steps and progress that the run itself stores replace it. It
// returns whether the operation was cancelled; the worker decides what to do then.
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
		if !errors.Is(err, store.ErrFenced) { // else the run stored something, or has ended: read it again
			break
		}
	}
	return cancelling, err
}

// reports is the step of the version of notes when a run writes them. The versions in between
// are for progress that other processes report: the run's next write replaces it.
const reports = 1 << 16

// progress stores a progress, with one try.
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
		return false, &Error{Kind: KindFenced, Execution: MayHaveExecuted, Cause: errors.New("the run has ended, or a newer run has begun")}
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
	err = e.retry(ctx, claimTries, func(ctx context.Context) error { return ws.Save(ctx, c, packed, repeatable && n.openStep() == "") })
	switch {
	case errors.Is(err, store.ErrFenced):
		return rec.Cancelling, &Error{Kind: KindFenced, Execution: MayHaveExecuted, Cause: err}
	case err != nil:
		return rec.Cancelling, storeFailed(MayHaveExecuted, err)
	}
	return rec.Cancelling, nil
}

// newProgress limits the values of a progress.
func newProgress(fraction float64, message string) store.Progress {
	if !(fraction > 0) { // also NaN, as in 0 of 0 items
		fraction = 0
	}
	if len(message) > maxProgress {
		message = message[:maxProgress]
	}
	return store.Progress{Fraction: min(fraction, 1), Message: strings.ToValidUTF8(message, ""), At: time.Now().UTC()}
}
