package engine_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func due(t *testing.T, e *stet.Engine, again time.Duration) []stet.Item {
	t.Helper()
	items, err := e.Due(t.Context(), 100, again)
	if err != nil {
		t.Fatalf("due: %v", err)
	}
	return items
}

func TestUnclaimedWorkIsDueAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
		it := accept(t, e, op, stet.Work{Name: "ship", After: time.Hour})
		if items := due(t, e, time.Minute); len(items) != 0 {
			t.Fatalf("before its time: %v", items)
		}
		time.Sleep(time.Hour)
		for range 3 {
			if items := due(t, e, time.Minute); len(items) != 1 || items[0] != it {
				t.Fatalf("%v", items)
			}
			if items := due(t, e, time.Minute); len(items) != 0 {
				t.Fatalf("returned again too early: %v", items)
			}
			time.Sleep(time.Minute)
		}
		run := take(t, e, it)
		if items := due(t, e, time.Minute); len(items) != 0 {
			t.Fatalf("while it runs: %v", items)
		}
		if err := run.Release(t.Context(), stet.Again{After: 10 * time.Minute}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Minute)
		if items := due(t, e, time.Minute); len(items) != 0 {
			t.Fatalf("before its backoff is over: %v", items)
		}
		time.Sleep(time.Minute)
		if items := due(t, e, time.Minute); len(items) != 1 {
			t.Fatalf("after its backoff: %v", items)
		}
	})
}

func TestWorkersAreWokenByNewWork(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	woken := func(why string, do func()) {
		t.Helper()
		arrived, same := e.Arrived(), e.Arrived()
		select {
		case <-arrived:
			t.Fatalf("before: %s", why)
		default:
		}
		do()
		<-arrived
		<-same
	}
	var run *stet.Lease
	woken("accepted", func() { run = take(t, e, accept(t, e, op, parcel)) })
	woken("returned", func() { _ = run.Release(t.Context(), stet.Again{}) })
	run = take(t, e, stet.Item{ID: run.ID(), Name: "ship"})
	woken("released", func() { _ = run.Release(t.Context(), stet.Again{}) })
	run = take(t, e, stet.Item{ID: run.ID(), Name: "ship"})
	woken("settled with messages", func() {
		if err := run.Emit(stet.Message{To: "shipped"}); err != nil {
			t.Error(err)
		}
		complete(t, run, "x")
	})
}

func TestBadQuestionsForWorkAreRefused(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	for _, q := range []struct {
		limit int
		again time.Duration
	}{{0, time.Second}, {-1, time.Second}, {store.MaxBrowse + 1, time.Second}, {1, 0}, {1, -1}, {1, store.MaxDelay + 1}} {
		_, err := e.Due(t.Context(), q.limit, q.again)
		_, err2 := e.Relay(t.Context(), q.limit, q.again, nil)
		if stet.KindOf(err) != stet.KindInvalid || stet.KindOf(err2) != stet.KindInvalid {
			t.Errorf("%d, %v: %v, %v", q.limit, q.again, err, err2)
		}
	}
	it := accept(t, e, op, parcel)
	if _, err := e.Take(t.Context(), stet.Item{ID: it.ID, Class: "another"}); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("an unknown class: %v", err)
	}
	if _, err := e.Take(t.Context(), stet.Item{ID: store.ID{1}}); stet.KindOf(err) != stet.KindFenced {
		t.Errorf("no such operation: %v", err)
	}
	run := take(t, e, it)
	for _, after := range []time.Duration{-1, store.MaxDelay + 1} {
		if err := run.Release(t.Context(), stet.Again{After: after}); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("return after %v: %v", after, err)
		}
	}
	if err := run.Release(t.Context(), stet.Again{After: store.MaxDelay}); err != nil {
		t.Errorf("the run did not continue after a refused step: %v", err)
	}
	if err := run.Release(t.Context(), stet.Again{}); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("a second return: %v", err)
	}
	other := op
	other.Key = "not accepted"
	plain, err := e.Begin(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	if err := plain.Release(t.Context(), stet.Again{Failed: errors.New("no")}); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("released as failed: %v", err)
	}
	if err := plain.Release(t.Context(), stet.Again{After: time.Hour, Uncounted: true}); err != nil {
		t.Errorf("release of a run of Begin: %v", err)
	}
	if next := begin(t, e, other); next.Attempt() != 2 {
		t.Errorf("it is run again as attempt %d", next.Attempt())
	}
}

// A queue may hold an old item whose key was used again without Accept. A worker must not
// run it.
func TestOperationThatWasNotAcceptedIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		e := newEngine(t, st, stet.Options{SweepEvery: -1, Policy: stet.Policy{Stale: stet.MayRunAgain()}})
		it := stet.Item{ID: e.ID(op.Scope, op.Key), Name: "ship"}
		run, err := e.Begin(t.Context(), op)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newEngine(t, st, stet.Options{}).Take(t.Context(), it); stet.KindOf(err) != stet.KindInFlight {
			t.Errorf("while it runs: %v", err)
		}
		if err := run.Release(t.Context(), stet.Again{}); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Take(t.Context(), it); stet.KindOf(err) != stet.KindFenced {
			t.Errorf("when it is retryable: %v", err)
		}
		die(t, st, op)
		if _, err := e.Take(t.Context(), it); stet.KindOf(err) != stet.KindFenced {
			t.Errorf("when its run has died: %v", err)
		}
		if rec, err := st.Read(t.Context(), it.ID); err != nil || rec.State != store.Unknown {
			t.Errorf("a worker changed an operation that was not accepted: %v, %v", rec.State, err)
		}
	})
}

func TestOneWorkerTakesIt(t *testing.T) {
	store := memory.New(memory.Options{})
	e, other := newEngine(t, store, stet.Options{}), newEngine(t, store, stet.Options{})
	it := accept(t, e, op, parcel)
	run := take(t, e, it)
	for _, e := range []*stet.Engine{e, other} {
		_, err := e.Take(t.Context(), it)
		if own, ok := errors.AsType[*stet.Error](err); !ok || stet.KindOf(err) != stet.KindInFlight || own.RetryAfter <= 0 {
			t.Errorf("%v", err)
		}
		runs := 0
		if _, err := stet.Do(t.Context(), e, op, charge(&runs)); stet.KindOf(err) != stet.KindInFlight || runs != 0 {
			t.Errorf("a call of the API during the run: %v, %d runs", err, runs)
		}
		mismatch := op
		mismatch.Fingerprint = stet.NewFingerprint([]byte("another request"))
		if _, err := stet.Do(t.Context(), e, mismatch, charge(&runs)); stet.KindOf(err) != stet.KindMismatch || runs != 0 {
			t.Errorf("another request during the run: %v, %d runs", err, runs)
		}
	}
	complete(t, run, `"shipped"`)
	runs := 0
	if res, err := stet.Do(t.Context(), other, op, charge(&runs)); err != nil || res.Value != "shipped" || runs != 0 {
		t.Errorf("the outcome for a call of the API: %+v, %v", res, err)
	}
}

// abandoned takes the operation in a process that dies then.
func abandoned(t *testing.T, st store.Store, it stet.Item) store.Record {
	t.Helper()
	rec, err := st.(store.WorkStore).Take(t.Context(), store.TakeRequest{ID: it.ID, Owner: store.NewOwner(), Lease: time.Second})
	if err != nil || rec.State != store.Running {
		t.Fatalf("%+v, %v", rec, err)
	}
	time.Sleep(2 * time.Second) // in a bubble
	return rec
}

func TestOperationOfADeadWorkerFollowsThePolicy(t *testing.T) {
	happened := func(context.Context, stet.Status) (stet.Resolution, error) {
		return stet.ItHappened(stet.Outcome{Body: []byte("in the books")}), nil
	}
	didNot := func(_ context.Context, st stet.Status) (stet.Resolution, error) {
		if st.Op.Scope != op.Scope || st.Op.Key != op.Key {
			return stet.Resolution{}, errors.New("asked about another operation")
		}
		return stet.ItDidNotHappen(), nil
	}
	broken := func(context.Context, stet.Status) (stet.Resolution, error) {
		return stet.Resolution{}, errors.New("the processor is down")
	}
	for name, c := range map[string]struct {
		policy stet.Policy
		state  store.State
		result string
		kind   stet.Kind
	}{
		"unknown":                  {stet.Policy{}, store.Unknown, "", stet.KindUnknown},
		"taken over":               {stet.Policy{Stale: stet.MayRunAgain()}, store.Running, "", 0},
		"failed":                   {stet.Policy{Stale: stet.ItHappened(stet.Outcome{Failed: true})}, store.Failed, "", 0},
		"found in the books":       {stet.Policy{Verify: happened}, store.Completed, "in the books", 0},
		"not found in the books":   {stet.Policy{Verify: didNot}, store.Running, "", 0},
		"the books cannot be read": {stet.Policy{Verify: broken, Stale: stet.MayRunAgain()}, store.Unknown, "", stet.KindUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memory.New(memory.Options{})
				e := newEngine(t, st, stet.Options{SweepEvery: -1, Policy: c.policy})
				it := accept(t, e, op, parcel)
				dead := abandoned(t, st, it)
				run, err := e.Take(t.Context(), it)
				if stet.KindOf(err) != c.kind || c.kind == 0 && err != nil {
					t.Fatalf("%v; want %v", err, c.kind)
				}
				if st := status(t, e, it.ID, c.state); string(st.Outcome.Body) != c.result {
					t.Errorf("%+v", st)
				}
				switch {
				case err != nil:
					return
				case c.state == store.Running:
					if run.Replayed() || run.Attempt() != 2 || run.Fence() <= dead.Fence || string(run.Work.Payload) != "order 7" {
						t.Errorf("attempt %d with fence %d and %+v", run.Attempt(), run.Fence(), run.Work)
					}
					complete(t, run, "x")
				case !run.Replayed() || string(run.Outcome().Body) != c.result:
					t.Errorf("%+v", run.Outcome())
				}
				if err := st.Settle(t.Context(), dead.Claim(), store.Settlement{State: store.Completed}, store.Retention{}); stet.KindOf(err) != stet.KindFenced {
					t.Errorf("the dead worker's settle: %v", err)
				}
			})
		})
	}
}

func TestUnknownOperationRunsAgain_OperatorResolves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		e := newEngine(t, st, stet.Options{SweepEvery: -1})
		it := accept(t, e, op, parcel)
		run := take(t, e, it)
		run.Declare(stet.MayHaveExecuted, 0)
		if err := run.MarkUnknown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if items := due(t, e, time.Second); len(items) != 0 {
			t.Fatalf("due while unknown: %v", items)
		}
		again, err := e.Accept(t.Context(), op, parcel)
		if err != nil || again.New || again.Record.State != store.Unknown {
			t.Fatalf("accepted again while unknown: %+v, %v", again, err)
		}
		if err := e.Resolve(t.Context(), browse(t, st, store.Unknown), "", stet.ItDidNotHappen()); err != nil {
			t.Fatal(err)
		}
		if items := due(t, e, time.Second); len(items) != 1 || items[0] != it {
			t.Fatalf("due when it was resolved: %v", items)
		}
		complete(t, take(t, e, it), "x")
	})
}

func TestExpiredOutcomeIsNotRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
		it := accept(t, e, op, parcel)
		complete(t, take(t, e, it), "x")
		time.Sleep(25 * time.Hour)
		if _, err := e.Take(t.Context(), it); stet.KindOf(err) != stet.KindExpired || stet.ExecutionOf(err) != stet.Executed {
			t.Errorf("a take: %v", err)
		}
		for what, ask := range map[string]func() (stet.Status, error){
			"Status": func() (stet.Status, error) { return e.Status(t.Context(), op.Scope, it.ID) },
			"Accept": func() (stet.Status, error) { return e.Accept(t.Context(), op, parcel) },
		} {
			if st, err := ask(); err != nil || st.New || st.Outcome.Failed || !st.Outcome.Gone {
				t.Errorf("%s: %+v, %v", what, st, err)
			}
		}
		time.Sleep(30 * 24 * time.Hour)
		status(t, e, it.ID, store.None)
		if _, err := e.Take(t.Context(), it); stet.KindOf(err) != stet.KindFenced {
			t.Errorf("a take of a deleted record: %v", err)
		}
	})
}

func TestLongWorkKeepsItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Options{})
		e, other := newEngine(t, store, stet.Options{}), newEngine(t, store, stet.Options{SweepEvery: time.Second})
		it := accept(t, e, op, parcel)
		run := take(t, e, it)
		for range 20 {
			time.Sleep(10 * time.Second)
			if _, err := other.Take(t.Context(), it); stet.KindOf(err) != stet.KindInFlight {
				t.Fatalf("%v", err)
			}
		}
		if err := run.Context().Err(); err != nil {
			t.Fatal(err)
		}
		complete(t, run, "x")
	})
}

func TestWorkIsNotInTheClear(t *testing.T) {
	synctest.Test(t, workIsNotInTheClear)
}

func workIsNotInTheClear(t *testing.T) {
	st := memory.New(memory.Options{})
	o := encrypted(secret("k", 1))
	e := newEngine(t, st, o)
	mine, theirs := op, op
	theirs.Scope = "another account"
	it := accept(t, e, mine, stet.Work{Name: "ship to", Payload: []byte("card 4242")})
	foreign := accept(t, e, theirs, stet.Work{Name: "ship to", Payload: []byte("card 1111")})
	rec, err := st.Look(t.Context(), it.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, canary := range []string{"4242", "acct_1", "k1", "ship to"} {
		if bytes.Contains(rec.Work, []byte(canary)) {
			t.Errorf("the store can read %q", canary)
		}
	}
	// Another key for the same operation, a row without encryption, and a row of
	// another operation.
	otherKey := newEngine(t, st, encrypted(secret("l", 2)))
	if _, err := otherKey.Take(t.Context(), it); stet.KindOf(err) != stet.KindDamaged {
		t.Errorf("without the key: %v", err)
	}
	plainOp := op
	plainOp.Key = "plain"
	plain := accept(t, newEngine(t, st, stet.Options{}), plainOp, parcel)
	if _, err := e.Take(t.Context(), plain); stet.KindOf(err) != stet.KindDamaged {
		t.Errorf("work that is not encrypted: %v", err)
	}
	swapped := newEngine(t, swappedWork{st, it.ID, foreign.ID}, o)
	if _, err := swapped.Take(t.Context(), it); stet.KindOf(err) != stet.KindDamaged {
		t.Errorf("the work of another operation: %v", err)
	}
	if _, err := swapped.Status(t.Context(), mine.Scope, it.ID); stet.KindOf(err) != stet.KindDamaged {
		t.Errorf("its status: %v", err)
	}
	// None of them has run, and all wait still.
	for _, id := range []store.ID{it.ID, plain.ID} {
		if rec, err := st.Read(t.Context(), id); err != nil || rec.State != store.Accepted {
			t.Errorf("%v, %v", rec.State, err)
		}
	}
	time.Sleep(time.Hour) // what could not be read here rests
	if run := take(t, e, it); string(run.Work.Payload) != "card 4242" || run.Op().Scope != mine.Scope {
		t.Errorf("%+v", run.Work)
	}
}

// swappedWork is a store in which the work of one operation was copied over another's.
type swappedWork struct {
	*memory.Store
	to, from store.ID
}

func (s swappedWork) swap(rec store.Record, err error) (store.Record, error) {
	if rec.ID == s.to {
		other, _ := s.Store.Look(context.Background(), s.from)
		rec.Work = other.Work
	}
	return rec, err
}

func (s swappedWork) Take(ctx context.Context, req store.TakeRequest) (store.Record, error) {
	return s.swap(s.Store.Take(ctx, req))
}

func (s swappedWork) Look(ctx context.Context, id store.ID) (store.Record, error) {
	return s.swap(s.Store.Look(ctx, id))
}

func TestDamagedWorkDoesNotStopTheQueue(t *testing.T) {
	st := memory.New(memory.Options{})
	e := newEngine(t, st, stet.Options{})
	_, err := st.Accept(t.Context(), store.ClaimRequest{ID: store.ID{1}, Owner: store.NewOwner()}, []byte("damaged"), 0)
	if err != nil {
		t.Fatal(err)
	}
	it := accept(t, e, op, parcel)
	if items := due(t, e, time.Hour); len(items) != 1 || items[0] != it {
		t.Errorf("due: %v", items)
	}
	if _, err := e.Take(t.Context(), stet.Item{ID: store.ID{1}}); stet.KindOf(err) != stet.KindDamaged {
		t.Errorf("taken: %v", err)
	}
	if rec, err := st.Read(t.Context(), store.ID{1}); err != nil || rec.State != store.Accepted {
		t.Errorf("%v, %v; an operator should find it as it was", rec.State, err)
	}
}

// It cannot run, and would otherwise stay permanently.
func TestDamagedWorkCanBeCancelled(t *testing.T) {
	st := memory.New(memory.Options{})
	it := accept(t, newEngine(t, st, encrypted(secret("lost", 1))), op, parcel)
	e := newEngine(t, st, encrypted(secret("k", 2)))
	if _, err := e.Take(t.Context(), it); stet.KindOf(err) != stet.KindDamaged {
		t.Fatal(err)
	}
	if st, err := e.Cancel(t.Context(), "acct_2", it.ID); err != nil || st.Record.State != store.None {
		t.Errorf("by another scope: %+v, %v", st, err)
	}
	if st, err := e.Cancel(t.Context(), op.Scope, it.ID); err != nil || st.Record.State != store.Failed {
		t.Errorf("%+v, %v", st, err)
	}
	status(t, e, it.ID, store.Failed)
}

// Backoff is in the record: whatever brings an item early, or twice, it waits.
func TestWorkThatIsToWaitIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
		it := accept(t, e, op, stet.Work{Name: "ship", After: time.Hour})
		early := func(when string) {
			t.Helper()
			if _, err := e.Take(t.Context(), it); stet.KindOf(err) != stet.KindInFlight {
				t.Errorf("%s: %v", when, err)
			}
			time.Sleep(time.Hour)
		}
		early("accepted for later")
		run := take(t, e, it)
		if err := run.Release(t.Context(), stet.Again{After: time.Hour}); err != nil {
			t.Fatal(err)
		}
		early("released for later")
		if items := due(t, e, time.Hour); len(items) != 1 { // returned: that is no reason to wait
			t.Fatalf("%v", items)
		}
		complete(t, take(t, e, it), "x")
	})
}

// A new version of a service may begin afresh while operations of the last one wait.
func TestDerivedKeysAreTheSameInEveryAttemptOfAnotherNamespace(t *testing.T) {
	for _, was := range []string{"", "v1"} {
		s := memory.New(memory.Options{})
		it := accept(t, newEngine(t, s, stet.Options{Namespace: was}), op, parcel)
		keys := make(map[string]bool)
		for _, namespace := range []string{was, "v2", "v3"} {
			run := take(t, newEngine(t, s, stet.Options{Namespace: namespace}), it)
			keys[run.DeriveKey("charge")] = true
			if err := run.Release(t.Context(), stet.Again{}); err != nil {
				t.Fatal(err)
			}
		}
		if len(keys) != 1 {
			t.Errorf("accepted in %q: a call further down got %d keys", was, len(keys))
		}
	}
}
