package stetwork_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetwork"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

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
