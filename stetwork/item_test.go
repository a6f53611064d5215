package stetwork_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

func TestRecordDecidesTheHandler(t *testing.T) {
	inMemory(t, stetwork.Options{}, stet.Policy{}, func(t *testing.T, b *bench) {
		ran := make(map[string]int)
		for _, name := range []string{"ship", "refund"} {
			must(t, stetwork.Handle(b.worker, name, func(context.Context, parcel) (receipt, error) { ran[name]++; return receipt{}, nil }))
		}
		id := b.accept("ship", "Emma")
		must(t, b.worker.Do(context.Background(), stet.Item{ID: id, Name: "refund"})) // late, or forged
		b.await(id, store.Completed)
		other := b.accept("elsewhere", "Persuasion")
		if err := b.worker.Do(context.Background(), stet.Item{ID: other, Name: "refund"}); stet.KindOf(err) != stet.KindInvalid {
			t.Errorf("%v; want that nothing here handles it", err)
		}
		b.await(other, store.Accepted)
		time.Sleep(time.Hour)
		run, err := b.engine.Take(t.Context(), stet.Item{ID: other})
		must(t, err)
		if run.Counted != 1 { // there was no run
			t.Errorf("%d attempts count", run.Counted)
		}
		if ran["ship"] != 1 || ran["refund"] != 0 {
			t.Errorf("shipped: %v", ran)
		}
	})
}

func TestRecordDecidesThePolicy(t *testing.T) {
	e, err := stet.New(memory.New(memory.Options{}), stet.Options{
		Policy: stet.Policy{RunTimeout: time.Second}, Classes: map[string]stet.Policy{"slow": {RunTimeout: time.Hour}},
	})
	must(t, err)
	t.Cleanup(func() { _ = e.Close() })
	w, err := stetwork.New(e, stetwork.Options{ErrorLog: quiet()})
	must(t, err)
	var within time.Duration
	must(t, stetwork.Handle(w, "ship", func(ctx context.Context, _ []byte) (string, error) {
		end, _ := ctx.Deadline()
		within = time.Until(end)
		return "", nil
	}))
	st, err := e.Accept(context.Background(), stet.Op{Scope: "shop", Key: "1", Class: "slow"}, stet.Work{Name: "ship"})
	must(t, err)
	must(t, w.Do(context.Background(), stet.Item{ID: st.Record.ID, Name: "ship"}))
	if within < time.Minute {
		t.Errorf("an operation of a class that may take an hour had %v", within)
	}
}

func TestNoRunBeginsAfterTheContextHasEnded(t *testing.T) {
	inMemory(t, stetwork.Options{}, stet.Policy{}, func(t *testing.T, b *bench) {
		must(t, stetwork.Handle(b.worker, "ship", func(context.Context, parcel) (string, error) { return "", nil }))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		for i := range 50 {
			id := b.accept("ship", strconv.Itoa(i))
			if err := b.worker.Do(ctx, stet.Item{ID: id, Name: "ship"}); stet.KindOf(err) != stet.KindClosed || b.status(id).Record.Attempt != 0 {
				t.Fatalf("%v, attempt %d", err, b.status(id).Record.Attempt)
			}
		}
	})
}

func TestPayloadThatDoesNotFitIsNotInTheLog(t *testing.T) {
	var log bytes.Buffer
	w, err := stetwork.New(newEngine(t, memory.New(memory.Options{}), stet.Policy{}), stetwork.Options{ErrorLog: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	must(t, stetwork.Handle(w, "charge", func(context.Context, struct {
		Card  int32
		Until time.Time
	}) (string, error) {
		return "", nil
	}))
	for i, payload := range []string{`{"Card":4111111111111111}`, `{"Until":"4111111111111111"}`, `4111111111111111 x`} {
		st, err := w.Engine().Accept(context.Background(), stet.Op{Scope: "shop", Key: strconv.Itoa(i)}, stet.Work{Name: "charge", Payload: []byte(payload)})
		must(t, err)
		must(t, w.Do(context.Background(), stet.Item{ID: st.Record.ID, Name: "charge"}))
	}
	if strings.Contains(log.String(), "4111") || strings.Count(log.String(), "the payload does not match the handler's type") != 3 {
		t.Errorf("%s", log.String())
	}
}

// Two services share a store: what one has no handler for it leaves to the other.
func TestWorkerTakesOnlyItsNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Options{})
		ours := newBench(t, store, stetwork.Options{}, stet.Policy{})
		theirs := newBench(t, store, stetwork.Options{}, stet.Policy{})
		ran := make(chan string, 100)
		for b, name := range map[*bench]string{ours: "ship", theirs: "bill"} {
			if err := stetwork.Handle(b.worker, name, func(context.Context, parcel) (receipt, error) { ran <- name; return receipt{}, nil }); err != nil {
				t.Fatal(err)
			}
		}
		defer ours.runs()()
		synctest.Wait()
		for i := range 50 { // while only one of them runs
			_, err := ours.engine.Accept(t.Context(), stet.Op{Scope: "shop", Key: fmt.Sprint(i)}, stet.Work{Name: "bill", Payload: []byte("{}")})
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		began := time.Now()
		defer theirs.runs()()
		for range 50 {
			if name := <-ran; name != "bill" {
				t.Fatalf("%s ran", name)
			}
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %v until all had run", took)
		}
	})
}

// TestAwaitKeepsRunsFromBeginning: a run that waits would be left behind by a process that
// dies in the meantime.
func TestAwaitKeepsRunsFromBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := make(chan struct{})
		b := newBench(t, memory.New(memory.Options{}), stetwork.Options{Await: func(ctx context.Context) error {
			select {
			case <-back:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}, stet.Policy{})
		must(t, stetwork.Handle(b.worker, "ship", func(context.Context, parcel) (string, error) { return "done", nil }))
		id := b.accept("ship", "k")
		b.runs()
		time.Sleep(time.Hour)
		synctest.Wait()
		if rec, err := b.engine.Store().Read(t.Context(), id); err != nil || rec.State != store.Accepted || rec.Attempt != 0 {
			t.Errorf("while it waits: %v, attempt %d, %v", rec.State, rec.Attempt, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := b.worker.Do(ctx, stet.Item{ID: id, Name: "ship"}); stet.KindOf(err) != stet.KindClosed {
			t.Errorf("a queue's item: %v", err)
		}
		close(back)
		time.Sleep(time.Minute)
		synctest.Wait()
		if rec, err := b.engine.Store().Read(t.Context(), id); err != nil || rec.State != store.Completed || rec.Attempt != 1 {
			t.Errorf("after that: %v, attempt %d, %v", rec.State, rec.Attempt, err)
		}
	})
}

// TestOutsideOperationEndsBeforeItRuns: one whose cancellation was asked for, and one whose
// runs have all died, ends also where a service settles.
func TestOutsideOperationEndsBeforeItRuns(t *testing.T) {
	inMemory(t, stetwork.Options{MaxAttempts: 1}, stet.Policy{Outside: true}, func(t *testing.T, b *bench) {
		runs := 0
		must(t, stetwork.HandleOutcome(b.worker, "ship", true, func(ctx context.Context, run *stet.Lease) (stet.Outcome, error) {
			runs++
			if _, err := b.engine.Cancel(ctx, "shop", run.ID()); err != nil {
				t.Error(err)
			}
			return stet.Outcome{}, stetwork.Again(errors.New("not reached"), func(time.Duration) stet.Again { return stet.Again{Uncounted: true} })
		}))
		id := b.accept("ship", "cancelled")
		dead := b.accept("ship", "dead")
		if _, err := b.engine.Store().(store.WorkStore).Take(t.Context(), store.TakeRequest{ID: dead, Owner: store.NewOwner(), Lease: time.Second, Repeatable: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		b.runs()
		time.Sleep(time.Minute)
		synctest.Wait()
		if st := b.status(id); st.Record.State != store.Failed || st.Outcome.Reason != store.ReasonCancelled || runs != 1 {
			t.Errorf("cancelled: %v, attempt %d, after %d runs", st.Record.State, st.Record.Attempt, runs)
		}
		if st := b.status(dead); st.Record.State != store.Failed {
			t.Errorf("exhausted: %v, attempt %d", st.Record.State, st.Record.Attempt)
		}
	})
}
