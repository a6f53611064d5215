package postgres

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/stettest"
)

// A call that waited for a lane alone goes out without its caller's context: its caller may have
// left. A connection that says nothing any more must not keep the lane for ever.
func TestDeadConnectionGivesItsLaneBack(t *testing.T) {
	const first, dead, next = 1, 2, 3
	hold, gathered := make(chan struct{}), make(chan struct{})
	b := &batcher[int]{limit: 10, most: 10, bytes: 10, size: func(*int) int { return 0 }, lanes: 1,
		patience: 50 * time.Millisecond, ctx: t.Context()}
	b.run = func(ctx context.Context, batch []*op[int]) {
		for _, o := range batch {
			switch o.v {
			case first:
				<-hold
			case dead:
				close(gathered)
				<-ctx.Done()
				o.err = context.Cause(ctx)
			}
		}
	}
	answers := make(chan error, 2)
	call := func(v int) {
		_, err := b.do(t.Context(), v)
		answers <- err
	}
	go call(first)
	stettest.Eventually(t, "the lane is in use", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.lanes == 0 })
	go call(dead)
	stettest.Eventually(t, "the second call waits", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.queue) == 1 })
	close(hold)
	<-gathered
	if err := errors.Join(<-answers, <-answers); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the call on a dead connection: %v", err)
	}
	if _, err := b.do(t.Context(), next); err != nil {
		t.Errorf("the next call: %v", err)
	}
	b.close()
}
