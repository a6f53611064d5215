package proxy

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// backend is a service behind an availability.
type backend struct {
	down  atomic.Bool
	deaf  atomic.Bool // it can be connected to, and yet is not reached
	dials atomic.Int64
}

func (b *backend) dial(context.Context) error {
	if b.dials.Add(1); b.down.Load() {
		return errors.New("connection refused")
	}
	return nil
}

func (b *backend) availability() *availability {
	return &availability{log: slog.New(slog.DiscardHandler), dial: b.dial, turn: make(chan struct{}, 1)}
}

// call is a run of a message: it waits until the service is available, and is there for a time.
func (b *backend) call(ctx context.Context, g *availability, tries *atomic.Int64, takes time.Duration) error {
	for {
		if err := g.await(ctx); err != nil {
			return err
		}
		if tries.Add(1) > 1000 {
			return errors.New("the calls do not wait")
		}
		if !b.down.Load() && !b.deaf.Load() {
			time.Sleep(takes)
			g.found()
			return nil
		}
		if b.deaf.Load() {
			time.Sleep(100 * time.Millisecond) // finding out takes a while
		}
		g.lost("connection refused", 0)
	}
}

func TestNoRunBeginsWhileTheServiceIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b backend
		g := b.availability()
		b.down.Store(true)
		var tries atomic.Int64
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() { _ = b.call(t.Context(), g, &tries, 10*time.Millisecond) })
		}
		time.Sleep(time.Hour)
		if n := tries.Load(); n > 16 || !g.paused() {
			t.Errorf("%d runs in an hour, paused: %v", n, g.paused())
		}
		if n := b.dials.Load(); n < 350 || n > 400 {
			t.Errorf("it was looked at %d times in an hour", n)
		}
		b.down.Store(false)
		began := time.Now()
		wg.Wait()
		if g.paused() || time.Since(began) > maxCheckPause+trialTime {
			t.Errorf("paused: %v, after %v", g.paused(), time.Since(began))
		}
	})
}

func TestOneMessageGoesAheadOfTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b backend
		g := b.availability()
		g.lost("it has answered 503", 10*time.Minute)
		b.deaf.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		var tries atomic.Int64
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() { _ = b.call(ctx, g, &tries, time.Millisecond) })
		}
		time.Sleep(10*time.Minute - time.Second)
		if n := tries.Load(); n > 0 {
			t.Errorf("%d runs before the time that the service has asked for", n)
		}
		time.Sleep(time.Minute)
		if n := tries.Load(); n < 2 || n > 12 {
			t.Errorf("%d runs in a minute at a service that takes none", n)
		}
		cancel()
		wg.Wait()
	})
}

// What goes ahead may be a message that was handled before, or take long.
func TestOthersFollowASilentCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b backend
		g := b.availability()
		g.lost("connection refused", 0)
		var tries atomic.Int64
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() { _ = b.call(t.Context(), g, &tries, time.Hour) })
		}
		time.Sleep(minCheckPause + trialTime + time.Second)
		if n := tries.Load(); n != 16 {
			t.Errorf("%d of 16 run", n)
		}
		wg.Wait()
	})
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b backend
		b.down.Store(true)
		g := b.availability()
		g.lost("connection refused", 0)
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		ended := errors.New("ended")
		for range 3 {
			wg.Go(func() {
				if err := g.await(ctx); !errors.Is(err, ended) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		cancel(ended)
		wg.Wait()
	})
}
