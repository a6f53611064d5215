package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

var engineChecks = []check{
	{"one lost request or reply is not noticed", "networks lose both; the engine repeats the call, and the store must know it again.",
		oneFault},
	{"without an answer to a claim nothing is executed, and the key comes back", "no durable claim, no execution; and a claim whose answer was lost must not lock its key.",
		claimOutage},
	{"an outcome that could not be written is never executed again", "the effect has happened; the key becomes unknown instead.",
		settleOutage},
	{"a release that could not be written leaves the key unknown", "nothing ran, but no other process can know that.",
		releaseOutage},
	{"a lost heartbeat is made up for, a lost store ends the run", "the handler's context must end before another run may begin; its outcome may still be settled.",
		extendOutage},
	{"a waiter gets the outcome although the store fails it", "waiting is only looking: it can always be done again.",
		watchOutage},
	{"a takeover survives a lost request or reply", "the way out of an expired run must not itself get stuck.",
		takeoverFault},
	{"with calls failing at random nothing runs twice and no outcome changes", "this is what the store is for.",
		chaos},
}

// outage makes calls of a method fail: the first, or all until it is over.
type outage struct {
	method string
	fault  Fault
	once   bool
	over   atomic.Bool

	met   chan struct{} // closed at the first call of the method
	first sync.Once
}

func newOutage(method string, fault Fault, once bool) *outage {
	return &outage{method: method, fault: fault, once: once, met: make(chan struct{})}
}

func (o *outage) plan(c Call) Fault {
	if c.Method != o.method {
		return NoFault
	}
	o.first.Do(func() { close(o.met) })
	if o.over.Load() || o.once && c.N > 1 {
		return NoFault
	}
	return o.fault
}

func (o *outage) String() string {
	when, often := "before it took effect", "always"
	if o.fault == FailAfter {
		when = "after it took effect"
	}
	if o.once {
		often = "once"
	}
	return fmt.Sprintf("%s failed %s, %s", o.method, often, when)
}

// bothWays calls f with an outage of each kind.
func bothWays(method string, once bool, f func(o *outage)) {
	f(newOutage(method, FailBefore, once))
	f(newOutage(method, FailAfter, once))
}

// bothWaysAtOnce is bothWays for lasting outages, which take a while.
func bothWaysAtOnce(method string, f func(o *outage)) {
	race(2, func(i int) { f(newOutage(method, []Fault{FailBefore, FailAfter}[i], false)) })
}

// giveUp is for how long an engine tries to write to a store that does not
// answer: long beside a call that does.
var giveUp = time.Second

// hurry is the same where giving up too early is as good a fault as any.
const hurry = 100 * time.Millisecond

// service is an operation that counts how often it runs.
type service struct {
	f    *fixture
	op   stet.Op
	runs atomic.Int64
}

func (f *fixture) service() *service {
	return &service{f: f, op: stet.Op{Scope: "storetest", Key: stet.NewKey(), Fingerprint: fingerprintA}}
}

// engine returns an engine over s. Leases are to run out, where a check is
// about that, as the store's clock goes.
func (f *fixture) engine(s store.Store, p stet.Policy) *stet.Engine {
	f.Helper()
	return f.engineWithin(patience/2, s, p)
}

// engineWithin is engine with a bound on store calls and their repetitions.
func (f *fixture) engineWithin(d time.Duration, s store.Store, p stet.Policy) *stet.Engine {
	f.Helper()
	e, err := stet.New(s, stet.Options{Policy: p, StoreTimeout: d, SweepEvery: -1})
	if err != nil {
		f.Fatalf("stet.New: %v", err)
	}
	f.Cleanup(func() { _ = e.Close() })
	return e
}

// short is a policy whose leases run out within a unit.
func (f *fixture) short() stet.Policy {
	return stet.Policy{Lease: min(max(f.unit, store.MinLease), time.Hour)}
}

// do runs the operation. Each run has a value of its own.
func (s *service) do(e *stet.Engine) (stet.Result[string], error) {
	return stet.Do(s.f.ctx, e, s.op, func(context.Context) (string, error) {
		return fmt.Sprint("run ", s.runs.Add(1)), nil
	})
}

// waiting is do with patience for a run in flight.
func (s *service) waiting(e *stet.Engine) (stet.Result[string], error) {
	op := s.op
	op.Wait = patience
	return stet.Do(s.f.ctx, e, op, func(context.Context) (string, error) {
		return fmt.Sprint("run ", s.runs.Add(1)), nil
	})
}

// nothing is do for a run that finds out that there is nothing to do.
func (s *service) nothing(e *stet.Engine) error {
	_, err := stet.Do(s.f.ctx, e, s.op, func(ctx context.Context) (string, error) {
		stet.FromContext(ctx).Declare(stet.NotExecuted, 0)
		return "", nil
	})
	return err
}

// ran requires the number of runs.
func (s *service) ran(what fmt.Stringer, want int64) {
	s.f.Helper()
	if got := s.runs.Load(); got != want {
		s.f.Errorf("%v: the operation ran %d times; want %d", what, got, want)
	}
}

// replays requires that a retry gets the value of the first run.
func (s *service) replays(what fmt.Stringer, e *stet.Engine) {
	s.f.Helper()
	if res, err := s.do(e); err != nil || !res.Replayed || res.Value != "run 1" {
		s.f.Errorf("%v: a retry got %+v, %v; want run 1, replayed", what, res, err)
	}
}

// markedUnknown requires that a retry gets an unknown outcome once the lease has expired.
func (s *service) markedUnknown(what fmt.Stringer, e *stet.Engine) {
	s.f.Helper()
	var res stet.Result[string]
	var err error
	for range 3 { // an engine that has given up shortens the lease, in the background: it then counts anew
		s.f.pass(1)
		if res, err = s.do(e); stet.KindOf(err) == stet.KindUnknown {
			return
		}
	}
	s.f.Errorf("%v: a retry after the lease ran out got %+v, %v; want KindUnknown", what, res, err)
}

func oneFault(f *fixture) {
	healthy := f.engine(f.store, stet.Policy{})
	for _, method := range []string{"Claim", "Settle"} {
		bothWays(method, true, func(o *outage) {
			s := f.service()
			if res, err := s.do(f.engine(Faulty(f.store, o.plan), stet.Policy{})); err != nil || res.Replayed || res.Value != "run 1" {
				f.Errorf("%v: the first call got %+v, %v; want its own run", o, res, err)
			}
			s.replays(o, healthy)
			s.ran(o, 1)
		})
	}
	bothWays("Release", true, func(o *outage) {
		s := f.service()
		err := s.nothing(f.engine(Faulty(f.store, o.plan), stet.Policy{}))
		if joined(err) || stet.KindOf(err) != stet.KindRetryable {
			f.Errorf("%v: a run without effect got %v; want an error of KindRetryable alone", o, err)
		}
		if res, err := s.do(healthy); err != nil || res.Attempt != 2 {
			f.Errorf("%v: the next try got %+v, %v; want attempt 2", o, res, err)
		}
	})
}

func claimOutage(f *fixture) {
	bothWays("Claim", false, func(o *outage) {
		s := f.service()
		e := f.engine(Faulty(f.store, o.plan), stet.Policy{})
		_, err := s.do(e)
		if stet.KindOf(err) != stet.KindStore || stet.ExecutionOf(err) != stet.NotExecuted {
			f.Errorf("%v: got %v; want KindStore, not executed", o, err)
		}
		s.ran(o, 0)
		o.over.Store(true)
		if res, err := s.waiting(e); err != nil || res.Value != "run 1" {
			f.Errorf("%v: once it was over, a retry got %+v, %v; want to run", o, res, err)
		}
		s.ran(o, 1)
	})
}

func settleOutage(f *fixture) {
	healthy := f.engine(f.store, f.short())
	bothWaysAtOnce("Settle", func(o *outage) {
		s := f.service()
		_, err := s.do(f.engineWithin(giveUp, Faulty(f.store, o.plan), f.short()))
		if stet.KindOf(err) != stet.KindUnknown || stet.ExecutionOf(err) != stet.MayHaveExecuted {
			f.Errorf("%v: got %v; want KindUnknown, may have executed", o, err)
		}
		if o.fault == FailAfter { // it was written, and the answer was lost
			s.replays(o, healthy)
		} else {
			if res, err := s.do(healthy); stet.KindOf(err) != stet.KindInFlight && stet.KindOf(err) != stet.KindUnknown {
				f.Errorf("%v: a retry got %+v, %v; want KindInFlight, or KindUnknown once the lease has run out", o, res, err)
			}
			s.markedUnknown(o, healthy)
		}
		s.ran(o, 1)
	})
}

// joined reports whether err also says that the release of the run failed.
func joined(err error) bool {
	_, ok := err.(interface{ Unwrap() []error })
	return ok
}

func releaseOutage(f *fixture) {
	healthy := f.engine(f.store, f.short())
	bothWaysAtOnce("Release", func(o *outage) {
		s := f.service()
		if err := s.nothing(f.engineWithin(giveUp, Faulty(f.store, o.plan), f.short())); !joined(err) || stet.KindOf(err) != stet.KindRetryable {
			f.Errorf("%v: got %v; want the error of the release, too", o, err)
		}
		if o.fault == FailBefore {
			s.markedUnknown(o, healthy)
			s.ran(o, 0)
			return
		}
		if res, err := s.do(healthy); err != nil || res.Attempt != 2 {
			f.Errorf("%v: it was released all the same; the next try got %+v, %v", o, res, err)
		}
	})
}

// extendOutage is about the engine's own clock, which beats in real time.
func extendOutage(f *fixture) {
	healthy := f.engine(f.store, stet.Policy{})
	outages := []*outage{
		newOutage("Extend", FailBefore, true), newOutage("Extend", FailAfter, true),
		newOutage("Extend", FailBefore, false), newOutage("Extend", FailAfter, false),
	}
	race(len(outages), func(i int) {
		o, lease := outages[i], 150*time.Millisecond // is to run out
		if o.once {
			lease = time.Second // is not
		}
		for ; f.beats(healthy, o, lease); lease *= 3 { // a machine that stands still does not use up a long one
			f.Logf("%v: a lease of %v ran out too soon on the engine's clock; tried again with a longer one", o, lease)
			o = newOutage(o.method, o.fault, o.once)
		}
	})
}

// patientLease is a lease that no machine uses up by being slow.
const patientLease = 9 * time.Second

// beats has an operation run under such a lease until the outage is over, or has ended it.
// It says nothing of the store if late: if the lease ran out though only one heartbeat was
// to be lost, or had to be renewed before anything ran.
func (f *fixture) beats(healthy *stet.Engine, o *outage, lease time.Duration) (late bool) {
	beats := make(chan struct{}, 100)
	plan := func(c Call) Fault {
		if c.Method == "Extend" && c.N > 1 {
			beats <- struct{}{} // its predecessor is over
		}
		return o.plan(c)
	}
	s := f.service()
	e := f.engine(Faulty(f.store, plan), stet.Policy{Lease: lease, RunTimeout: max(patience, lease)})
	var cause error
	began := time.Now()
	res, err := stet.Do(f.ctx, e, s.op, func(ctx context.Context) (string, error) {
		s.runs.Add(1)
		if o.once {
			select {
			case <-beats:
			case <-ctx.Done():
			}
		} else {
			<-ctx.Done()
		}
		cause = context.Cause(ctx)
		return "run 1", nil
	})
	tooSoon := o.once && errors.Is(cause, stet.ErrLeaseLost) && time.Since(began) >= lease ||
		s.runs.Load() == 0 && stet.ExecutionOf(err) == stet.NotExecuted
	if tooSoon && lease < patientLease {
		return true
	}
	if o.once && cause != nil || !o.once && !errors.Is(cause, stet.ErrLeaseLost) {
		f.Errorf("%v: the run's context ended with the cause %v", o, cause)
	}
	if err != nil {
		f.Errorf("%v: no other run began, so the outcome should be accepted; got %+v, %v", o, res, err)
	}
	s.replays(o, healthy)
	s.ran(o, 1)
	return false
}

func watchOutage(f *fixture) {
	healthy := f.engine(f.store, stet.Policy{})
	try := func(o *outage, over store.Store) {
		s := f.service()
		run, err := healthy.Begin(f.ctx, s.op)
		if err != nil {
			f.Fatalf("Begin: %v", err)
		}
		e := f.engine(Faulty(over, o.plan), stet.Policy{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			if res, err := s.waiting(e); err != nil || !res.Replayed || res.Value != "of the first" {
				f.Errorf("%v: the waiter got %+v, %v; want what the first run came to", o, res, err)
			}
		}()
		select {
		case <-o.met:
		case <-done: // which has failed then
		}
		if err := run.Settle(f.ctx, stet.Outcome{Body: []byte(`"of the first"`)}); err != nil {
			f.Errorf("Settle: %v", err)
		}
		<-done
		s.ran(o, 0)
	}
	bare := struct{ store.Store }{f.store} // not a store.Watcher: it is polled
	bothWays("Read", true, func(o *outage) { try(o, bare) })
	if f.can.watcher != nil {
		bothWays("Watch", true, func(o *outage) { try(o, f.store) })
		bothWays("Watch", false, func(o *outage) { try(o, f.store) })
	}
}

func takeoverFault(f *fixture) {
	bothWays("Release", true, func(o *outage) {
		s := f.service()
		p := f.short()
		p.Stale = stet.MayRunAgain()
		e := f.engine(Faulty(f.store, o.plan), p)
		dead := f.grant(store.ClaimRequest{ID: e.ID(s.op.Scope, s.op.Key), Scope: testScope, Fingerprint: fingerprintA,
			Owner: store.NewOwner(), Lease: f.unit})
		f.pass(1)
		res, err := s.do(e)
		if err != nil || res.Attempt != 2 || res.Fence <= dead.Fence {
			f.Errorf("%v: the takeover got %+v, %v; want attempt 2 with a fence above %d", o, res, err, dead.Fence)
		}
		s.ran(o, 1)
		f.fenced("the dead owner, come back after the takeover,", f.store.Settle(f.ctx, dead.Claim(), completed("zombie"), f.keep))
	})
}

func chaos(f *fixture) {
	const keys, tries = 24, 4
	services := make([]*service, keys)
	told := make([]map[string]bool, keys)
	for i := range services {
		services[i], told[i] = f.service(), make(map[string]bool)
	}
	engines := make([]*stet.Engine, 3)
	for i := range engines {
		engines[i] = f.engineWithin(hurry, Faulty(f.store, Seeded(uint64(i), 0.4)), f.short())
	}
	race(keys, func(i int) {
		for try := range tries {
			if res, err := services[i].do(engines[(i+try)%len(engines)]); err == nil {
				told[i][res.Value] = true
			}
		}
	})
	for _, e := range engines {
		_ = e.Close()
	}
	f.pass(1)
	healthy := f.engine(f.store, f.short())
	for i, s := range services {
		res, err := s.do(healthy)
		switch {
		case err == nil:
			told[i][res.Value] = true
		case stet.KindOf(err) != stet.KindUnknown || len(told[i]) > 0:
			f.Errorf("key %d, once the faults had ended: got %+v, %v; its earlier reply: %v", i, res, err, told[i])
		}
		if runs := s.runs.Load(); runs > 1 || len(told[i]) > 1 {
			f.Errorf("key %d ran %d times, and its callers got %v", i, runs, told[i])
		}
	}
}
