package stetwork_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

var errNowhere = errors.New("the broker has no queue for it")

// picky is a queue that refuses operations of some names, and has a worker run the
// others, or leaves them.
type picky struct {
	refuses func(ctx context.Context, name string) error
	worker  *stetwork.Worker

	mu     sync.Mutex
	handed map[store.ID]int
}

// times returns how often an operation was passed, and how many were.
func (q *picky) times(id store.ID) (n, all int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.handed[id], len(q.handed)
}

func (q *picky) Enqueue(ctx context.Context, items []stet.Item) (err error) {
	for _, it := range items {
		if e := q.refuses(ctx, it.Name); e != nil {
			err = e
			continue
		}
		q.mu.Lock()
		q.handed[it.ID]++
		q.mu.Unlock()
		go func() { _ = q.worker.Do(context.WithoutCancel(ctx), it) }()
	}
	return err
}

// inFrontOf runs f with a worker behind a queue that refuses "nowhere" by how.
func inFrontOf(t *testing.T, how func(context.Context) error, f func(t *testing.T, b *bench, q *picky)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		q := &picky{handed: map[store.ID]int{}, refuses: func(ctx context.Context, name string) error {
			if name != "nowhere" {
				return nil
			}
			return how(ctx)
		}}
		b := newBench(t, memory.New(memory.Options{}), stetwork.Options{Queue: q}, stet.Policy{})
		q.worker = b.worker
		must(t, stetwork.Handle(b.worker, "ship", func(context.Context, parcel) (receipt, error) { return receipt{}, nil }))
		b.runs()
		f(t, b, q)
	})
}

func refuse(context.Context) error { return errNowhere }

func hang(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func TestRefusedItemDelaysNoOthers(t *testing.T) {
	for name, c := range map[string]struct {
		how    func(context.Context) error
		within time.Duration
	}{"refused": {refuse, 10 * time.Second}, "hangs": {hang, 2 * time.Minute}} {
		t.Run(name, func(t *testing.T) {
			inFrontOf(t, c.how, func(t *testing.T, b *bench, q *picky) {
				for i := range 5 {
					poison := b.accept("nowhere", "poison"+strconv.Itoa(i))
					time.Sleep(time.Second)
					began := time.Now()
					id := b.accept("ship", strconv.Itoa(i))
					b.await(id, store.Completed)
					if took := time.Since(began); took > c.within {
						t.Errorf("another operation waited %v", took)
					}
					time.Sleep(time.Hour)
					if n, _ := q.times(id); n > 4 { // with each batch that is refused, and once alone
						t.Errorf("it was passed %d times", n)
					}
					if st := b.status(poison); st.Record.State != store.Accepted {
						t.Errorf("the refused operation is %v", st.Record.State)
					}
				}
			})
		})
	}
}

func TestRefusedBacklogDelaysOthersForAMinute(t *testing.T) {
	inFrontOf(t, refuse, func(t *testing.T, b *bench, _ *picky) {
		for i := range stetwork.DefaultBatch {
			b.accept("nowhere", strconv.Itoa(i))
		}
		time.Sleep(10 * time.Second)
		began := time.Now()
		b.await(b.accept("ship", "a"), store.Completed)
		if took := time.Since(began); took > 2*time.Minute {
			t.Errorf("it waited %v", took)
		}
	})
}

func TestItemsAreEnqueuedSoonAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := time.Now().Add(30 * time.Second)
		q := &picky{handed: map[store.ID]int{}, refuses: func(context.Context, string) error {
			if time.Now().Before(back) {
				return errNowhere
			}
			return nil
		}}
		b := newBench(t, memory.New(memory.Options{}), stetwork.Options{Queue: q}, stet.Policy{})
		q.worker = b.worker
		must(t, stetwork.Handle(b.worker, "ship", func(context.Context, parcel) (receipt, error) { return receipt{}, nil }))
		b.runs()
		for i := range 250 {
			id := b.accept("ship", strconv.Itoa(i))
			defer b.await(id, store.Completed)
		}
		time.Sleep(time.Until(back) + 10*time.Second)
		if _, n := q.times(store.ID{}); n != 250 {
			t.Errorf("%d of 250 were passed 10 s after the queue was back", n)
		}
	})
}
