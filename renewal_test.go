package stet

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// The renewal loop ends when there are no runs. A run that is added at the same moment
// starts it again; otherwise its lease would expire while the handler runs.
func TestEveryRunHasARenewalLoop(t *testing.T) {
	e, err := New(memory.New(memory.Options{}), Options{SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !done.Load() {
			if e.renewer.active.Load() {
				e.renewer.stopIfIdle() // as the loop does when it has seen no run
			}
		}
	})
	for i := range 20_000 {
		run, err := e.Begin(context.Background(), Op{Scope: "s", Key: strconv.Itoa(i)})
		if err != nil {
			t.Fatal(err)
		}
		e.renewer.mu.Lock() // no rest is in progress
		if !e.renewer.active.Load() {
			t.Errorf("run %d has no renewal loop", i)
		}
		e.renewer.mu.Unlock()
		if err := run.Release(context.Background(), Again{Forget: true}); err != nil {
			t.Fatal(err)
		}
	}
	done.Store(true)
	wg.Wait()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// lost counts the runs that an engine has cancelled.
type lost struct{ n atomic.Int64 }

func (l *lost) Observe(_ context.Context, ev observe.Event) {
	if ev.Kind == observe.LeaseLost || ev.Kind == observe.TimedOut || ev.Kind == observe.CutOff {
		l.n.Add(1)
	}
}

// The lease renewer found that a lease ran out, and then the run is settled.
func TestRunThatHasEndedIsNotLost(t *testing.T) {
	var seen lost
	e, err := New(memory.New(memory.Options{}), Options{SweepEvery: -1, Observer: &seen})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	for i, want := range []int64{0, 1} {
		run, err := e.Begin(context.Background(), Op{Scope: "s", Key: strconv.Itoa(i)})
		if err != nil {
			t.Fatal(err)
		}
		if want == 0 {
			err = run.Settle(context.Background(), Outcome{})
		}
		e.renewer.lose(context.Background(), run.Run, ErrLeaseLost)
		e.renewer.lose(context.Background(), run.Run, ErrLeaseLost) // another look
		if err != nil || seen.n.Load() != want {
			t.Errorf("run %d: %d are lost, want %d; %v", i, seen.n.Load(), want, err)
		}
	}
}

// slowSettle is a store in which a settle takes two minutes.
type slowSettle struct {
	*memory.Store
	extend func(claims []store.Claim) ([]store.Claim, error)
}

func (s *slowSettle) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	time.Sleep(2 * time.Minute)
	return s.Store.Settle(context.WithoutCancel(ctx), c, out, keep)
}

func (s *slowSettle) Extend(_ context.Context, claims []store.Claim, _ time.Duration) ([]store.Claim, error) {
	return s.extend(claims)
}

func TestRunBeingSettledIsNotLost(t *testing.T) {
	for name, extend := range map[string]func([]store.Claim) ([]store.Claim, error){
		"its time is over":         func([]store.Claim) ([]store.Claim, error) { return nil, nil },
		"its lease is not renewed": func([]store.Claim) ([]store.Claim, error) { return nil, context.DeadlineExceeded },
		"its lease is lost":        func(claims []store.Claim) ([]store.Claim, error) { return claims, nil },
	} {
		synctest.Test(t, func(t *testing.T) {
			var seen lost
			policy := Policy{RunTimeout: time.Hour}
			if name == "its time is over" {
				policy.RunTimeout = time.Minute
			}
			e, err := New(&slowSettle{memory.New(memory.Options{}), extend}, Options{SweepEvery: -1, Observer: &seen, Policy: policy})
			if err != nil {
				t.Fatal(err)
			}
			run, err := e.Begin(t.Context(), Op{Scope: "s", Key: "k"})
			if err != nil {
				t.Fatal(err)
			}
			if err := run.Settle(t.Context(), Outcome{}); err != nil || seen.n.Load() != 0 {
				t.Errorf("%s: %v, %d runs lost; want it settled, and none lost", name, err, seen.n.Load())
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
