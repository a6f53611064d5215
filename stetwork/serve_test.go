package stetwork_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestConcurrencyLimitsRuns(t *testing.T) {
	inMemory(t, stetwork.Options{Concurrency: 3}, stet.Policy{}, func(t *testing.T, b *bench) {
		var at, most atomic.Int64
		must(t, stetwork.Handle(b.worker, "ship", func(context.Context, parcel) (receipt, error) {
			most.Store(max(most.Load(), at.Add(1)))
			time.Sleep(time.Second)
			at.Add(-1)
			return receipt{}, nil
		}))
		var ids []store.ID
		for i := range 10 {
			ids = append(ids, b.accept("ship", strconv.Itoa(i)))
		}
		b.runs()
		began := time.Now()
		for _, id := range ids {
			b.await(id, store.Completed)
		}
		if most.Load() != 3 {
			t.Errorf("%d ran at a time", most.Load())
		}
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("10 seconds of work took 3 at a time %v", took)
		}
	})
}

func TestOwnOperationRunsAtOnce(t *testing.T) {
	inMemory(t, stetwork.Options{Dispatch: stetwork.DispatcherOptions{Poll: time.Hour}}, stet.Policy{}, func(t *testing.T, b *bench) {
		ran := make(chan time.Time, 1)
		must(t, stetwork.Handle(b.worker, "ship", func(context.Context, parcel) (receipt, error) {
			ran <- time.Now()
			return receipt{}, nil
		}))
		b.runs()
		synctest.Wait()
		accepted := time.Now()
		b.accept("ship", "a")
		if took := (<-ran).Sub(accepted); took > 10*time.Millisecond {
			t.Fatalf("it waited %v", took)
		}
	})
}

func TestOperationOfAnotherProcessRunsAfterAPoll(t *testing.T) {
	inMemory(t, stetwork.Options{}, stet.Policy{}, func(t *testing.T, b *bench) {
		must(t, stetwork.Handle(b.worker, "ship", func(context.Context, parcel) (receipt, error) { return receipt{}, nil }))
		b.runs()
		synctest.Wait()
		other := newEngine(t, b.store, stet.Policy{})
		began := time.Now()
		st, err := other.Accept(t.Context(), stet.Op{Scope: "shop", Key: "a"}, stet.Work{Name: "ship", Payload: []byte("{}")})
		must(t, err)
		b.await(st.Record.ID, store.Completed)
		if took := time.Since(began); took > 2*time.Second {
			t.Fatalf("it took %v", took)
		}
		other.Close()
	})
}

func TestOperationWithoutAHandlerStaysAccepted(t *testing.T) {
	inMemory(t, stetwork.Options{}, stet.Policy{}, func(t *testing.T, b *bench) {
		must(t, stetwork.Handle(b.worker, "ship", func(context.Context, parcel) (receipt, error) { return receipt{}, nil }))
		stop := b.runs()
		id := b.accept("bill", "a")
		b.await(b.accept("ship", "b"), store.Completed)
		time.Sleep(time.Hour)
		if st := b.status(id); st.Record.State != store.Accepted || st.Record.Attempt != 0 {
			t.Fatalf("%v, attempt %d", st.Record.State, st.Record.Attempt)
		}
		stop()
		// A process with the handler finds it.
		next := newBench(t, b.store, stetwork.Options{}, stet.Policy{})
		must(t, stetwork.Handle(next.worker, "bill", func(context.Context, parcel) (receipt, error) { return receipt{}, nil }))
		next.runs()
		next.await(id, store.Completed)
	})
}

func TestShutdownWaitsForRuns(t *testing.T) {
	inMemory(t, stetwork.Options{Concurrency: 1}, stet.Policy{}, func(t *testing.T, b *bench) {
		began := make(chan struct{}, 1)
		must(t, stetwork.Handle(b.worker, "ship", func(context.Context, parcel) (receipt, error) {
			began <- struct{}{}
			time.Sleep(20 * time.Second)
			return receipt{}, nil
		}))
		stop := b.runs()
		first := b.accept("ship", "a")
		<-began
		second := b.accept("ship", "b")
		stop()
		if st := b.status(first); st.Record.State != store.Completed {
			t.Errorf("the run was not waited for: %v", st.Record.State)
		}
		if st := b.status(second); st.Record.State != store.Accepted {
			t.Errorf("another one was begun: %v", st.Record.State)
		}
		if err := b.worker.Do(t.Context(), stet.Item{ID: second, Name: "ship"}); stet.KindOf(err) != stet.KindClosed {
			t.Errorf("Do after the end: %v", err)
		}
		if err := b.worker.Run(t.Context()); stet.KindOf(err) != stet.KindClosed {
			t.Errorf("Run after the end: %v", err)
		}
	})
}

func TestDrainReleasesRepeatableRunsAndMarksOthersUnknown(t *testing.T) {
	inMemory(t, stetwork.Options{}, stet.Policy{}, func(t *testing.T, b *bench) {
		h := func(ctx context.Context, p parcel) (receipt, error) {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), stet.ErrClosed) {
				t.Errorf("cause %v", context.Cause(ctx))
			}
			if p.Book == "harmless" {
				return receipt{}, stet.Retryable(errors.New("busy"))
			}
			return receipt{}, context.Cause(ctx)
		}
		must(t, stetwork.Handle(b.worker, "plain", h))
		must(t, stetwork.HandleIdempotent(b.worker, "idempotent", h))
		stop := b.runs()
		want := map[store.ID]store.State{
			b.accept("plain", "a"):        store.Unknown,
			b.accept("plain", "harmless"): store.Accepted,
			b.accept("idempotent", "b"):   store.Accepted,
		}
		synctest.Wait()
		began := time.Now()
		stop()
		if took := time.Since(began); took < stetwork.DefaultDrain || took > stetwork.DefaultDrain+time.Second {
			t.Errorf("the handlers were given %v", took)
		}
		for id, state := range want {
			if st := b.status(id); st.Record.State != state {
				t.Errorf("%s: %v; want %v", st.Op.Key, st.Record.State, state)
			}
		}
		// A released operation is due at once.
		items, err := b.engine.Due(t.Context(), 10, time.Minute)
		if err != nil || len(items) != 2 {
			t.Error(items, err)
		}
	})
}

func TestShutdownReportsAHandlerThatDoesNotReturn(t *testing.T) {
	inMemory(t, stetwork.Options{Drain: -1}, stet.Policy{}, func(t *testing.T, b *bench) {
		end := make(chan struct{})
		must(t, stetwork.Handle(b.worker, "ship", func(context.Context, parcel) (receipt, error) {
			<-end
			return receipt{}, nil
		}))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.worker.Run(ctx) }()
		b.accept("ship", "a")
		synctest.Wait()
		cancel()
		if err := <-done; err == nil {
			t.Error("no error")
		}
		close(end)
		if err := b.worker.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestShutdownEndsRun(t *testing.T) {
	inMemory(t, stetwork.Options{}, stet.Policy{}, func(t *testing.T, b *bench) {
		done := make(chan error)
		go func() { done <- b.worker.Run(context.Background()) }()
		synctest.Wait()
		must(t, b.worker.Shutdown(t.Context()))
		must(t, <-done)
	})
}

func TestOnlyRepeatableExpiredRunsRunAgain(t *testing.T) {
	inMemory(t, stetwork.Options{}, stet.Policy{Lease: time.Second}, func(t *testing.T, b *bench) {
		h := func(context.Context, parcel) (receipt, error) { return receipt{}, nil }
		must(t, stetwork.Handle(b.worker, "plain", h))
		must(t, stetwork.HandleIdempotent(b.worker, "idempotent", h))
		plain, idempotent := b.accept("plain", "a"), b.accept("idempotent", "b")
		b.dies(plain)
		b.dies(idempotent)
		b.runs()
		if st := b.await(idempotent, store.Completed); st.Record.Attempt != 2 {
			t.Error(st.Record.Attempt)
		}
		time.Sleep(time.Hour)
		if st := b.status(plain); st.Record.State != store.Unknown || st.Record.Attempt != 1 {
			t.Errorf("%v, attempt %d", st.Record.State, st.Record.Attempt)
		}
	})
}

func TestPolicyStaleResolvesExpiredRunsOfHandle(t *testing.T) {
	happened := func(context.Context, stet.Status) (stet.Resolution, error) {
		return stet.ItHappened(stet.Outcome{Body: []byte(`{"Number":9}`)}), nil
	}
	for name, c := range map[string]struct {
		policy stet.Policy
		want   store.State
		result string
	}{
		"take over": {stet.Policy{Stale: stet.MayRunAgain()}, store.Completed, `{"Number":1}`},
		"fail":      {stet.Policy{Stale: stet.ItHappened(stet.Outcome{Failed: true})}, store.Failed, ""},
		"verify":    {stet.Policy{Verify: happened, Stale: stet.MayRunAgain()}, store.Completed, `{"Number":9}`},
	} {
		t.Run(name, func(t *testing.T) {
			c.policy.Lease = time.Second
			inMemory(t, stetwork.Options{}, c.policy, func(t *testing.T, b *bench) {
				must(t, stetwork.Handle(b.worker, "ship", func(context.Context, parcel) (receipt, error) { return receipt{1}, nil }))
				id := b.accept("ship", "a")
				b.dies(id)
				b.runs()
				st := b.await(id, c.want)
				if string(st.Outcome.Body) != c.result {
					t.Errorf("%s", st.Outcome.Body)
				}
			})
		})
	}
}

func TestCrashesCountUntilMaxAttempts(t *testing.T) {
	inMemory(t, stetwork.Options{MaxAttempts: 2}, stet.Policy{Lease: time.Second}, func(t *testing.T, b *bench) {
		must(t, stetwork.HandleIdempotent(b.worker, "ship", func(context.Context, parcel) (receipt, error) {
			t.Error("it ran")
			return receipt{}, nil
		}))
		id := b.accept("ship", "a")
		for range 2 {
			b.dies(id)
			time.Sleep(time.Minute)
			must(t, b.engine.Resolve(t.Context(), b.status(id).Record, "", stet.ItDidNotHappen()))
		}
		b.runs()
		if st := b.await(id, store.Failed); st.Record.Attempt != 3 {
			t.Error(st.Record.Attempt)
		}
	})
}

// troubled is a store of whose calls some fail, before or after they take effect.
type troubled struct {
	*memory.Store
	calls atomic.Int64
}

func (s *troubled) disturb(call func() error) error {
	n := s.calls.Add(1)
	if n%3 == 0 {
		return errors.New("the request was lost")
	}
	if err := call(); err != nil {
		return err
	}
	if n%4 == 0 {
		return errors.New("the reply was lost")
	}
	return nil
}

func (s *troubled) Take(ctx context.Context, req store.TakeRequest) (rec store.Record, err error) {
	err = s.disturb(func() (err error) {
		rec, err = s.Store.Take(ctx, req)
		return err
	})
	return rec, err
}

func (s *troubled) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	return s.disturb(func() error { return s.Store.Settle(ctx, c, out, keep) })
}

func (s *troubled) Return(ctx context.Context, c store.Claim, after time.Duration) error {
	return s.disturb(func() error { return s.Store.Return(ctx, c, after) })
}

func (s *troubled) Due(ctx context.Context, limit int, again time.Duration, names ...string) (recs []store.Record, err error) {
	err = s.disturb(func() (err error) { recs, err = s.Store.Due(ctx, limit, again, names...); return err })
	if err != nil {
		return nil, err
	}
	return recs, nil
}

func TestStoreErrorsLoseNoOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, &troubled{Store: memory.New(memory.Options{})}, stetwork.Options{}, stet.Policy{})
		var mu sync.Mutex
		shipped := map[string]int{}
		must(t, stetwork.Handle(b.worker, "ship", func(ctx context.Context, p parcel) (receipt, error) {
			if stet.FromContext(ctx).Attempt() == 1 {
				return receipt{}, stet.Retryable(errors.New("busy"))
			}
			mu.Lock()
			defer mu.Unlock()
			shipped[p.Book]++
			return receipt{}, nil
		}))
		b.runs()
		var ids []store.ID
		for i := range 100 {
			ids = append(ids, b.accept("ship", strconv.Itoa(i)))
		}
		for _, id := range ids {
			b.await(id, store.Completed)
		}
		mu.Lock()
		defer mu.Unlock()
		for book, n := range shipped {
			if n != 1 {
				t.Errorf("%s was shipped %d times", book, n)
			}
		}
	})
}

func TestUnreliableQueueRunsEachOperationOnce(t *testing.T) {
	var b *bench
	var mu sync.Mutex
	var n int
	lossy := stetwork.QueueFunc(func(ctx context.Context, items []stet.Item) error {
		for _, it := range items {
			mu.Lock()
			n++
			lost := n%3 == 0
			mu.Unlock()
			if lost {
				continue
			}
			for range 3 { // and it brings each three times
				go func() { _ = b.worker.Do(context.WithoutCancel(ctx), it) }()
			}
		}
		if n%5 == 0 {
			return errors.New("the broker hung up")
		}
		return nil
	})
	synctest.Test(t, func(t *testing.T) {
		b = newBench(t, memory.New(memory.Options{}), stetwork.Options{Queue: lossy, Dispatch: stetwork.DispatcherOptions{Again: time.Minute}}, stet.Policy{})
		ran := map[string]int{}
		must(t, stetwork.Handle(b.worker, "ship", func(_ context.Context, p parcel) (receipt, error) {
			mu.Lock()
			defer mu.Unlock()
			ran[p.Book]++
			return receipt{}, nil
		}))
		b.runs()
		var ids []store.ID
		for i := range 100 {
			ids = append(ids, b.accept("ship", strconv.Itoa(i)))
		}
		for _, id := range ids {
			b.await(id, store.Completed)
		}
		mu.Lock()
		defer mu.Unlock()
		for book, n := range ran {
			if n != 1 {
				t.Errorf("%s ran %d times", book, n)
			}
		}
	})
}

func TestRefusedItemsAreEnqueuedAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, memory.New(memory.Options{}), stetwork.Options{}, stet.Policy{})
		tries := 0
		handed := make(chan time.Time, 1)
		d, err := stetwork.NewDispatcher(b.engine, stetwork.QueueFunc(func(context.Context, []stet.Item) error {
			if tries++; tries < 4 {
				return errors.New("the broker is down")
			}
			handed <- time.Now()
			return nil
		}), stetwork.DispatcherOptions{Again: time.Hour, ErrorLog: quiet()})
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- d.Run(ctx) }()
		accepted := time.Now()
		b.accept("ship", "a")
		if took := (<-handed).Sub(accepted); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
		cancel()
		must(t, <-done)
	})
}

func TestDispatchersEnqueueDifferentItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(memory.Options{})
		b := newBench(t, st, stetwork.Options{}, stet.Policy{})
		for i := range 500 {
			b.accept("ship", strconv.Itoa(i))
		}
		var mu sync.Mutex
		seen := map[store.ID]int{}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 4 {
			e := newEngine(t, st, stet.Policy{})
			d, err := stetwork.NewDispatcher(e, stetwork.QueueFunc(func(_ context.Context, items []stet.Item) error {
				mu.Lock()
				defer mu.Unlock()
				for _, it := range items {
					seen[it.ID]++
				}
				return nil
			}), stetwork.DispatcherOptions{Batch: 10, ErrorLog: quiet()})
			must(t, err)
			wg.Go(func() { must(t, d.Run(ctx)) })
		}
		time.Sleep(time.Minute)
		cancel()
		wg.Wait()
		if len(seen) != 500 {
			t.Errorf("%d of 500 were passed", len(seen))
		}
		for id, n := range seen {
			if n != 1 {
				t.Errorf("%v was passed %d times", id, n)
			}
		}
	})
}

func TestWrongOptionsAreErrors(t *testing.T) {
	b := newBench(t, memory.New(memory.Options{}), stetwork.Options{}, stet.Policy{})
	ok := func(context.Context, parcel) (receipt, error) { return receipt{}, nil }
	must(t, stetwork.Handle(b.worker, "ship", ok))
	_, noEngine := stetwork.New(nil, stetwork.Options{})
	_, negative := stetwork.New(b.engine, stetwork.Options{Concurrency: -1})
	_, batch := stetwork.New(b.engine, stetwork.Options{Dispatch: stetwork.DispatcherOptions{Batch: store.MaxBrowse + 1}})
	_, noQueue := stetwork.NewDispatcher(b.engine, nil, stetwork.DispatcherOptions{})
	_, payload := stetwork.NewWork("ship", func() {})
	for name, err := range map[string]error{
		"no engine":       noEngine,
		"negative":        negative,
		"batch":           batch,
		"no queue":        noQueue,
		"payload":         payload,
		"a name twice":    stetwork.Handle(b.worker, "ship", ok),
		"no name":         stetwork.Handle(b.worker, "", ok),
		"no handler":      stetwork.Handle[parcel, receipt](b.worker, "nil", nil),
		"unknown handler": b.worker.Do(t.Context(), stet.Item{Name: "bill"}),
	} {
		if stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
