package stetwork_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/storetest"
)

// load test is what befalls some processes that run the operations of one store: calls and
// answers are lost, a process is cut off while its handlers continue, or ends, and queues
// bring items again, under other names too.
type loadTest struct {
	t     *testing.T
	store *memory.Store
	sees  *stet.Engine // from where there is no load test
	items []stet.Item
	end   time.Time
	calm  atomic.Bool

	mu      sync.Mutex
	r       *rand.Rand
	effects map[store.ID]int    // of plain operations, and charges of others
	told    map[store.ID]string // the outcome that was seen
}

func TestLoad_NoEffectTwiceAndStableOutcomes(t *testing.T) {
	for seed := range int64(15) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newLoadTest(t, seed)
				var wg sync.WaitGroup
				for range 3 {
					wg.Go(s.processes)
				}
				for time.Now().Before(s.end) {
					s.look()
					time.Sleep(time.Second)
					if s.n(60) == 0 {
						_, _ = s.sees.Cancel(context.Background(), "shop", s.items[s.n(len(s.items))].ID)
					}
				}
				s.calm.Store(true)
				wg.Wait()
				s.look()
				s.judge()
			})
		})
	}
}

func newLoadTest(t *testing.T, seed int64) *loadTest {
	s := &loadTest{t: t, store: memory.New(memory.Options{}), end: time.Now().Add(15 * time.Minute), r: rand.New(rand.NewSource(seed)), //nolint:gosec // repeatable
		effects: make(map[store.ID]int), told: make(map[store.ID]string)}
	s.sees = newEngine(t, s.store, stet.Policy{})
	for i := range 16 {
		for _, name := range []string{"plain", "idempotent"} {
			st, err := s.sees.Accept(t.Context(), stet.Op{Scope: "shop", Key: fmt.Sprint(name, i)}, stet.Work{Name: name, Payload: []byte(`{}`)})
			must(t, err)
			s.items = append(s.items, stet.Item{ID: st.Record.ID, Name: name})
		}
	}
	return s
}

func (s *loadTest) n(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.r.Intn(n)
}

// pause does not obey that its context ends.
func (s *loadTest) pause() {
	d := time.Duration(s.n(4000)) * time.Millisecond
	if s.n(5) == 0 {
		d = time.Duration(s.n(60)) * time.Second
	}
	time.Sleep(d)
}

// happens is the effect of an operation.
func (s *loadTest) happens(run *stet.Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.effects[run.ID()]++; s.effects[run.ID()] > 1 {
		s.t.Errorf("attempt %d of %v has had the effect again", run.Attempt(), run.ID())
	}
}

func (s *loadTest) plain(ctx context.Context, _ parcel) (string, error) {
	run := stet.FromContext(ctx)
	if s.n(6) == 0 {
		return "", stet.Retryable(errors.New("no lorry"))
	}
	s.pause()
	s.happens(run)
	s.pause()
	switch s.n(6) {
	case 0:
		panic("the lorry is on fire")
	case 1:
		run.Declare(stet.MayHaveExecuted, 0)
	case 2:
		return "", errBroken
	}
	return "shipped", nil
}

func (s *loadTest) idempotent(ctx context.Context, _ parcel) (string, error) {
	run := stet.FromContext(ctx)
	s.pause()
	_ = run.Progress(ctx, 0.5, "half way")
	v, err := stet.StepOnce(ctx, "charge", func(context.Context) (string, error) {
		if s.n(5) == 0 {
			return "", stet.Retryable(errors.New("busy"))
		}
		s.pause()
		s.happens(run)
		switch s.n(12) {
		case 0:
			panic("after the charge")
		case 1:
			return "", errBroken
		}
		return "charged", nil
	})
	if err != nil {
		return "", err
	}
	s.pause()
	switch s.n(5) {
	case 0:
		return "", errBroken
	case 1:
		panic("before the end")
	}
	return v, nil
}

// processes are one after the other. The last sees the calm.
func (s *loadTest) processes() {
	for time.Now().Before(s.end) {
		s.process(time.Duration(30+s.n(120)) * time.Second)
	}
	s.process(2 * time.Hour)
}

func (s *loadTest) process(life time.Duration) {
	var cut atomic.Bool
	store := storetest.Faulty(s.store, func(storetest.Call) storetest.Fault {
		switch n := s.n(12); {
		case s.calm.Load():
			return storetest.NoFault
		case cut.Load() || n == 0:
			return storetest.FailBefore
		case n == 1:
			return storetest.FailAfter
		}
		return storetest.NoFault
	})
	e, err := stet.New(store, stet.Options{StoreTimeout: 5 * time.Second, SweepEvery: 20 * time.Second, Policy: stet.Policy{Lease: 10 * time.Second, RunTimeout: 3 * time.Minute}})
	must(s.t, err)
	w, err := stetwork.New(e, stetwork.Options{Concurrency: 3, MaxAttempts: 500, Drain: -1, ErrorLog: quiet(), Backoff: func(int) time.Duration { return time.Second }})
	must(s.t, err)
	must(s.t, stetwork.Handle(w, "plain", s.plain))
	must(s.t, stetwork.HandleIdempotent(w, "idempotent", s.idempotent))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Run(ctx)
	}()
	for over := time.Now().Add(life); time.Now().Before(over); time.Sleep(time.Duration(1+s.n(10)) * time.Second) {
		it := s.items[s.n(len(s.items))]
		if s.n(8) == 0 {
			it.Name = "plain" // forged, or of long ago
		}
		switch s.n(6) {
		case 0:
			cut.Store(true)
			time.Sleep(time.Duration(s.n(40)) * time.Second)
			cut.Store(false)
		case 1, 2:
			go func() { _ = w.Do(ctx, it) }()
		}
	}
	cut.Store(s.n(2) == 0)
	if s.n(2) == 0 {
		_ = e.Close()
	}
	stop()
	<-done
	_ = e.Close()
	_ = w.Shutdown(context.Background())
}

// look notes the outcomes that stand.
func (s *loadTest) look() {
	for _, it := range s.items {
		st, err := s.sees.Lookup(context.Background(), it.ID)
		must(s.t, err)
		now := ""
		if st.Record.State.Settled() {
			now = fmt.Sprint(st.Record.State, string(st.Outcome.Body))
		}
		if was := s.told[it.ID]; was != "" && was != now {
			s.t.Errorf("%v was %s, and is %s (%v)", it, was, now, st.Record.State)
		}
		s.told[it.ID] = now
	}
}

// judge looks at what there is long after the load test.
func (s *loadTest) judge() {
	ended := 0
	for _, it := range s.items {
		st, err := s.sees.Lookup(context.Background(), it.ID)
		must(s.t, err)
		switch state := st.Record.State; {
		case state == store.Completed && s.effects[it.ID] != 1:
			s.t.Errorf("%v is completed, and its effect was there %d times", it, s.effects[it.ID])
		case state == store.Failed && string(st.Outcome.Body) == `"`+stet.ErrCancelled.Error()+`"`:
		case state == store.Running || state == store.Accepted:
			s.t.Errorf("%v is %v two hours after the loadTest, in attempt %d", it, state, st.Record.Attempt)
		case state == store.Completed:
			ended++
		}
	}
	if ended == 0 {
		s.t.Error(errors.New("nothing was completed"))
	}
}
