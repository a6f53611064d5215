package proxy

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/timer"
)

// Parts are the background work of a Proxy. A part without configuration does nothing.
type Parts uint8

const (
	// Workers send accepted operations to the service: see Route.Async.
	Workers Parts = 1 << iota
	// Relay sends the messages that operations have emitted.
	Relay
	// Reconciler calls verifiers about operations whose outcome is unknown.
	Reconciler
	// Consumers receive messages and send them to the service.
	Consumers
)

// part runs in the background of a generation.
type part struct {
	name string
	// run returns soon after ctx has ended. If it returns before, it is called again
	// after a pause.
	run func(ctx context.Context) error
}

// The first and the longest pause after a part has failed.
const (
	minPartPause = time.Second
	maxPartPause = 30 * time.Second
)

// background runs the parts of a generation.
type background struct {
	cancel context.CancelFunc
	active sync.WaitGroup
}

// begin starts the parts.
func (b *background) begin(log *slog.Logger, parts []part, h *health) {
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	for _, p := range parts {
		b.active.Go(func() { p.keep(ctx, log, h) })
	}
}

// keep runs a part until ctx ends.
func (p part) keep(ctx context.Context, log *slog.Logger, h *health) {
	for n := 1; ; n++ {
		began := time.Now()
		h.runs(p.name, true)
		err := p.run(ctx)
		if ctx.Err() != nil {
			if err != nil {
				log.Error("proxy: background work has ended with an error", slog.String("part", p.name), slog.Any("error", err))
			}
			return
		}
		if time.Since(began) > maxPartPause {
			n = 1
		}
		h.runs(p.name, false)
		pause := timer.Doubled(n, minPartPause, maxPartPause)
		log.Error("proxy: background work has failed; it restarts after a pause", slog.String("part", p.name), slog.Duration("pause", pause), slog.Any("error", err))
		if !timer.Sleep(ctx, pause) {
			return
		}
	}
}

// stop ends the parts.
func (b *background) stop() {
	if b.cancel != nil {
		b.cancel()
	}
}

// wait returns after all parts have ended.
func (b *background) wait() { b.active.Wait() }
