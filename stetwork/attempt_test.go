package stetwork_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
)

var errBroken = errors.New("the lorry broke down")

func TestAcceptedOperationRunsOnce(t *testing.T) {
	inMemory(t, stetwork.Options{}, stet.Policy{}, func(t *testing.T, b *bench) {
		var ran atomic.Int64
		must(t, stetwork.Handle(b.worker, "ship", func(_ context.Context, p parcel) (receipt, error) {
			ran.Add(1)
			return receipt{Number: len(p.Book)}, nil
		}))
		b.runs()
		id := b.accept("ship", "Emma")
		st := b.await(id, store.Completed)
		var got receipt
		if err := st.Outcome.Decode(&got); err != nil || got.Number != 4 {
			t.Fatal(got, err)
		}
		if again := b.accept("ship", "Emma"); again != id {
			t.Fatal("another operation")
		}
		time.Sleep(time.Hour)
		if ran.Load() != 1 {
			t.Fatalf("it ran %d times", ran.Load())
		}
	})
}

func TestOutcomeEqualsThatOfDo(t *testing.T) {
	inMemory(t, stetwork.Options{}, stet.Policy{}, func(t *testing.T, b *bench) {
		must(t, stetwork.Handle(b.worker, "ship", func(context.Context, parcel) (receipt, error) { return receipt{7}, nil }))
		must(t, stetwork.Handle(b.worker, "lose", func(context.Context, parcel) (receipt, error) { return receipt{}, errBroken }))
		b.runs()
		b.await(b.accept("ship", "a"), store.Completed)
		b.await(b.accept("lose", "b"), store.Failed)
		do := func(key string) (stet.Result[receipt], error) {
			return stet.Do(t.Context(), b.engine, stet.Op{Scope: "shop", Key: key}, func(context.Context) (receipt, error) {
				t.Error("it ran again")
				return receipt{}, nil
			})
		}
		if res, err := do("a"); err != nil || res.Value.Number != 7 || !res.Replayed {
			t.Fatal(res, err)
		}
		if _, err := do("b"); stet.KindOf(err) != stet.KindFailed || errors.Unwrap(err) != nil && err.Error() == "" {
			t.Fatal(err)
		}
	})
}

// flaky returns a handler that fails with err until the n-th attempt.
func flaky(n int, ran *atomic.Int64, err error) func(context.Context, parcel) (receipt, error) {
	return func(context.Context, parcel) (receipt, error) {
		if ran.Add(1) < int64(n) {
			return receipt{}, err
		}
		return receipt{n}, nil
	}
}

func TestAttemptsAreSpacedAndLimited(t *testing.T) {
	var spaced []time.Duration
	o := stetwork.Options{MaxAttempts: 4, Backoff: func(n int) time.Duration {
		spaced = append(spaced, time.Duration(n)*time.Minute)
		return time.Duration(n) * time.Minute
	}}
	inMemory(t, o, stet.Policy{}, func(t *testing.T, b *bench) {
		var at []time.Time
		must(t, stetwork.HandleIdempotent(b.worker, "ship", func(context.Context, parcel) (receipt, error) {
			at = append(at, time.Now())
			return receipt{}, fmt.Errorf("attempt %d: %w", len(at), errBroken)
		}))
		b.runs()
		b.failed(b.accept("ship", "a"), "attempt 4: the lorry broke down")
		for i := range spaced {
			if d := at[i+1].Sub(at[i]); d < spaced[i] || d > spaced[i]+3*time.Second {
				t.Errorf("attempt %d came %v after the one before; want %v", i+2, d, spaced[i])
			}
		}
		if len(at) != 4 || len(spaced) != 3 {
			t.Fatal(len(at), len(spaced))
		}
	})
}

func TestOpenStep_IsNotRepeatedByAnIdempotentHandler(t *testing.T) {
	inMemory(t, stetwork.Options{}, stet.Policy{}, func(t *testing.T, b *bench) {
		var charged, ran atomic.Int64
		must(t, stetwork.HandleIdempotent(b.worker, "ship", func(ctx context.Context, _ parcel) (receipt, error) {
			ran.Add(1)
			_, err := stet.StepOnce(ctx, "charge", func(context.Context) (int, error) {
				charged.Add(1)
				return 0, errBroken
			})
			return receipt{}, err
		}))
		b.runs()
		id := b.accept("ship", "a")
		b.await(id, store.Unknown)
		time.Sleep(time.Hour)
		st := b.status(id)
		if st.Record.State != store.Unknown || charged.Load() != 1 || ran.Load() != 1 || st.OpenStep != "charge" {
			t.Fatalf("%v, charged %d times in %d runs, unknown %q", st.Record.State, charged.Load(), ran.Load(), st.OpenStep)
		}
	})
}

func TestOperationWithAnOpenStepIsNeverFailed(t *testing.T) {
	inMemory(t, stetwork.Options{MaxAttempts: 1}, stet.Policy{}, func(t *testing.T, b *bench) {
		must(t, stetwork.HandleIdempotent(b.worker, "ship", func(ctx context.Context, _ parcel) (receipt, error) {
			_, err := stet.StepOnce(ctx, "charge", func(context.Context) (int, error) { return 0, errBroken })
			return receipt{}, err
		}))
		b.runs()
		id := b.accept("ship", "a")
		st := b.await(id, store.Unknown)
		// The store is changed without the engine, and the attempts are used up.
		must(t, b.store.(store.WorkStore).Return(t.Context(), st.Record.Claim(), 0))
		time.Sleep(time.Hour)
		if st := b.status(id); st.Record.State != store.Unknown || st.Record.Attempt != 2 {
			t.Fatalf("%v, attempt %d", st.Record.State, st.Record.Attempt)
		}
	})
}

func TestResolvedStepRunsAgain(t *testing.T) {
	inMemory(t, stetwork.Options{}, stet.Policy{}, func(t *testing.T, b *bench) {
		var reserved, charged atomic.Int32
		must(t, stetwork.Handle(b.worker, "ship", func(ctx context.Context, _ parcel) (receipt, error) {
			if _, err := stet.StepOnce(ctx, "reserve", func(context.Context) (int, error) { reserved.Add(1); return 0, nil }); err != nil {
				return receipt{}, err
			}
			n, err := stet.StepOnce(ctx, "charge", func(context.Context) (int, error) {
				if n := charged.Add(1); n > 1 {
					return int(n), nil
				}
				return 0, errBroken
			})
			return receipt{n}, err
		}))
		b.runs()
		id := b.accept("ship", "a")
		st := b.await(id, store.Unknown)
		must(t, b.engine.Resolve(t.Context(), st.Record, "", stet.ItDidNotHappen()))
		st = b.await(id, store.Completed, store.Failed, store.Unknown)
		if st.Record.State != store.Completed || string(st.Outcome.Body) != `{"Number":2}` || reserved.Load() != 1 || charged.Load() != 2 {
			t.Fatalf("%v with %s, reserved %d times, charged %d times", st.Record.State, st.Outcome.Body, reserved.Load(), charged.Load())
		}
	})
}

func TestRunTimeoutIsUnknownUnlessIdempotent(t *testing.T) {
	inMemory(t, stetwork.Options{MaxAttempts: 2}, stet.Policy{RunTimeout: time.Minute}, func(t *testing.T, b *bench) {
		h := func(ctx context.Context, _ parcel) (receipt, error) {
			<-ctx.Done()
			return receipt{}, context.Cause(ctx)
		}
		must(t, stetwork.Handle(b.worker, "plain", h))
		must(t, stetwork.HandleIdempotent(b.worker, "idempotent", h))
		b.runs()
		plain, idempotent := b.accept("plain", "a"), b.accept("idempotent", "b")
		b.await(plain, store.Unknown)
		b.failed(idempotent, stet.ErrRunTimeout.Error())
	})
}

func TestCancellationEndsTheRunAndIsItsOutcome(t *testing.T) {
	for _, register := range []func(*stetwork.Worker, string, func(context.Context, parcel) (receipt, error)) error{stetwork.Handle[parcel, receipt], stetwork.HandleIdempotent[parcel, receipt]} {
		inMemory(t, stetwork.Options{}, stet.Policy{}, func(t *testing.T, b *bench) {
			began := make(chan struct{})
			must(t, register(b.worker, "ship", func(ctx context.Context, _ parcel) (receipt, error) {
				close(began)
				<-ctx.Done()
				return receipt{}, context.Cause(ctx)
			}))
			b.runs()
			id := b.accept("ship", "a")
			<-began
			if _, err := b.engine.Cancel(t.Context(), "shop", id); err != nil {
				t.Fatal(err)
			}
			asked := time.Now()
			b.failed(id, stet.ErrCancelled.Error())
			if took := time.Since(asked); took > 5*time.Second {
				t.Fatalf("it took %v", took)
			}
		})
	}
}

func TestCancelledOperationIsNotRetried(t *testing.T) {
	// The handler ends by itself before anybody has looked for a cancellation.
	inMemory(t, stetwork.Options{CancelEvery: -1}, stet.Policy{}, func(t *testing.T, b *bench) {
		var ran atomic.Int64
		began, end := make(chan struct{}), make(chan struct{})
		must(t, stetwork.HandleIdempotent(b.worker, "ship", func(context.Context, parcel) (receipt, error) {
			ran.Add(1)
			close(began)
			<-end
			return receipt{}, errBroken
		}))
		b.runs()
		id := b.accept("ship", "a")
		<-began
		if _, err := b.engine.Cancel(t.Context(), "shop", id); err != nil {
			t.Fatal(err)
		}
		close(end)
		b.failed(id, stet.ErrCancelled.Error())
		if ran.Load() != 1 {
			t.Fatal(ran.Load())
		}
	})
}

// A queue that no longer waits for the run, as River at the end of a job's time, has not
// ended it.
func TestCancellationWorksAfterTheQueueTimedOut(t *testing.T) {
	inMemory(t, stetwork.Options{CancelEvery: -1}, stet.Policy{}, func(t *testing.T, b *bench) {
		id := b.accept("ship", "a")
		ctx, giveUp := context.WithCancel(t.Context())
		must(t, stetwork.HandleIdempotent(b.worker, "ship", func(context.Context, parcel) (receipt, error) {
			if _, err := b.engine.Cancel(t.Context(), "shop", id); err != nil {
				t.Error(err)
			}
			giveUp()
			return receipt{}, errBroken
		}))
		must(t, b.worker.Do(ctx, stet.Item{ID: id, Name: "ship"}))
		if st := b.status(id); st.Record.State != store.Failed || st.Outcome.Reason != store.ReasonCancelled {
			t.Errorf("it is %v with %+v; want it failed, as cancelled", st.Record.State, st.Outcome)
		}
	})
}

func TestCancelledExpiredRunDoesNotRunAgain(t *testing.T) {
	inMemory(t, stetwork.Options{RecoverEvery: time.Second}, stet.Policy{Lease: time.Second}, func(t *testing.T, b *bench) {
		id := b.accept("ship", "a")
		b.dies(id)
		if _, err := b.engine.Cancel(t.Context(), "shop", id); err != nil {
			t.Fatal(err)
		}
		must(t, stetwork.HandleIdempotent(b.worker, "ship", func(context.Context, parcel) (receipt, error) {
			t.Error("it ran")
			return receipt{}, nil
		}))
		b.runs()
		b.failed(id, stet.ErrCancelled.Error())
	})
}

func TestFinishedRunIsCompletedDespiteCancellation(t *testing.T) {
	inMemory(t, stetwork.Options{}, stet.Policy{}, func(t *testing.T, b *bench) {
		must(t, stetwork.Handle(b.worker, "ship", func(ctx context.Context, _ parcel) (receipt, error) {
			<-ctx.Done()
			return receipt{1}, nil
		}))
		b.runs()
		id := b.accept("ship", "a")
		b.await(id, store.Running)
		if _, err := b.engine.Cancel(t.Context(), "shop", id); err != nil {
			t.Fatal(err)
		}
		b.await(id, store.Completed)
	})
}

func TestUndecodablePayloadIsRetried(t *testing.T) {
	inMemory(t, stetwork.Options{MaxAttempts: 3}, stet.Policy{}, func(t *testing.T, b *bench) {
		must(t, stetwork.Handle(b.worker, "ship", func(context.Context, parcel) (receipt, error) {
			t.Error("it ran")
			return receipt{}, nil
		}))
		b.runs()
		id := b.acceptOf("ship", "a", []int{1})
		st := b.await(id, store.Failed)
		if st.Record.Attempt != 3 {
			t.Fatal(st.Record.Attempt)
		}
	})
}

func TestBytesAndRawJSONAreUnchanged(t *testing.T) {
	inMemory(t, stetwork.Options{}, stet.Policy{}, func(t *testing.T, b *bench) {
		must(t, stetwork.Handle(b.worker, "bytes", func(_ context.Context, p []byte) (string, error) { return string(p), nil }))
		must(t, stetwork.Handle(b.worker, "raw", func(_ context.Context, p json.RawMessage) (json.RawMessage, error) { return p, nil }))
		b.runs()
		for name, payload := range map[string]string{"bytes": "{ not JSON\x00", "raw": `{"b":1.0,"a":2}`} {
			st, err := b.engine.Accept(t.Context(), stet.Op{Scope: "shop", Key: name}, stet.Work{Name: name, Payload: []byte(payload)})
			must(t, err)
			out := b.await(st.Record.ID, store.Completed).Outcome
			want := payload
			if name == "bytes" {
				quoted, _ := json.Marshal(payload)
				want = string(quoted)
			}
			if string(out.Body) != want {
				t.Errorf("%s: %q", name, out.Body)
			}
		}
	})
}

func TestProgressIsVisibleDuringTheRun(t *testing.T) {
	inMemory(t, stetwork.Options{}, stet.Policy{}, func(t *testing.T, b *bench) {
		end := make(chan struct{})
		must(t, stetwork.Handle(b.worker, "ship", func(ctx context.Context, _ parcel) (receipt, error) {
			err := stet.FromContext(ctx).Progress(ctx, 0.5, "half way")
			<-end
			return receipt{}, err
		}))
		b.runs()
		id := b.accept("ship", "a")
		synctest.Wait()
		if st := b.status(id); st.Progress.Fraction != 0.5 || st.Progress.Message != "half way" {
			t.Fatalf("%+v", st.Progress)
		}
		close(end)
		b.await(id, store.Completed)
	})
}

// dies has an operation's run die: another process takes it and is no more.
func (b *bench) dies(id store.ID) {
	b.t.Helper()
	st := b.status(id)
	other, err := stet.New(b.store, stet.Options{Policy: stet.Policy{Lease: time.Second}, SweepEvery: -1})
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := other.Take(b.t.Context(), stet.Item{ID: id, Name: st.Name}); err != nil {
		b.t.Fatal(err)
	}
	_ = other.Close()
}

// Three copies of an item in a queue are one run, until its backoff is over.
func TestCopiesInAQueueWaitForTheBackoff(t *testing.T) {
	inMemory(t, stetwork.Options{Backoff: func(int) time.Duration { return time.Hour }, MaxAttempts: 3}, stet.Policy{}, func(t *testing.T, b *bench) {
		var ran atomic.Int64
		must(t, stetwork.Handle(b.worker, "ship", flaky(10, &ran, stet.Retryable(errors.New("busy")))))
		id := b.accept("ship", "a")
		for range 3 {
			must(t, b.worker.Do(t.Context(), stet.Item{ID: id, Name: "ship"}))
		}
		if st := b.status(id); ran.Load() != 1 || st.Record.State != store.Accepted {
			t.Errorf("%d runs, %v", ran.Load(), st.Record.State)
		}
	})
}
