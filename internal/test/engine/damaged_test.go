package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// errUnreadable is what a store says of a record that it cannot read.
var errUnreadable = fmt.Errorf("%w: the row is no record", store.ErrDamaged)

// unreadable is a store whose records were damaged.
type unreadable struct {
	*memory.Store
	calls atomic.Int64
	whole atomic.Bool   // for now, they are not
	gate  chan struct{} // nil, or a claim waits for it
}

func (s *unreadable) fail() error {
	if s.whole.Load() {
		return nil
	}
	s.calls.Add(1)
	return errUnreadable
}

func (s *unreadable) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	if s.gate != nil {
		<-s.gate
	}
	if err := s.fail(); err != nil {
		return store.Record{}, err
	}
	return s.Store.Claim(ctx, req)
}

func (s *unreadable) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	return errors.Join(s.fail(), s.failed(func() error { return s.Store.Settle(ctx, c, out, keep) }))
}

func (s *unreadable) failed(call func() error) error {
	if s.whole.Load() {
		return call()
	}
	return nil
}

func (s *unreadable) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	return errors.Join(s.fail(), s.failed(func() error { return s.Store.Release(ctx, c, keep) }))
}

func (s *unreadable) Read(ctx context.Context, id store.ID) (rec store.Record, err error) {
	err = errors.Join(s.fail(), s.failed(func() (err error) { rec, err = s.Store.Read(ctx, id); return err }))
	return rec, err
}

func (s *unreadable) Look(ctx context.Context, id store.ID) (rec store.Record, err error) {
	err = errors.Join(s.fail(), s.failed(func() (err error) { rec, err = s.Store.Look(ctx, id); return err }))
	return rec, err
}

func (s *unreadable) Accept(ctx context.Context, req store.ClaimRequest, work []byte, after time.Duration) (rec store.Record, err error) {
	err = errors.Join(s.fail(), s.failed(func() (err error) { rec, err = s.Store.Accept(ctx, req, work, after); return err }))
	return rec, err
}

func (s *unreadable) Take(ctx context.Context, req store.TakeRequest) (rec store.Record, err error) {
	err = errors.Join(s.fail(), s.failed(func() (err error) {
		rec, err = s.Store.Take(ctx, req)
		return err
	}))
	return rec, err
}

func (s *unreadable) Save(ctx context.Context, c store.Claim, notes store.Notes, repeatable bool) error {
	return errors.Join(s.fail(), s.failed(func() error { return s.Store.Save(ctx, c, notes, repeatable) }))
}

func (s *unreadable) Cancel(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) (rec store.Record, err error) {
	err = errors.Join(s.fail(), s.failed(func() (err error) { rec, err = s.Store.Cancel(ctx, c, out, keep); return err }))
	return rec, err
}

func (s *unreadable) Watch(context.Context, store.ID, int64) error { return errDown } // it is polled

func (s *unreadable) RunTx(context.Context, store.ClaimRequest, store.Retention,
	func(context.Context, int, store.Record) (store.Settlement, error)) (store.Record, error) {
	return store.Record{}, s.fail()
}

func (s *unreadable) SettleTx(context.Context, int, store.Claim, store.Settlement, store.Retention) error {
	return s.fail()
}

var done = stet.Outcome{Body: []byte(`1`)}

// callsOfARecord are all calls about one record.
var callsOfARecord = map[string]struct {
	runs bool // while the record is whole
	call func(*testing.T, *stet.Engine, *unreadable, *stet.Lease) error
}{
	"Begin": {false, func(t *testing.T, e *stet.Engine, _ *unreadable, _ *stet.Lease) error {
		_, err := e.Begin(t.Context(), op)
		return err
	}},
	"RunTx, which reads first": {false, func(t *testing.T, e *stet.Engine, s *unreadable, _ *stet.Lease) error {
		_, err := txOf(e, s).Run(t.Context(), op, func(context.Context, int) (stet.Outcome, error) { t.Error("ran"); return done, nil })
		return err
	}},
	"Accept": {false, func(t *testing.T, e *stet.Engine, _ *unreadable, _ *stet.Lease) error {
		_, err := e.Accept(t.Context(), op, stet.Work{Name: "w"})
		return err
	}},
	"Take": {false, func(t *testing.T, e *stet.Engine, _ *unreadable, _ *stet.Lease) error {
		_, err := e.Take(t.Context(), stet.Item{ID: e.ID(op.Scope, op.Key)})
		return err
	}},
	"Status": {false, func(t *testing.T, e *stet.Engine, _ *unreadable, _ *stet.Lease) error {
		_, err := e.Status(t.Context(), op.Scope, e.ID(op.Scope, op.Key))
		return err
	}},
	"Lookup": {false, func(t *testing.T, e *stet.Engine, _ *unreadable, _ *stet.Lease) error {
		_, err := e.Lookup(t.Context(), e.ID(op.Scope, op.Key))
		return err
	}},
	"Await": {false, func(t *testing.T, e *stet.Engine, _ *unreadable, _ *stet.Lease) error {
		_, err := e.Await(t.Context(), op.Scope, e.ID(op.Scope, op.Key))
		return err
	}},
	"Cancel": {false, func(t *testing.T, e *stet.Engine, _ *unreadable, _ *stet.Lease) error {
		_, err := e.Cancel(t.Context(), op.Scope, e.ID(op.Scope, op.Key))
		return err
	}},
	"Resolve": {false, func(t *testing.T, e *stet.Engine, _ *unreadable, _ *stet.Lease) error {
		return e.Resolve(t.Context(), store.Record{ID: e.ID(op.Scope, op.Key), Fence: 1}, "", stet.ItDidNotHappen())
	}},
	"Settle": {true, func(t *testing.T, _ *stet.Engine, _ *unreadable, r *stet.Lease) error {
		return r.Settle(t.Context(), done)
	}},
	"Release": {true, func(t *testing.T, _ *stet.Engine, _ *unreadable, r *stet.Lease) error {
		return r.Release(t.Context(), stet.Again{})
	}},
	"SettleTx": {true, func(t *testing.T, e *stet.Engine, s *unreadable, r *stet.Lease) error {
		return txOf(e, s).Settle(t.Context(), r, 1, done)
	}},
	"a step": {true, func(t *testing.T, _ *stet.Engine, _ *unreadable, r *stet.Lease) error {
		_, err := stet.StepOnce(r.Context(), "step", func(context.Context) (int, error) { t.Error("ran"); return 1, nil })
		return err
	}},
}

// A record that the store cannot decode stays damaged: no call is repeated, and each
// returns "may have executed".
func TestDamagedRecord_IsReadOnceAndMayHaveExecuted(t *testing.T) {
	for name, c := range callsOfARecord {
		synctest.Test(t, func(t *testing.T) {
			store := &unreadable{Store: memory.New(memory.Options{})}
			e := newEngine(t, store, stet.Options{SweepEvery: -1})
			var run *stet.Lease
			if c.runs {
				store.whole.Store(true)
				run = begin(t, e, op)
				store.whole.Store(false)
			}
			err := c.call(t, e, store, run)
			own, ok := errors.AsType[*stet.Error](err)
			if !ok || own.Kind != stet.KindDamaged || own.Execution != stet.MayHaveExecuted || own.RetryAfter != 0 {
				t.Errorf("%s: %v", name, err)
			}
			if n := store.calls.Load(); n != 1 {
				t.Errorf("%s: the store was asked %d times", name, n)
			}
		})
	}
}

func TestWaiterReturnsIfTheRecordIsDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &unreadable{Store: memory.New(memory.Options{})}
		store.whole.Store(true)
		begin(t, newEngine(t, store, stet.Options{SweepEvery: -1}), op)
		e := newEngine(t, store, stet.Options{SweepEvery: -1, Policy: stet.Policy{Wait: time.Minute}})
		time.AfterFunc(time.Second, func() { store.whole.Store(false) })
		began := time.Now()
		if _, err := e.Begin(t.Context(), op); stet.KindOf(err) != stet.KindDamaged || time.Since(began) > 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// partial is a store of which a part is down, or damaged.
type partial struct {
	*memory.Store
	mu     sync.Mutex
	failed []store.ID // what cannot be reached or read
	cause  error
	sweeps int
}

func (s *partial) fail(cause error, ids ...store.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed, s.cause = ids, cause
}

// split returns which claims the store can answer for, and the error of the others,
// which has no owners.
func (s *partial) split(claims []store.Claim) (reached []store.Claim, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var unreached []store.Claim
	for _, c := range claims {
		if slices.Contains(s.failed, c.ID) {
			unreached = append(unreached, store.Claim{ID: c.ID, Fence: c.Fence})
		} else {
			reached = append(reached, c)
		}
	}
	if unreached != nil {
		err = &store.PartialError{Claims: unreached, Cause: s.cause}
	}
	return reached, err
}

func (s *partial) Extend(ctx context.Context, claims []store.Claim, lease time.Duration) ([]store.Claim, error) {
	reached, failed := s.split(claims)
	lost, err := s.Store.Extend(ctx, reached, lease)
	if err == nil {
		err = failed
	}
	return lost, err
}

func (s *partial) Due(ctx context.Context, limit int, again time.Duration, names ...string) ([]store.Record, error) {
	recs, err := s.Store.Due(ctx, limit, again, names...)
	var claims []store.Claim
	for _, rec := range recs {
		claims = append(claims, rec.Claim())
	}
	reached, failed := s.split(claims)
	recs = slices.DeleteFunc(recs, func(rec store.Record) bool { return !slices.Contains(reached, rec.Claim()) })
	if err == nil {
		err = failed
	}
	return recs, err
}

func (s *partial) Sweep(context.Context, int) (store.Swept, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sweeps++; s.sweeps < 3 {
		return store.Swept{Purged: 10, More: true}, &store.PartialError{Cause: errDown}
	}
	return store.Swept{Purged: 1}, nil
}

// If one shard is unavailable, the leases of other runs are renewed. The lease of a run
// on the failed shard counts from its last renewal.
func TestUnavailableShardEndsNoOtherRun(t *testing.T) {
	for name, cause := range map[string]error{"a server that is down": errDown, "a damaged record": errUnreadable} {
		synctest.Test(t, func(t *testing.T) {
			st := &partial{Store: memory.New(memory.Options{})}
			e := newEngine(t, st, stet.Options{SweepEvery: -1})
			hit, lost := begin(t, e, op), begin(t, e, stet.Op{Scope: "s", Key: "lost"})
			var others []*stet.Lease
			for i := range 5 {
				others = append(others, begin(t, e, stet.Op{Scope: "s", Key: fmt.Sprint(i)}))
			}
			st.fail(cause, hit.ID())
			if err := st.Release(t.Context(), claimOf(t, st, lost), store.Retention{Result: time.Hour}); err != nil {
				t.Fatal(err)
			}
			<-hit.Context().Done()
			if cause := context.Cause(hit.Context()); !errors.Is(cause, stet.ErrLeaseLost) {
				t.Errorf("%s: cause %v", name, cause)
			}
			if cause := context.Cause(lost.Context()); !errors.Is(cause, stet.ErrLeaseLost) {
				t.Errorf("%s: the run whose lease is lost: %v", name, cause)
			}
			time.Sleep(2 * time.Minute)
			for _, run := range others {
				if cause := context.Cause(run.Context()); cause != nil || leaseLeft(t, st, run) <= 0 {
					t.Errorf("%s: another run ended: %v", name, cause)
				}
			}
		})
	}
}

func TestShortOutageOfAShardEndsNoRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &partial{Store: memory.New(memory.Options{})}
		e := newEngine(t, store, stet.Options{SweepEvery: -1})
		run := begin(t, e, op)
		store.fail(errDown, run.ID())
		time.Sleep(20 * time.Second)
		store.fail(nil)
		time.Sleep(time.Minute)
		if cause := context.Cause(run.Context()); cause != nil {
			t.Error(cause)
		}
	})
}

func TestMarkingABatchUnknownNamesTheRecordsNotReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &partial{Store: memory.New(memory.Options{})}
		e := newEngine(t, st, stet.Options{SweepEvery: -1})
		var runs []*stet.Lease
		for i := range 6 {
			runs = append(runs, begin(t, e, stet.Op{Scope: "s", Key: fmt.Sprint(i)}))
		}
		st.fail(errDown, runs[2].ID(), runs[4].ID())
		var wg sync.WaitGroup
		for i, run := range runs {
			wg.Go(func() {
				err := run.MarkUnknown(t.Context())
				if failed := i == 2 || i == 4; failed != (stet.KindOf(err) == stet.KindStore) || !failed && err != nil {
					t.Errorf("run %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		for i, run := range runs {
			if rec, _ := st.Read(t.Context(), run.ID()); (rec.State == store.Unknown) != (i != 2 && i != 4) {
				t.Errorf("run %d is %v", i, rec.State)
			}
		}
	})
}

// A damaged job is reported to the observer, and the other jobs are returned.
func TestDamagedJobHidesNoOther(t *testing.T) {
	var told []observe.Event
	store := &partial{Store: memory.New(memory.Options{})}
	e := newEngine(t, store, stet.Options{SweepEvery: -1, Observer: observe.Func(func(_ context.Context, ev observe.Event) {
		if ev.Kind == observe.StoreFailed {
			told = append(told, ev)
		}
	})})
	var items []stet.Item
	for i := range 3 {
		items = append(items, accept(t, e, stet.Op{Scope: "s", Key: fmt.Sprint(i)}, parcel))
	}
	store.fail(errUnreadable, items[1].ID)
	due, err := e.Due(t.Context(), 10, time.Minute)
	if err != nil || !slices.Equal(due, []stet.Item{items[0], items[2]}) {
		t.Errorf("due are %v, %v", due, err)
	}
	if len(told) != 1 || told[0].ID != items[1].ID || stet.KindOf(told[0].Err) != stet.KindDamaged {
		t.Errorf("reported: %+v", told)
	}
}

// TestSweepContinues_PartOfTheStoreIsDown: it returns the error of the part that is down.
func TestSweepContinues_PartOfTheStoreIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		swept := make(chan observe.Event, 10)
		e := newEngine(t, &partial{Store: memory.New(memory.Options{})}, stet.Options{Observer: observe.Func(func(_ context.Context, ev observe.Event) {
			if ev.Kind == observe.Swept {
				swept <- ev
			}
		})})
		ev := <-swept
		if ev.Swept.Purged != 21 || ev.Swept.More || !errors.Is(ev.Err, errDown) {
			t.Errorf("%+v, %v", ev.Swept, ev.Err)
		}
		_ = e.Close()
	})
}
