package stet

import (
	"context"
	"time"

	"github.com/stet-go/stet/internal/timer"
)

// maxForsaken bounds how many records are ended so at a time.
const maxForsaken = 1024

// forsake ends, in the background, the record of a run that has ended and whose end
// did not reach the store: call parks what could not be settled or parked, and gives
// back what could not be given back. Retries would otherwise be told until the lease
// has run out that it is being executed, and then that it is not known. What was sent
// may still come through, and stands then.
func (e *Engine) forsake(lease time.Duration, call func(context.Context) error) {
	if e.forsaken.Add(1) > maxForsaken { // those learn it when the lease has run out
		e.forsaken.Add(-1)
		return
	}
	started := e.background(func(ctx context.Context) {
		defer e.forsaken.Add(-1)
		e.keeper.quiet(lease)
		end := time.Now().Add(lease)
		for pause := storeBackoff; time.Now().Before(end) && timer.Sleep(ctx, pause); pause = min(2*pause, maxBackoff) {
			if err := call(ctx); err == nil || KindOf(err) == KindFenced {
				return
			}
		}
	})
	if !started {
		e.forsaken.Add(-1)
	}
}
