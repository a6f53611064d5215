package engine_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// forgetful is a store that can stop writing notes.
type forgetful struct {
	*memory.Store
	away atomic.Bool
}

func (f *forgetful) Save(ctx context.Context, c store.Claim, notes store.Notes, repeatable bool) error {
	if f.away.Load() {
		return errors.New("the store is away")
	}
	return f.Store.Save(ctx, c, notes, repeatable)
}

// charging begins the step "charge" of a run, which continues until end is called.
func charging(t *testing.T, run *stet.Lease) (end func()) {
	t.Helper()
	begun, over, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() { // until end
		defer close(ended)
		_, _ = stet.StepOnce(run.Context(), "charge", func(context.Context) (int, error) {
			close(begun)
			<-over
			return 1, nil
		})
	}()
	<-begun
	return func() { close(over); <-ended }
}

func TestStepThatIsStillOpenCannotBeSettled(t *testing.T) {
	for how, end := range map[string]func(context.Context, *stet.Lease) error{
		"completed": func(ctx context.Context, r *stet.Lease) error {
			return r.Settle(ctx, stet.Outcome{})
		},
		"failed":   func(ctx context.Context, r *stet.Lease) error { return r.Settle(ctx, stet.Outcome{Failed: true}) },
		"returned": func(ctx context.Context, r *stet.Lease) error { return r.Release(ctx, stet.Again{After: time.Minute}) },
		"released": func(ctx context.Context, r *stet.Lease) error { return r.Release(ctx, stet.Again{}) },
	} {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
		it := accept(t, e, op, parcel)
		run := take(t, e, it)
		over := charging(t, run)
		if run.Declared() != stet.MayHaveExecuted {
			t.Errorf("%s: the run does not declare an open step", how)
		}
		if err := end(t.Context(), run); stet.KindOf(err) != stet.KindUnknown {
			t.Errorf("%s while a step runs: %v", how, err)
		}
		over()
		if st := status(t, e, it.ID, store.Unknown); st.OpenStep != "charge" {
			t.Errorf("%s: the open step is %q", how, st.OpenStep)
		}
	}
}

func TestStepThatIsStillOpenCannotBeSettledInATransaction(t *testing.T) {
	st, e := bank(t)
	it := accept(t, e, op, parcel)
	run := take(t, e, it)
	over := charging(t, run)
	settle := func() error {
		return txOf(e, st).Finish(t.Context(), run, func(context.Context, *sql.Tx) (stet.Outcome, error) {
			return stet.Outcome{}, nil
		})
	}
	if err := settle(); stet.KindOf(err) != stet.KindUnknown {
		t.Errorf("while a step runs: %v", err)
	}
	over()
	if err := settle(); err != nil {
		t.Errorf("when it has ended: %v", err)
	}
	status(t, e, it.ID, store.Completed)
}

// The step had no effect, but the store does not save that.
func TestStep_StaysOpenIfItsRemovalIsNotStored(t *testing.T) {
	st := &forgetful{Store: memory.New(memory.Options{})}
	e := newEngine(t, st, stet.Options{StoreTimeout: 100 * time.Millisecond})
	_, err := stet.Do(t.Context(), e, op, func(ctx context.Context) (int, error) {
		return stet.StepOnce(ctx, "charge", func(context.Context) (int, error) {
			st.away.Store(true)
			return 0, stet.Retryable(errors.New("connection refused"))
		})
	})
	if stet.KindOf(err) != stet.KindUnknown {
		t.Errorf("%v", err)
	}
	status(t, e, e.ID(op.Scope, op.Key), store.Unknown)
}

func TestStepIsNotBegunWhenTheRunHasEnded(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	run := take(t, e, accept(t, e, op, parcel))
	complete(t, run, "x")
	charged := 0
	if _, err := stet.StepOnce(context.WithoutCancel(run.Context()), "charge", counted(&charged, nil)); stet.KindOf(err) != stet.KindInvalid || charged != 0 {
		t.Errorf("%v, charged %d times", err, charged)
	}
}

func TestOperationWithAnOpenStepCannotBeCancelled(t *testing.T) {
	st := memory.New(memory.Options{})
	e := newEngine(t, st, stet.Options{})
	it := accept(t, e, op, parcel)
	run := take(t, e, it)
	defer charging(t, run)()
	if err := st.Return(t.Context(), claimOf(t, st, run), 0); err != nil { // by an older version
		t.Fatal(err)
	}
	if _, err := e.Cancel(t.Context(), op.Scope, it.ID); stet.KindOf(err) != stet.KindUnknown {
		t.Errorf("cancelled: %v", err)
	}
	if st := status(t, e, it.ID, store.Accepted); st.OpenStep != "charge" {
		t.Errorf("the open step is %q", st.OpenStep)
	}
	// The next run declares it.
	again, err := newEngine(t, st, stet.Options{}).Take(t.Context(), it)
	if err != nil || again.Declared() != stet.MayHaveExecuted {
		t.Fatalf("the next run does not declare the open step: %v", err)
	}
	if err := again.Settle(t.Context(), stet.Outcome{}); stet.KindOf(err) != stet.KindUnknown {
		t.Errorf("the next run settled it: %v", err)
	}
}

func TestLongProgressLeavesNoStepOpen(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{})
	it := accept(t, e, op, parcel)
	run := take(t, e, it)
	_, err := stet.StepOnce(run.Context(), "charge", func(ctx context.Context) (int, error) {
		return 1, run.Progress(ctx, 0.5, strings.Repeat("\u00e9", store.MaxNotes))
	})
	if err != nil || run.Declared() == stet.MayHaveExecuted {
		t.Fatal(err)
	}
	if st := status(t, e, it.ID, store.Running); len(st.Progress.Message) != 1<<10 {
		t.Errorf("the message has %d bytes", len(st.Progress.Message))
	}
	complete(t, run, "x")
}
