// Package timer waits, and says how long to wait before the next try.
package timer

import (
	"context"
	"math/rand/v2"
	"time"
)

// Sleep waits for d and reports whether ctx has not ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Until waits for told, at most for d, and returns the error of ctx if it has ended.
func Until(ctx context.Context, told <-chan struct{}, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-told:
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// Around returns a random time from half of d to one and a half, so that processes
// that wait for the same thing do not ask for it together. d must be positive.
func Around(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// Backoff returns a random time from half of Doubled to all of it.
func Backoff(n int, least, most time.Duration) time.Duration {
	d := Doubled(n, least, most)
	return d - rand.N(d/2)
}

// Doubled returns the wait after the nth try: least after the first, each time
// twice as long, most at most.
func Doubled(n int, least, most time.Duration) time.Duration {
	d := least
	for ; n > 1 && d < most; n-- {
		d *= 2
	}
	return min(d, most)
}
