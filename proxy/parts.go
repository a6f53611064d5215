package proxy

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/timer"
)

// Parts are what a Proxy does in the background, beside serving requests. Each does
// nothing where the configuration asks for nothing.
type Parts uint8

const (
	// Workers hand accepted operations to the service: see Route.Async.
	Workers Parts = 1 << iota
	// Relay sends the messages that operations have emitted.
	Relay
	// Reconciler asks verifiers about dead runs.
	Reconciler
	// Consumers receive messages and hand them to the service.
	Consumers
)

// part works in the background of a generation.
type part struct {
	name string
	// run returns soon after ctx has ended. If it returns before, it is called again
	// after a pause.
	run func(ctx context.Context) error
}

// The pause after a part has failed once, and the longest.
const (
	minPartPause = time.Second
	maxPartPause = 30 * time.Second
)

// background runs the parts of a generation.
type background struct {
	log    *slog.Logger
	cancel context.CancelFunc
	active sync.WaitGroup
}

// begin starts the parts.
func (b *background) begin(log *slog.Logger, parts []part) {
	ctx, cancel := context.WithCancel(context.Background())
	b.log, b.cancel = log, cancel
	for _, p := range parts {
		b.active.Go(func() { b.keep(ctx, p) })
	}
}

// keep runs a part until ctx ends.
func (b *background) keep(ctx context.Context, p part) {
	for n := 1; ; n++ {
		began := time.Now()
		err := p.run(ctx)
		if ctx.Err() != nil {
			if err != nil {
				b.log.Error("proxy: a part has ended with an error", slog.String("part", p.name), slog.Any("error", err))
			}
			return
		}
		if time.Since(began) > maxPartPause {
			n = 1
		}
		pause := timer.Doubled(n, minPartPause, maxPartPause)
		b.log.Error("proxy: a part has failed; it begins again after a pause", slog.String("part", p.name), slog.Duration("pause", pause), slog.Any("error", err))
		if !timer.Sleep(ctx, pause) {
			return
		}
	}
}

// stop has the parts begin nothing more.
func (b *background) stop() {
	if b.cancel != nil {
		b.cancel()
	}
}

// wait returns when all parts have ended.
func (b *background) wait() { b.active.Wait() }
