// Package receiver is what the receivers of all brokers have in common.
package receiver

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/stet-go/stet/internal/timer"
)

const (
	minPause = 100 * time.Millisecond
	maxPause = 10 * time.Second
)

// Pause is how long a receiver waits before it repeats a failed request: twice as
// long each time, from 100 ms to 10 s, less up to half of it at random. The zero
// value is ready.
type Pause struct{ last time.Duration }

// Wait waits, after err, which it logs.
func (p *Pause) Wait(ctx context.Context, log *slog.Logger, err error) {
	log.WarnContext(ctx, "stetmsg: a request to the broker failed; it is repeated", slog.Any("error", err))
	p.last = min(max(2*p.last, minPause), maxPause)
	timer.Sleep(ctx, p.last/2+rand.N(p.last/2))
}

// Reset makes the next pause the shortest one.
func (p *Pause) Reset() { p.last = 0 }
