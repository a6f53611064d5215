package engine_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// polled is a store that keeps work, cannot tell of changes, and counts reads.
type polled struct {
	store.WorkStore
	reads atomic.Int64
}

func (p *polled) Read(ctx context.Context, id store.ID) (store.Record, error) {
	p.reads.Add(1)
	return p.WorkStore.Read(ctx, id)
}

func TestAwaitReturnsAtOnce_RunEndsInThisProcess(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, e *stet.Engine, it stet.Item){
		"settled": func(t *testing.T, e *stet.Engine, it stet.Item) {
			run := take(t, e, it)
			time.Sleep(time.Minute)
			complete(t, run, "shipped")
		},
		"unknown": func(t *testing.T, e *stet.Engine, it stet.Item) {
			if err := take(t, e, it).MarkUnknown(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"cancelled": func(t *testing.T, e *stet.Engine, it stet.Item) {
			if _, err := e.Cancel(t.Context(), op.Scope, it.ID); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEngine(t, &polled{WorkStore: memory.New(memory.Options{})}, stet.Options{SweepEvery: -1})
				it := accept(t, e, op, parcel)
				told := make(chan time.Time, 3)
				for range cap(told) {
					go func() {
						if st, err := e.Await(t.Context(), op.Scope, it.ID); err != nil || st.Record.State == store.Accepted || st.Record.State == store.Running {
							t.Errorf("%+v, %v", st, err)
						}
						told <- time.Now()
					}()
				}
				time.Sleep(time.Minute)
				end(t, e, it)
				ended := time.Now()
				for range cap(told) {
					if late := (<-told).Sub(ended); late != 0 {
						t.Errorf("told %v after the end", late)
					}
				}
			})
		})
	}
}

// TestWaitersDoNotStarveTheStore: however many wait, in a second the store is
// asked about 1,000 times.
func TestWaitersDoNotStarveTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 2000
		s := &polled{WorkStore: memory.New(memory.Options{})}
		e := newEngine(t, s, stet.Options{SweepEvery: -1, MaxWaiters: waiters})
		it := accept(t, e, op, parcel)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range waiters {
			wg.Go(func() { _, _ = e.Await(ctx, op.Scope, it.ID) })
		}
		time.Sleep(20 * time.Second)
		before := s.reads.Load()
		time.Sleep(20 * time.Second)
		if a := (s.reads.Load() - before) / 20; a > 1200 || a < 500 {
			t.Errorf("%d reads a second; want about 1,000", a)
		}
		cancel()
		wg.Wait()
	})
}
