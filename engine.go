package stet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

const (
	defaultMaxWaiters   = 1024
	defaultStoreTimeout = 5 * time.Second
	defaultSweepEvery   = time.Minute

	sweepLimit = 500 // records per call of Sweeper.Sweep
	sweepShare = 8   // a sweep uses an eighth of the time

	// maxSweepPause limits the pause after a batch, so that a slow batch does not delay the
	// next one for long (promise 9).
	maxSweepPause = 100 * time.Millisecond
)

// Engine runs each operation at most once. It is safe for concurrent use. A process needs one
// engine for each store.
type Engine struct {
	stores
	policies policies
	o        Options
	sealer   sealer
	errors   errorLog

	inFlight   inFlightCalls
	waiting    waitingCalls
	renewer    leaseRenewer
	shortening chan struct{} // a place for each lease that is being shortened
	lostClaims lostClaims
	finishing  atomic.Int64 // runs that finishLater ends
	lifetime
}

// stores is the engine's store, and the abilities that it, or the store that it wraps, has.
type stores struct {
	store   store.Store
	works   store.WorkStore   // nil if not supported
	outbox  store.OutboxStore // nil if not supported
	watcher store.Watcher     // nil if not supported
	history history
}

// waitingCalls are the calls that wait for the end of another run.
type waitingCalls struct {
	ends      endSignals
	waiters   atomic.Int64
	followers atomic.Int64
	sharedEnd atomic.Pointer[sharedEnd]
}

// lifetime ends the engine's goroutines.
type lifetime struct {
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	mu      sync.Mutex // guards closed against wg.Add
	closed  bool
	wg      sync.WaitGroup
	arrived chan struct{} // closed at the next Wake; nil if no caller waits. Guarded by mu
}

// New returns an engine for a store, or for a wrapper of a store (see store.As). Invalid
// options fail with KindInvalid here, not at the first request. Close the engine after its runs
// have ended.
func New(s store.Store, o Options) (*Engine, error) {
	if v := reflect.ValueOf(s); s == nil || v.Kind() == reflect.Pointer && v.IsNil() { // a nil pointer of a store that failed to open
		return nil, invalid("New needs a store; memory.New or sqlite.Open makes one")
	}
	if len(o.Namespace) > store.MaxScope {
		return nil, invalid("Options.Namespace has %d bytes; at most %d", len(o.Namespace), store.MaxScope)
	}
	if o.Previous != nil {
		if _, _, err := o.previous(context.Background(), Op{}); err != nil {
			return nil, err
		}
	}
	if o.MaxWaiters < 0 || o.StoreTimeout < 0 || o.StoreTimeout > store.MaxStoreTimeout {
		return nil, invalid("Options.MaxWaiters is %d, StoreTimeout %v; neither may be negative, nor StoreTimeout above %v", o.MaxWaiters, o.StoreTimeout, store.MaxStoreTimeout)
	}
	sealer, err := newSealer(o.Encryption)
	if err != nil {
		return nil, err
	}
	most, err := sealer.room(s)
	if err != nil {
		return nil, err
	}
	ps, err := newPolicies(o, most)
	if err != nil {
		return nil, err
	}
	if err := ps.checkOutside(s, o.Encryption); err != nil {
		return nil, err
	}
	o.MaxWaiters = cmp.Or(o.MaxWaiters, defaultMaxWaiters)
	o.StoreTimeout = cmp.Or(o.StoreTimeout, defaultStoreTimeout)
	o.SweepEvery = cmp.Or(o.SweepEvery, defaultSweepEvery)
	e := &Engine{stores: stores{store: s}, policies: ps, o: o, sealer: sealer}
	e.works, _ = store.As[store.WorkStore](s)
	e.outbox, _ = store.As[store.OutboxStore](s)
	e.watcher, _ = store.As[store.Watcher](s)
	e.history.to, _ = store.As[store.HistoryStore](s)
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.renewer.init(e)
	e.shortening = make(chan struct{}, maxShortening)
	if sweeper, ok := store.As[store.Sweeper](s); ok && o.SweepEvery > 0 {
		e.background(func(ctx context.Context) { e.sweepLoop(ctx, sweeper) })
	}
	return e, nil
}

// Close ends the engine's goroutines and waits for them. End the runs first, for example with
// http.Server.Shutdown. A closed engine renews no leases, so the contexts of the remaining runs
// end with the cause ErrClosed. These runs may still settle. Close does not close the store.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.cancel()
	e.wg.Wait()
	e.flushHistory()
	return nil
}

// background runs f in a goroutine that Close ends. It returns false if the engine is closed.
func (e *Engine) background(f func(context.Context)) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.wg.Go(func() { f(e.ctx) })
	return true
}

// observe reports an event. If something went wrong, it adds it to the history of the operation.
func (e *Engine) observe(ctx context.Context, ev observe.Event) {
	(*event)(&ev).explain()
	e.remember(ev)
	e.report(ctx, ev)
}

// report reports an event.
func (e *Engine) report(ctx context.Context, ev observe.Event) {
	e.waiting.ends.signal(ev)
	if e.o.Observer != nil {
		e.o.Observer.Observe(ctx, ev)
	}
	e.errors.write(ctx, cmp.Or(e.o.ErrorLog, slog.Default()), ev)
}

// Store returns the store that New was given.
func (e *Engine) Store() store.Store { return e.store }

// Observe passes an event of an adapter to the engine's observer.
func (e *Engine) Observe(ctx context.Context, ev observe.Event) { e.observe(ctx, ev) }

// ID returns the digest that identifies a scope and key in the store.
func (e *Engine) ID(scope, key string) store.ID {
	return store.Digest(e.o.Namespace, scope, key)
}

// Policy returns the policy of a class with its defaults set, and whether the class exists.
func (e *Engine) Policy(class string) (Policy, bool) {
	p, ok := e.policies[class]
	if !ok {
		return Policy{}, false
	}
	return *p, true
}

// request is the state of one call that claims an operation.
type request struct {
	op          Op
	p           *Policy
	req         store.ClaimRequest
	deadline    time.Time // the end of waiting; zero: do not wait
	resent      bool      // the claim was sent more than once
	taken       bool      // made by Take
	repeatable  bool      // see Item.Repeatable
	namespace   []byte    // of the engine that accepted the job; nil: the engine's own
	followUntil time.Time // the end of following other calls; zero: it has not followed yet
	claimSentAt time.Time // when the granted claim, or its last renewal, was sent; zero in a transaction
	names       *names    // nil without Options.Previous
}

// newRequest validates an operation and returns its request.
func (e *Engine) newRequest(ctx context.Context, op Op) (*request, error) {
	if e.ctx.Err() != nil {
		return nil, &Error{Kind: KindClosed, Execution: NotExecuted}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, &Error{Kind: KindInvalid, Execution: NotExecuted, Cause: fmt.Errorf("context has ended: %w", err)}
	}
	p, ok := e.policies[op.Class]
	if !ok {
		return nil, invalid("Op.Class %q is not among Options.Classes", op.Class)
	}
	if err := checkOp(op); err != nil {
		return nil, err
	}
	t := &request{p: p, req: store.ClaimRequest{Owner: store.NewOwner(), Lease: p.Lease, Outside: p.Outside}}
	if err := e.nameBoth(ctx, t, op); err != nil {
		return nil, err
	}
	if e.nested(ctx, t.req.ID) || t.names != nil && e.nested(ctx, t.names.other(t.req.ID)) {
		return nil, invalid("the operation was begun inside itself, by two middlewares for instance: it would wait for its own end")
	}
	if wait := min(cmp.Or(op.Wait, p.Wait), store.MaxWait); wait > 0 {
		t.deadline = time.Now().Add(wait)
	}
	return t, nil
}

// checkOp validates the fields of an operation.
func checkOp(op Op) error {
	switch {
	case op.Scope == "" || len(op.Scope) > store.MaxScope:
		return invalid("Op.Scope has %d bytes; it must have 1 to %d", len(op.Scope), store.MaxScope)
	case op.Key == "" || len(op.Key) > store.MaxKey:
		return invalid("Op.Key has %d bytes; it must have 1 to %d", len(op.Key), store.MaxKey)
	case op.Wait < 0:
		return invalid("Op.Wait is negative: %v", op.Wait)
	}
	return checkLabel(op)
}

// nested reports whether ctx belongs to a run in progress of the same operation.
func (e *Engine) nested(ctx context.Context, id store.ID) bool {
	for r := FromContext(ctx); r != nil; r = r.outer() {
		if r.rec.ID == id && r.isRunning() && e.shares(r.e) {
			return true
		}
	}
	return false
}

// shares reports whether both engines use the same store.
func (e *Engine) shares(other *Engine) bool {
	return e == other || reflect.ValueOf(e.store).Comparable() && reflect.ValueOf(other.store).Comparable() && e.store == other.store
}

// Begin claims an operation, or reads its outcome. It returns a Lease. If the Lease is not
// Replayed, the caller must end it with Do, Settle, Release or MarkUnknown. The error is an *Error of
// kind KindInvalid, KindMismatch, KindInFlight, KindUnknown, KindExpired, KindDamaged,
// KindStore or KindClosed. Begin inside a run of the same operation fails with KindInvalid.
//
// The run's context has the values of ctx, but does not end with ctx. A client that disconnects
// therefore does not stop an operation midway.
func (e *Engine) Begin(ctx context.Context, op Op) (*Lease, error) {
	t, err := e.newRequest(ctx, op)
	if err != nil {
		return nil, err
	}
	var run *Lease
	en, err := e.acquire(ctx, t, func(f *inFlight) (entry, error) {
		en, err := e.enter(ctx, t, e.claim)
		if err == nil && en.granted {
			err = e.confirmName(ctx, t, en.rec)
		}
		if err == nil && en.granted {
			run, err = e.newRun(ctx, t, f, en.rec)
		}
		return en, err
	})
	if err != nil {
		return nil, err
	}
	if !en.granted {
		return e.replay(ctx, t, en.rec)
	}
	return run, nil
}

// replay returns a lease with the stored outcome.
func (e *Engine) replay(ctx context.Context, t *request, rec store.Record) (*Lease, error) {
	if rec.Gone {
		e.observe(ctx, t.event(observe.Expired, rec, nil))
		return nil, &Error{Kind: KindExpired, Execution: executed(rec)}
	}
	out, err := e.sealer.open(rec)
	if err != nil {
		e.observe(ctx, t.event(observe.Replayed, rec, err))
		return nil, &Error{Kind: KindDamaged, Execution: executed(rec), Cause: err}
	}
	e.observe(ctx, t.event(observe.Replayed, rec, nil))
	if tell := observe.TraceOf(ctx).Replayed; tell != nil && out.Trace != "" {
		tell(out.Trace)
	}
	run := &Run{e: e, request: t, rec: rec, outcome: out.readBy(t.p), replayed: true, execution: execution{ctx: ctx}, runState: runState{ended: true}}
	return &Lease{Run: run, ForgottenAt: rec.ForgetAt}, nil
}

func (t *request) event(kind observe.Kind, rec store.Record, err error) observe.Event {
	return observe.Event{Kind: kind, ID: t.req.ID, Class: t.op.Class, Label: t.labelOf(rec), State: rec.State, Fence: rec.Fence, Attempt: rec.Attempt, Err: err}
}

// labelOf returns the stored label of a record, or that of the request if the record has none.
func (t *request) labelOf(rec store.Record) store.Label {
	if rec.Label == (store.Label{}) {
		return t.req.Label
	}
	return rec.Label
}

func (e *Engine) sweepLoop(ctx context.Context, s store.Sweeper) {
	for more := false; ; {
		// Jitter keeps processes that started together from sweeping together.
		if !more && !timer.Sleep(ctx, timer.Around(e.o.SweepEvery)) {
			return
		}
		swept, err := e.sweep(ctx, s)
		if ctx.Err() != nil {
			return
		}
		e.observe(ctx, observe.Event{Kind: observe.Swept, Swept: swept, Err: err})
		more = swept.More
	}
}

// sweep cleans up until no work is left, or for SweepEvery at most. It pauses after each batch,
// so that claims get most of the store's capacity.
func (e *Engine) sweep(ctx context.Context, s store.Sweeper) (sum store.Swept, err error) {
	fault.At(fault.SweepBefore)
	defer fault.At(fault.SweepAfter)
	var failed error // of one part of the store; the sweep continues with the others
	for began := time.Now(); ; {
		step := time.Now()
		got, err := s.Sweep(ctx, sweepLimit)
		sum.MarkedUnknown += got.MarkedUnknown
		sum.Expired += got.Expired
		sum.Purged += got.Purged
		sum.More = got.More
		_, partial := errors.AsType[*store.PartialError](err)
		if err != nil {
			failed = err
		}
		if err != nil && !partial {
			sum.More = false
			return sum, failed
		}
		if !got.More || time.Since(began) > e.o.SweepEvery || !timer.Sleep(ctx, min((sweepShare-1)*time.Since(step), maxSweepPause)) {
			return sum, failed
		}
	}
}

// runContext ends with one context and has the values of another.
type runContext struct {
	context.Context                 // its end and cause
	values          context.Context // the caller's context
	run             *Run            // returned by FromContext; nil in a store call
	deadline        time.Time       // zero: the deadline of Context
}

// Value asks the ending context first. Package context then finds its own key there, and needs
// no goroutine for each child context.
func (j *runContext) Value(key any) any {
	if _, ok := key.(runKey); ok && j.run != nil {
		return j.run
	}
	if v := j.Context.Value(key); v != nil {
		return v
	}
	return j.values.Value(key)
}

// Deadline implements context.Context.
func (j *runContext) Deadline() (time.Time, bool) {
	if !j.deadline.IsZero() {
		return j.deadline, true
	}
	return j.Context.Deadline()
}

// sharedEnd is a context whose deadline several store calls share.
type sharedEnd struct {
	ctx    context.Context
	cancel context.CancelFunc
	ends   time.Time
}

// storeContext returns the context of a store call. It has the values of ctx and ends after 1
// to 1.5 × StoreTimeout. Sharing the deadline avoids one timer per call.
func (e *Engine) storeContext(ctx context.Context) context.Context {
	now := time.Now()
	ep := e.waiting.sharedEnd.Load()
	if ep == nil || ep.ends.Sub(now) < e.o.StoreTimeout {
		ep = &sharedEnd{ends: now.Add(e.o.StoreTimeout + e.o.StoreTimeout/2)}
		ep.ctx, ep.cancel = context.WithDeadline(context.Background(), ep.ends)
		e.waiting.sharedEnd.Store(ep) // the previous one ends by its deadline
	}
	return &runContext{Context: ep.ctx, values: ctx}
}
