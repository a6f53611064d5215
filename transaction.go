package stet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// TxEngine runs operations in transactions of type Tx, which hold the business writes and the
// outcome. It is safe for concurrent use. WithTx returns one.
type TxEngine[Tx any] struct {
	e      *Engine
	s      store.TxStore[Tx]
	works  store.WorkTxStore[Tx]  // s, or the store that it wraps; nil if it does not support jobs
	groups store.GroupTxStore[Tx] // nil if not supported
	locker store.TxLocker[Tx]     // nil if not supported
}

// WithTx returns a TxEngine for e with the transactions of s. s must be the store of e. It may
// also be that store with transactions of another type, such as the result of postgres.OverSQL.
// Any other store fails with an *Error of KindInvalid, because record and business writes would
// be in two databases.
func WithTx[Tx any](e *Engine, s store.TxStore[Tx]) (*TxEngine[Tx], error) {
	switch {
	case e == nil:
		return nil, invalid("WithTx needs an engine; stet.New makes one")
	case s == nil:
		return nil, invalid("WithTx needs the engine's store")
	case !same(e.store, s):
		return nil, invalid("WithTx needs the very store that stet.New was given, a %T, and got another one, a %T: "+
			"create the engine over the store of these transactions", e.store, s)
	}
	t := &TxEngine[Tx]{e: e, s: s}
	t.works, _ = store.As[store.WorkTxStore[Tx]](s)
	t.groups, _ = store.As[store.GroupTxStore[Tx]](s)
	t.locker, _ = store.As[store.TxLocker[Tx]](s)
	if e.o.Previous != nil && t.locker == nil {
		return nil, invalid("Options.Previous is set, and transactions of %T cannot lock two names: it is no store.TxLocker", s)
	}
	return t, nil
}

// same reports whether both stores have the same records. Stores that are not comparable pass.
func same(a, b store.Store) bool {
	a, b = store.Base(a), store.Base(b)
	return !reflect.TypeOf(a).Comparable() || !reflect.TypeOf(b).Comparable() || a == b
}

// Engine returns the engine.
func (t *TxEngine[Tx]) Engine() *Engine { return t.e }

// Store returns the store whose transactions they are.
func (t *TxEngine[Tx]) Store() store.TxStore[Tx] { return t.s }

// InTx runs fn in a transaction and commits it. Use it for Accept and for your own writes. If
// fn returns an error or panics, InTx rolls back. Then it returns fn's error, or the panic
// continues. Any other error wraps store.ErrNotDone, or says that the result of the commit is
// unknown.
func (t *TxEngine[Tx]) InTx(ctx context.Context, fn func(context.Context, Tx) error) error {
	ws, err := t.workStore()
	if err != nil {
		return err
	}
	return ws.InTx(ctx, fn)
}

func (t *TxEngine[Tx]) workStore() (store.WorkTxStore[Tx], error) {
	if t.works != nil {
		return t.works, nil
	}
	return nil, invalid("the store %T does not store work in transactions of type %v", t.s, reflect.TypeFor[Tx]())
}

// DoTx is Do in one transaction. The writes of fn through tx and the outcome become durable
// together, or neither does. A crash leaves nothing behind, so a retry runs at once and never
// finds an unknown outcome.
//
// If fn returns an error or panics, everything is rolled back. The error is of KindRetryable,
// and a retry runs fn again. If retries must see a failure, such as a declined card, return it
// as a value. fn must not commit or roll back tx, and must have no effects outside it. If a
// transaction is rolled back because of a conflict, the same call of DoTx may call fn again
// with a new transaction.
func DoTx[Tx, T any](ctx context.Context, te *TxEngine[Tx], op Op, fn func(context.Context, Tx) (T, error)) (Result[T], error) {
	var res Result[T]
	var outErr error
	run, err := te.Run(ctx, op, func(ctx context.Context, tx Tx) (out Outcome, err error) {
		if res.Value, err = fn(ctx, tx); err != nil {
			outErr = &Error{Kind: KindFailed, Cause: err} // for an error that is Permanent
			return Outcome{}, err
		}
		out, outErr = te.e.policyOf(op.Class).outcomeOf(res.Value)
		return out, nil
	})
	if err != nil {
		return res, err
	}
	res.Fence, res.Attempt, res.Replayed = run.Fence(), run.Attempt(), run.Replayed()
	if res.Replayed {
		res.Value = *new(T) // the value may come from a transaction that was rolled back
		return res, run.decode(&res.Value)
	}
	return res, firstError(run.Outcome(), outErr)
}

// Run claims the operation, calls fn and stores its outcome, all in one transaction.
// FromContext(ctx) in fn returns the run. fn may be called more than once, each time with a new
// transaction, if the one before was rolled back because of a conflict. The outcome of the last
// call counts.
//
// If fn returns an error, or declares NotExecuted, Run rolls back. The error is of
// KindRetryable and wraps fn's error. If fn's error is Permanent, a second transaction stores
// it as failed. The reason is store.ReasonNoEffect, unless the error is Repeatable, too. A
// Repeatable error may follow an effect outside the transaction.
//
// The returned Lease has ended. Replayed reports whether its outcome comes from an earlier run.
// If the result of the commit is unknown, the error is of KindUnknown. A retry finds the
// result.
func (te *TxEngine[Tx]) Run(ctx context.Context, op Op, fn func(context.Context, Tx) (Outcome, error)) (*Lease, error) {
	var failed *Outcome
	run, err := te.run(ctx, op, func(ctx context.Context, tx Tx) (Outcome, error) {
		failed = nil
		out, err := fn(ctx, tx)
		if marks := marked(err); marks&saysPermanent != 0 {
			if out = te.e.policyOf(op.Class).failureOutcome(out, err); marks&saysRepeatable == 0 {
				out = FromContext(ctx).withoutEffect(out)
			}
			failed = &out
		}
		return out, err
	})
	if failed != nil && KindOf(err) == KindRetryable { // and rolled back
		return te.run(context.WithoutCancel(ctx), op, func(ctx context.Context, _ Tx) (Outcome, error) {
			if FromContext(ctx).Attempt() != 1 && failed.Reason == store.ReasonNoEffect { // another run came between the two transactions
				failed.Reason = store.ReasonNone
			}
			return *failed, nil
		})
	}
	return run, err
}

// run is Run without the second transaction for a Permanent error.
func (te *TxEngine[Tx]) run(ctx context.Context, op Op, fn func(context.Context, Tx) (Outcome, error)) (*Lease, error) {
	e := te.e
	t, err := e.newRequest(ctx, op)
	if err != nil {
		return nil, err
	}
	tr := &txRun[Tx]{e: e, s: te.s, locker: te.locker, t: t, fn: fn}
	en, err := e.acquire(ctx, t, func(f *inFlight) (entry, error) {
		tr.f = f
		en, err := e.enter(ctx, t, tr.claim)
		if en.granted { // the record is Running with our owner, but fn was not called
			return entry{}, &Error{Kind: KindUnknown, Execution: MayHaveExecuted, RetryAfter: retryAfter,
				Cause: errors.New("the store found a run of this very call")}
		}
		if tr.run != nil { // fn was called, so followers get its result
			en.granted = err == nil && en.rec.Owner == t.req.Owner
			en.shared = err == nil
			if en.granted {
				e.inFlight.end(f, en)
			}
		}
		return en, err
	})
	if err != nil {
		return nil, err
	}
	if !en.granted {
		return e.replay(ctx, t, en.rec)
	}
	// A new Run, because goroutines that fn started may still read the other one.
	run := &Run{e: e, request: t, rec: en.rec, outcome: tr.outcome.readBy(t.p), transactional: true, execution: execution{ctx: tr.run.ctx}, runState: runState{ended: true}}
	return &Lease{Run: run, ForgottenAt: t.forgotten(en.rec)}, nil
}

// Settle stores the outcome of a run of Begin inside the caller's own transaction, so that it
// commits with the caller's writes. If Settle returns an error, the caller must roll back. The
// error is of KindFenced or KindUnknown, among others. KindUnknown also means that a StepOnce
// is unresolved.
//
// The run stays open until the caller ends it, in one of these ways:
//
//   - After a commit: call r.Settle with the same outcome. It only ends the run.
//   - After a rollback: call r.Settle, or r.Release if nothing else has happened.
//   - After an unacknowledged commit: use a second transaction. It fails with KindFenced if the
//     first has committed.
func (te *TxEngine[Tx]) Settle(ctx context.Context, r *Lease, tx Tx, out Outcome) error {
	if !same(r.e.store, te.s) || r.transactional || r.settling() {
		return invalid("Settle needs a run of Begin, and of its store, that has not ended")
	}
	sealed, open := r.sealedUnlessOpen(out)
	if open != nil {
		return &Error{Kind: KindUnknown, Execution: MayHaveExecuted, Cause: open}
	}
	fault.At(fault.SettleBefore)
	err := te.s.SettleTx(ctx, tx, r.rec.Claim(), sealed, r.p.Retention)
	fault.At(fault.SettleAfter)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrFenced):
		return &Error{Kind: KindFenced, Execution: MayHaveExecuted, Cause: err}
	default:
		return storeFailed(MayHaveExecuted, err)
	}
}

// txRun is one call of TxEngine.Run.
type txRun[Tx any] struct {
	e       *Engine
	s       store.TxStore[Tx]
	locker  store.TxLocker[Tx]
	t       *request
	fn      func(context.Context, Tx) (Outcome, error)
	f       *inFlight
	stop    func() bool // after it, the end of the caller's context has no effect
	run     *Run        // set when fn is called
	outcome Outcome     // returned by fn
}

// errRolledBack wraps fn's error, to distinguish it from the store's errors.
type errRolledBack struct{ cause error }

func (e errRolledBack) Error() string { return "rolled back" }

// claim claims, runs and settles in one transaction.
func (tr *txRun[Tx]) claim(ctx context.Context, _ *request) (store.Record, error) {
	fault.At(fault.ClaimBefore)
	tr.run = nil // of an earlier round, which lost to another claim
	rec, err := tr.transact(ctx)
	return tr.report(ctx, rec, err)
}

// transact runs the store's transaction. The end of the caller's context ends it only until fn
// is called.
func (tr *txRun[Tx]) transact(caller context.Context) (store.Record, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(caller), tr.e.o.StoreTimeout+tr.t.p.RunTimeout)
	defer cancel()
	tr.stop = context.AfterFunc(caller, cancel)
	defer tr.stop()
	defer func() { // also if fn panics
		if tr.run != nil {
			tr.run.cancel(nil)
		}
	}()
	return tr.s.RunTx(ctx, tr.t.req, tr.t.p.Retention, tr.call)
}

// report sends the end of the transaction to the observer, and returns the caller's error.
func (tr *txRun[Tx]) report(ctx context.Context, rec store.Record, err error) (store.Record, error) {
	e, t := tr.e, tr.t
	var rolledBack errRolledBack
	switch {
	case err == nil:
		switch {
		case tr.run == nil:
		case rec.Owner != t.req.Owner: // another run has settled first
			tr.released(ctx)
		default:
			e.observe(ctx, observe.Event{Kind: observe.Settled, ID: rec.ID, Class: t.op.Class, State: rec.State,
				Fence: rec.Fence, Attempt: rec.Attempt, Elapsed: time.Since(tr.run.begun), Err: tr.run.discardReason()})
			if len(tr.run.emitted()) > 0 {
				e.Wake()
			}
		}
		return rec, nil
	case errors.As(err, &rolledBack):
		tr.released(ctx)
		if tr.run.Declared() == MayHaveExecuted {
			return rec, &Error{Kind: KindUnknown, Execution: MayHaveExecuted, Cause: rolledBack.cause}
		}
		return rec, retryable(rolledBack.cause)
	case errors.Is(err, store.ErrMismatch), errors.Is(err, errBothNames):
		return rec, err
	case errors.Is(err, errOtherRuns):
		return store.Record{ID: t.names.other(t.req.ID), State: store.Running, Fingerprint: t.req.Fingerprint, InTx: true}, nil
	case errors.Is(err, store.ErrInvalid) && tr.run == nil:
		return rec, &Error{Kind: KindInvalid, Execution: NotExecuted, Cause: err}
	case isAborted(err):
		e.observe(ctx, t.event(observe.Aborted, rec, err))
		return rec, storeFailed(NotExecuted, err)
	case errors.Is(err, store.ErrUnknown):
		e.observe(ctx, t.event(observe.StoreFailed, rec, err))
		return rec, &Error{Kind: KindUnknown, Execution: MayHaveExecuted, RetryAfter: retryAfter, Cause: err}
	case tr.run == nil && ctx.Err() != nil:
		return rec, &Error{Kind: KindInvalid, Execution: NotExecuted, Cause: fmt.Errorf("context has ended: %w", context.Cause(ctx))}
	default:
		e.observe(ctx, t.event(observe.StoreFailed, rec, err))
		return rec, storeFailed(NotExecuted, err)
	}
}

// released sends the rollback to the observer.
func (tr *txRun[Tx]) released(ctx context.Context) {
	ended := tr.run.rec
	ended.State = store.Retryable
	tr.e.observe(ctx, tr.t.event(observe.Released, ended, nil))
}

// call runs inside the store's transaction.
func (tr *txRun[Tx]) call(ctx context.Context, tx Tx, rec store.Record) (store.Settlement, error) {
	e, t := tr.e, tr.t
	if !tr.stop() {
		return store.Settlement{}, cmp.Or(ctx.Err(), context.Canceled) // the caller's context has ended
	}
	if t.names != nil {
		if free, err := tr.locker.LockTx(ctx, tx, t.names.other(t.req.ID)); err != nil || !free {
			return store.Settlement{}, cmp.Or(err, errOtherRuns)
		}
		if err := e.otherNameFree(ctx, t); err != nil {
			return store.Settlement{}, err
		}
	}
	run := &Run{e: e, request: t, rec: rec, transactional: true, execution: execution{f: tr.f, begun: time.Now()}, runState: runState{ended: true}}
	end, stop := context.WithDeadlineCause(context.Background(), run.begun.Add(t.p.RunTimeout), ErrRunTimeout)
	defer stop()
	run.setContext(ctx, end)
	tr.run = run
	e.inFlight.startTx(tr.f)
	e.observe(ctx, t.event(observe.Claimed, rec, nil))
	fault.At(fault.HandlerBefore)
	out, err := tr.fn(run.ctx, tx)
	fault.At(fault.HandlerAfter)
	if cause := context.Cause(end); cause != nil {
		e.observe(ctx, t.event(observe.TimedOut, rec, cause))
	}
	switch {
	case err != nil:
		return store.Settlement{}, errRolledBack{err}
	case run.Declared() == NotExecuted || run.Declared() == MayHaveExecuted:
		return store.Settlement{}, errRolledBack{errors.New("the operation declared that it had no effect")}
	}
	tr.outcome = out
	return run.sealed(out), nil
}

// errGroup makes the store roll back the group.
var errGroup = errors.New("the group is not committed")

// RunGroup runs many operations in one transaction, with one commit. Use it for short
// operations that only write. They run one after the other, and hold their locks until the last
// has ended. RunGroup calls fn as Run does, for the i-th operation. The group's time limit is
// the longest RunTimeout of its policies. A group has at most store.MaxGroup operations (1000).
//
// RunGroup runs only operations that have not run and are not running. It commits all of them
// or none. If an operation was not committed, its Lease is nil. Call Run for it; Run also finds
// out its state. No operation is committed if one of them does the following, or if the commit
// fails:
//
//   - It returns an error or panics. Then the panic continues.
//   - It declares NotExecuted or MayHaveExecuted.
//   - It emits messages.
//
// fn may therefore be called again for the same operation.
func (te *TxEngine[Tx]) RunGroup(ctx context.Context, ops []Op, fn func(ctx context.Context, tx Tx, i int) (Outcome, error)) []*Lease {
	e, runs := te.e, make([]*Lease, len(ops))
	if te.groups == nil || e.o.Previous != nil {
		return runs
	}
	g := group{e: e, begun: make([]*Run, len(ops))}
	if len(ops) > store.MaxGroup || !g.check(ctx, ops) {
		return runs
	}
	var longest time.Duration
	for _, t := range g.requests {
		longest = max(longest, t.p.RunTimeout)
	}
	// From here on, the end of the caller's context has no effect.
	bounded, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), e.o.StoreTimeout+longest, ErrRunTimeout)
	defer cancel()
	defer g.end()
	outs := make([]Outcome, len(ops))
	recs, err := te.groups.RunGroup(bounded, g.reqs, g.keep, func(_ context.Context, tx Tx, i int, rec store.Record) (store.Settlement, error) {
		run := g.begin(ctx, bounded, i, rec)
		out, err := fn(run.ctx, tx, i)
		if err != nil || run.Declared() == NotExecuted || run.Declared() == MayHaveExecuted || len(run.emitted()) > 0 {
			return store.Settlement{}, errGroup
		}
		outs[i] = out
		return run.sealed(out), nil
	})
	if err != nil {
		return runs
	}
	for i, rec := range recs {
		if rec.Owner != g.reqs[i].Owner || !rec.State.Settled() {
			continue
		}
		t, begun := g.requests[i], g.begun[i]
		e.observe(ctx, t.event(observe.Claimed, begun.rec, nil))
		e.observe(ctx, observe.Event{Kind: observe.Settled, ID: rec.ID, Class: t.op.Class, State: rec.State, Fence: rec.Fence,
			Attempt: rec.Attempt, Elapsed: time.Since(begun.begun), Err: begun.discardReason()})
		runs[i] = &Lease{Run: &Run{e: e, request: t, rec: rec, outcome: outs[i], transactional: true, execution: execution{ctx: begun.ctx}, runState: runState{ended: true}},
			ForgottenAt: t.forgotten(rec)}
	}
	return runs
}

// group is one call of RunGroup.
type group struct {
	e        *Engine
	requests []*request
	reqs     []store.ClaimRequest
	keep     []store.Retention
	begun    []*Run
}

// check validates the operations. It returns false if one occurs twice.
func (g *group) check(ctx context.Context, ops []Op) bool {
	seen := make(map[store.ID]bool, len(ops))
	for _, op := range ops {
		t, err := g.e.newRequest(ctx, op)
		if err != nil || seen[t.req.ID] {
			return false
		}
		seen[t.req.ID] = true
		g.requests, g.reqs, g.keep = append(g.requests, t), append(g.reqs, t.req), append(g.keep, t.p.Retention)
	}
	return len(ops) > 0
}

// begin makes the run in fn's context.
func (g *group) begin(ctx, end context.Context, i int, rec store.Record) *Run {
	t := g.requests[i]
	run := &Run{e: g.e, request: t, rec: rec, transactional: true, execution: execution{begun: time.Now()}, runState: runState{ended: true}}
	run.setContext(ctx, end)
	g.begun[i] = run
	return run
}

// end ends the contexts of the runs.
func (g *group) end() {
	for _, run := range g.begun {
		if run != nil {
			run.cancel(nil)
		}
	}
}
