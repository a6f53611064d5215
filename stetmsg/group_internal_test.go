package stetmsg

import (
	"context"
	"io"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// The first message is handled at once and alone. Messages that arrive during its run are grouped.
func TestOnlyWaitingMessagesAreGrouped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var sizes []int
		g := &groups[int]{size: 4, lanes: 1, run: func(_ context.Context, ops []stet.Op, _ []int) []*stet.Lease {
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			sizes = append(sizes, len(ops))
			return make([]*stet.Lease, len(ops))
		}}
		began := time.Now()
		run, done := g.join(t.Context(), stet.Op{}, 0)
		if run != nil || time.Since(began) != 0 {
			t.Errorf("the first waited for %v", time.Since(began))
		}
		var wg sync.WaitGroup
		for i := range 9 {
			wg.Go(func() {
				_, done := g.join(t.Context(), stet.Op{}, i)
				done()
			})
		}
		synctest.Wait()
		done()
		wg.Wait()
		if len(sizes) != 2 || sizes[0] != 4 || sizes[1] != 4 { // and the ninth alone
			t.Errorf("groups of %v", sizes)
		}
		if g.busy != 0 || len(g.waiting) != 0 {
			t.Errorf("%d lanes are busy, %d wait", g.busy, len(g.waiting))
		}
	})
}

// TestGoexitInAGroupReleasesItsMembers: runtime.Goexit, or a panic.
func TestGoexitInAGroupReleasesItsMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &groups[int]{size: 3, lanes: 1, run: func(context.Context, []stet.Op, []int) []*stet.Lease {
			runtime.Goexit()
			return nil
		}}
		_, done := g.join(t.Context(), stet.Op{}, 0)
		var alone atomic.Int64
		var wg sync.WaitGroup
		for i := range 7 {
			wg.Go(func() {
				run, done := g.join(t.Context(), stet.Op{}, i)
				if run == nil {
					alone.Add(1)
				}
				done()
			})
		}
		synctest.Wait()
		done()
		wg.Wait()
		if alone.Load() != 5 { // two led a group, and left with it
			t.Errorf("%d must be handled alone; want 5", alone.Load())
		}
		if g.busy != 0 {
			t.Errorf("%d lanes are busy", g.busy)
		}
	})
}

// loose is a store whose groups always fail, and whose transactions are none.
type loose struct{ *memory.Store }

func (loose) RunTx(ctx context.Context, req store.ClaimRequest, _ store.Retention, fn func(context.Context, int, store.Record) (store.Settlement, error)) (store.Record, error) {
	rec := store.Record{ID: req.ID, Scope: req.Scope, State: store.Running, Fingerprint: req.Fingerprint, Owner: req.Owner, Fence: 1, Attempt: 1}
	out, err := fn(ctx, 0, rec)
	rec.State, rec.Result = out.State, out.Result
	return rec, err
}

func (loose) SettleTx(context.Context, int, store.Claim, store.Settlement, store.Retention) error {
	return store.ErrFenced
}

func (loose) RunGroup(ctx context.Context, reqs []store.ClaimRequest, _ []store.Retention, _ func(context.Context, int, int, store.Record) (store.Settlement, error)) ([]store.Record, error) {
	time.Sleep(time.Second)
	return nil, io.ErrUnexpectedEOF
}

// TestMessagesOutsideOfGroupsAreLimited: more messages wait for a group
// than are handled at a time.
func TestMessagesOutsideOfGroupsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := loose{memory.New(memory.Options{})}
		engine := stettest.Engine(t, st, stet.Options{SweepEvery: -1})
		var mu sync.Mutex
		var handled, most, all int
		te, err := stet.WithTx(engine, store.TxStore[int](st))
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewTx(te, Options[string]{
			Operation:   func(m string) (stet.Op, error) { return stet.Op{Scope: "orders", Key: m}, nil },
			Concurrency: 3, Group: 8,
		}, func(context.Context, int, string) ([]byte, error) {
			mu.Lock()
			handled, all = handled+1, all+1
			most = max(most, handled)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			handled--
			mu.Unlock()
			return nil, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if c.Concurrency() != 11 {
			t.Errorf("receivers pass %d at a time; want 3 that are handled and 8 that wait", c.Concurrency())
		}
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() { _, _ = c.Handle(t.Context(), strconv.Itoa(i), deaf{}) })
		}
		wg.Wait()
		if most != 3 || all != 40 {
			t.Errorf("%d were handled at a time, %d in all; want 3 and 40", most, all)
		}
	})
}

// deaf is a delivery without effect.
type deaf struct{}

func (deaf) Deliveries() int                            { return 1 }
func (deaf) Ack(context.Context) error                  { return nil }
func (deaf) Retry(context.Context, time.Duration) error { return nil }
func (deaf) DeadLetter(context.Context, Decision) error { return nil }
