package engine_test

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"strings"
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

var parcel = stet.Work{Name: "ship", Payload: []byte("order 7")}

// accept accepts op, and returns what a queue would carry.
// named is an accepted operation with its name.
func named(op stet.Op, name string) stet.Op {
	op.Name = name
	return op
}

func accept(t *testing.T, e *stet.Engine, op stet.Op, w stet.Work) stet.Item {
	t.Helper()
	st, err := e.Accept(t.Context(), op, w)
	if err != nil || !st.New || st.Record.State != store.Accepted {
		t.Fatalf("accept: %+v, %v", st, err)
	}
	return stet.Item{ID: st.Record.ID, Class: op.Class, Name: w.Name}
}

func take(t *testing.T, e *stet.Engine, it stet.Item) *stet.Lease {
	t.Helper()
	run, err := e.Take(t.Context(), it)
	if err != nil {
		t.Fatalf("take: %v", err)
	}
	return run
}

func complete(t *testing.T, run *stet.Lease, result string) {
	t.Helper()
	if err := run.Settle(t.Context(), stet.Outcome{Body: []byte(result)}); err != nil {
		t.Fatalf("settle: %v", err)
	}
}

// status requires the state, and returns the rest.
func status(t *testing.T, e *stet.Engine, id store.ID, state store.State) stet.Status {
	t.Helper()
	st, err := e.Status(t.Context(), op.Scope, id)
	if err != nil || st.Record.State != state {
		t.Fatalf("the status is %v, %v; want %v", st.Record.State, err, state)
	}
	return st
}

func TestAcceptedOperationIsDoneOnceLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
		began := time.Now()
		it := accept(t, e, op, parcel)
		time.Sleep(time.Hour)
		again, err := e.Accept(t.Context(), op, stet.Work{Name: "another", Payload: []byte("retried")})
		if err != nil || again.New || again.Record.State != store.Accepted || again.Record.Fence != status(t, e, it.ID, store.Accepted).Record.Fence {
			t.Fatalf("accepted again: %+v, %v", again, err)
		}
		st := status(t, e, it.ID, store.Accepted)
		if want := named(op, "ship"); st.Op != want || st.Name != "ship" || !st.AcceptedAt.Equal(began) || st.New || st.Record.Attempt != 0 || st.Record.Work != nil {
			t.Fatalf("%+v", st)
		}
		items, err := e.Due(t.Context(), 10, time.Minute)
		if err != nil || len(items) != 1 || items[0] != it {
			t.Fatalf("due: %v, %v", items, err)
		}
		run := take(t, e, items[0])
		if run.Op().Key != op.Key || run.Op().Scope != op.Scope || run.Work.Name != "ship" || string(run.Work.Payload) != "order 7" || run.Attempt() != 1 || run.Replayed() {
			t.Fatalf("took %+v of %q, attempt %d", run.Work, run.Op().Key, run.Attempt())
		}
		status(t, e, it.ID, store.Running)
		complete(t, run, "shipped")
		if st := status(t, e, it.ID, store.Completed); string(st.Outcome.Body) != "shipped" || !st.Record.Result.IsZero() {
			t.Fatalf("%+v", st)
		}
		if st, err := e.Accept(t.Context(), op, parcel); err != nil || st.New || string(st.Outcome.Body) != "shipped" {
			t.Fatalf("accepted again: %+v, %v", st, err)
		}
		if again := take(t, e, it); !again.Replayed() || string(again.Outcome().Body) != "shipped" {
			t.Fatal("a queue that delivers twice had it done twice")
		}
		if items, err := e.Due(t.Context(), 10, time.Minute); err != nil || len(items) != 0 {
			t.Fatalf("due afterwards: %v, %v", items, err)
		}
	})
}

func TestManyAcceptancesOfOneKeyAreOne(t *testing.T) {
	st := memory.New(memory.Options{})
	engines := []*stet.Engine{newEngine(t, st, stet.Options{}), newEngine(t, st, stet.Options{})}
	var news atomic.Int64
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			st, err := engines[i%2].Accept(t.Context(), op, parcel)
			if err != nil || st.Record.State != store.Accepted || st.Record.ID != engines[0].ID(op.Scope, op.Key) {
				t.Errorf("%+v, %v", st, err)
			}
			if st.New {
				news.Add(1)
			}
		})
	}
	wg.Wait()
	if news.Load() != 1 {
		t.Fatalf("%d of them were new", news.Load())
	}
}

func TestAcceptedKeyRefusesAnotherRequest(t *testing.T) {
	var seen []observe.Kind
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{Observer: observe.Func(func(_ context.Context, ev observe.Event) { seen = append(seen, ev.Kind) })})
	it := accept(t, e, op, parcel)
	other := op
	other.Fingerprint = stet.NewFingerprint([]byte("another request"))
	for _, end := range []func(){func() {}, func() { complete(t, take(t, e, it), "x") }} {
		end()
		if _, err := e.Accept(t.Context(), other, parcel); stet.KindOf(err) != stet.KindMismatch || stet.ExecutionOf(err) != stet.NotExecuted {
			t.Errorf("another request: %v", err)
		}
	}
	want := []observe.Kind{observe.Accepted, observe.Mismatched, observe.Claimed, observe.Settled, observe.Mismatched}
	if len(seen) != len(want) || [5]observe.Kind(seen) != [5]observe.Kind(want) {
		t.Errorf("events: %v; want %v", seen, want)
	}
}

func TestAcceptedOperationIsInFlightForDo(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	accept(t, e, op, parcel)
	runs := 0
	if _, err := stet.Do(t.Context(), e, op, charge(&runs)); stet.KindOf(err) != stet.KindInFlight || runs != 0 {
		t.Errorf("%v, %d runs", err, runs)
	}
}

func TestBadWorkIsRefused(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	for name, w := range map[string]stet.Work{
		"no name":                 {},
		"a long name":             {Name: strings.Repeat("n", store.MaxName+1)},
		"a name that is no UTF-8": {Name: "ship\xff"},
		"a large payload":         {Name: "ship", Payload: make([]byte, store.MaxWork+1)},
		"a negative delay":        {Name: "ship", After: -1},
		"a long delay":            {Name: "ship", After: store.MaxDelay + 1},
		"less than no queue":      {Name: "ship", Queued: -1},
		"a long queue":            {Name: "ship", Queued: store.MaxDelay + 1},
	} {
		if _, err := e.Accept(t.Context(), op, w); stet.KindOf(err) != stet.KindInvalid || stet.ExecutionOf(err) != stet.NotExecuted {
			t.Errorf("%s: %v", name, err)
		}
	}
	status(t, e, e.ID(op.Scope, op.Key), store.None)
	large := stet.Work{Name: strings.Repeat("n", store.MaxName), Payload: bytes.Repeat([]byte{0, 255}, store.MaxWork/2)}
	if run := take(t, e, accept(t, e, op, large)); !bytes.Equal(run.Work.Payload, large.Payload) || run.Work.Name != large.Name {
		t.Error("the greatest payload did not come back")
	}
	late := op
	late.Key = "in a year"
	accept(t, e, late, stet.Work{Name: "ship", After: store.MaxDelay})
}

func TestStoreWithoutWorkIsReported(t *testing.T) {
	e := newEngine(t, struct{ store.Store }{memory.New(memory.Options{})}, stet.Options{})
	_, accepting := e.Accept(t.Context(), op, parcel)
	_, cancelling := e.Cancel(t.Context(), op.Scope, store.ID{})
	_, taking := e.Take(t.Context(), stet.Item{})
	_, asking := e.Due(t.Context(), 1, time.Second)
	_, relaying := e.Relay(t.Context(), 1, time.Second, nil)
	_, emitting := stet.Do(t.Context(), e, op, func(ctx context.Context) (int, error) {
		return 0, stet.FromContext(ctx).Emit(stet.Message{To: "x"})
	})
	for name, err := range map[string]error{"Accept": accepting, "Cancel": cancelling, "Take": taking,
		"Due": asking, "Relay": relaying, "Emit": emitting} {
		if name == "Emit" {
			err = errors.Unwrap(err) // of the handler
		}
		says := map[string]string{"Relay": "has no outbox", "Emit": "has no outbox"}
		if stet.KindOf(err) != stet.KindInvalid || !strings.Contains(err.Error(), cmp.Or(says[name], "does not store work")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOutcomeCanBeReadInAnyStore(t *testing.T) {
	e := newEngine(t, struct{ store.Store }{memory.New(memory.Options{})}, stet.Options{})
	if _, err := stet.Do(t.Context(), e, op, func(context.Context) (string, error) { return "charged", nil }); err != nil {
		t.Fatal(err)
	}
	st, err := e.Status(t.Context(), op.Scope, e.ID(op.Scope, op.Key))
	if err != nil || st.Record.State != store.Completed || string(st.Outcome.Body) != `"charged"` || st.Outcome.Type != "application/json" {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestAnotherScopeSeesNothing(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	it := accept(t, e, op, parcel)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // an Await that sees it would wait for its end
	defer cancel()
	for name, ask := range map[string]func(context.Context, string, store.ID) (stet.Status, error){"Status": e.Status, "Await": e.Await, "Cancel": e.Cancel} {
		for _, scope := range []string{"acct_2", "", "acct_1\x00"} {
			if st, err := ask(ctx, scope, it.ID); err != nil || st.Record.State != store.None || st.Op != (stet.Op{}) || st.Record.Scope != (store.ID{}) {
				t.Errorf("%s by %q: %+v, %v", name, scope, st, err)
			}
		}
	}
	status(t, e, it.ID, store.Accepted)
	if st, err := e.Lookup(t.Context(), it.ID); err != nil || st.Op != named(op, "ship") {
		t.Errorf("an operator's look: %+v, %v", st, err)
	}
}

func TestAwaitEndsWithTheOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
		it := accept(t, e, op, parcel)
		told := make(chan stet.Status, 1)
		go func() {
			st, err := e.Await(t.Context(), op.Scope, it.ID)
			if err != nil {
				t.Error(err)
			}
			told <- st
		}()
		time.Sleep(10 * time.Minute)
		run := take(t, e, it)
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		select {
		case st := <-told:
			t.Fatalf("it did not wait: %+v", st)
		default:
		}
		ended := time.Now()
		complete(t, run, "shipped")
		if st := <-told; string(st.Outcome.Body) != "shipped" || time.Since(ended) > time.Second {
			t.Errorf("%+v, after %v", st, time.Since(ended))
		}
		if st, err := e.Await(t.Context(), op.Scope, store.ID{1}); err != nil || st.Record.State != store.None {
			t.Errorf("of what does not exist: %+v, %v", st, err)
		}
	})
}

// bare is a store that keeps no work and cannot tell of changes.
type bare struct{ store.Store }

func TestAwaitWorksOnAnyStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, bare{memory.New(memory.Options{})}, stet.Options{SweepEvery: -1})
		run, err := e.Begin(t.Context(), op)
		if err != nil {
			t.Fatal(err)
		}
		told := make(chan stet.Status, 1)
		go func() {
			st, err := e.Await(t.Context(), op.Scope, run.ID())
			if err != nil {
				t.Errorf("of what runs: %v", err)
			}
			told <- st
		}()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		select {
		case st := <-told:
			t.Fatalf("it did not wait: %+v", st)
		default:
		}
		ended := time.Now()
		complete(t, run, "shipped")
		if st := <-told; string(st.Outcome.Body) != "shipped" || time.Since(ended) > time.Second {
			t.Errorf("got %+v after %v; want the outcome within a second", st, time.Since(ended))
		}
	})
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1, MaxWaiters: 1})
		it := accept(t, e, op, parcel)
		for _, running := range []bool{false, true} {
			if running {
				take(t, e, it)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			began := time.Now()
			done := make(chan struct{})
			go func() {
				defer close(done)
				time.Sleep(time.Second)
				if st, err := e.Await(t.Context(), op.Scope, it.ID); err != nil || st.Record.State.Settled() || time.Since(began) != time.Second {
					t.Errorf("one waiter too many: %+v, %v, after %v", st, err, time.Since(began))
				}
			}()
			st, err := e.Await(ctx, op.Scope, it.ID)
			if err != nil || st.Record.State.Settled() || (st.Record.State == store.Running) != running || time.Since(began) != time.Minute {
				t.Errorf("%+v, %v, after %v", st, err, time.Since(began))
			}
			<-done
			cancel()
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if st, err := e.Await(t.Context(), op.Scope, it.ID); err != nil || st.Record.State != store.Running {
				t.Errorf("when the engine was closed: %+v, %v", st, err)
			}
		}()
		synctest.Wait()
		_ = e.Close()
		<-done
	})
}

func TestCancelledOperationIsNotRun(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	it := accept(t, e, op, parcel)
	for range 2 {
		st, err := e.Cancel(t.Context(), op.Scope, it.ID)
		if err != nil || st.Record.State != store.Failed || st.Outcome.Reason != store.ReasonCancelled {
			t.Fatalf("%+v, %v", st, err)
		}
	}
	if run := take(t, e, it); !run.Replayed() {
		t.Error("it was run")
	}
	if items, err := e.Due(t.Context(), 1, time.Second); err != nil || len(items) != 0 {
		t.Errorf("due: %v, %v", items, err)
	}
	runs := 0
	if _, err := stet.Do(t.Context(), e, op, charge(&runs)); stet.KindOf(err) != stet.KindFailed || runs != 0 || !strings.Contains(err.Error(), "cancelled") {
		t.Errorf("a retry: %v, %d runs", err, runs)
	}
}

func TestRunningOperationIsAskedToEnd(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	it := accept(t, e, op, parcel)
	run := take(t, e, it)
	if run.Cancelling {
		t.Fatal("it is to end before anyone has asked")
	}
	for range 2 {
		if st, err := e.Cancel(t.Context(), op.Scope, it.ID); err != nil || st.Record.State != store.Running || !st.Record.Cancelling {
			t.Fatalf("%+v, %v", st, err)
		}
	}
	if st, err := e.Lookup(t.Context(), it.ID); err != nil || !st.Record.Cancelling || st.Record.Fence != run.Fence() {
		t.Fatalf("%+v, %v", st, err)
	}
	// The run ignored the request and was released: the next attempt receives it too.
	if err := run.Release(t.Context(), stet.Again{}); err != nil {
		t.Fatal(err)
	}
	next := take(t, e, it)
	if !next.Cancelling {
		t.Fatal("the next attempt is not asked to end")
	}
	if err := next.Release(t.Context(), stet.Again{}); err != nil {
		t.Fatal(err)
	}
	if st, err := e.Cancel(t.Context(), op.Scope, it.ID); err != nil || st.Record.State != store.Failed {
		t.Fatalf("cancelled while it waits for the next attempt: %+v, %v", st.Record, err)
	}
}

func TestOnlyAcceptedOperationsAreCancelled(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	run, err := e.Begin(t.Context(), op)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Cancel(t.Context(), op.Scope, run.ID()); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("a run of Begin: %v", err)
	}
	complete(t, run, "done")
	if st, err := e.Cancel(t.Context(), op.Scope, run.ID()); err != nil || string(st.Outcome.Body) != "done" {
		t.Errorf("an operation that has ended: %+v, %v", st, err)
	}
}

func TestClosedEngineAcceptsAndTakesNothing(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	it := accept(t, e, op, parcel)
	_ = e.Close()
	if _, err := e.Take(t.Context(), it); stet.KindOf(err) != stet.KindClosed {
		t.Errorf("Take: %v", err)
	}
	other := op
	other.Key = "another"
	if _, err := e.Accept(t.Context(), other, parcel); stet.KindOf(err) != stet.KindClosed {
		t.Errorf("Accept: %v", err)
	}
}

func TestAcceptanceIsCommittedWithTheCallersRows(t *testing.T) {
	st, e := bank(t)
	id := e.ID(op.Scope, op.Key)
	for _, commit := range []bool{false, true} {
		tx, err := st.DB().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.ExecContext(t.Context(), `INSERT INTO ledger VALUES ('order 7', 100)`); err != nil {
			t.Fatal(err)
		}
		st, err := txOf(e, st).Accept(t.Context(), tx, op, parcel)
		if err != nil || !st.New || st.Record.State != store.Accepted {
			t.Fatalf("%+v, %v", st, err)
		}
		if !commit {
			_ = tx.Rollback()
			status(t, e, id, store.None)
			continue
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	status(t, e, id, store.Accepted)
	if n := charges(t, st); n != 1 {
		t.Errorf("%d rows", n)
	}
	err := st.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		if st, err := txOf(e, st).Accept(ctx, tx, op, parcel); err != nil || st.New {
			t.Errorf("accepted again: %+v, %v", st, err)
		}
		other := op
		other.Fingerprint = stet.NewFingerprint([]byte("another request"))
		_, err := txOf(e, st).Accept(ctx, tx, other, parcel)
		return err
	})
	if stet.KindOf(err) != stet.KindMismatch {
		t.Errorf("another request: %v", err)
	}
}

// What looks for waiting work finds it when the queue had its time.
func TestQueuedWorkIsLeftToItsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1})
		due := func(want int) {
			t.Helper()
			if items, err := e.Due(t.Context(), 10, time.Nanosecond); err != nil || len(items) != want {
				t.Errorf("due are %+v, %v; want %d", items, err, want)
			}
		}
		it := accept(t, e, op, stet.Work{Name: "ship", Queued: time.Hour})
		accept(t, e, other, stet.Work{Name: "ship", After: 2 * time.Hour, Queued: time.Hour})
		due(0)
		time.Sleep(time.Hour - time.Nanosecond)
		due(0)
		time.Sleep(time.Nanosecond)
		due(1)
		take(t, e, it)
		due(0)
		time.Sleep(time.Hour)
		due(1)
	})
}
