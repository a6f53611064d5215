//go:build !linux

package canonical_test

import "time"

// stopwatch measures time.
func stopwatch() (elapsed func() time.Duration) {
	began := time.Now()
	return func() time.Duration { return time.Since(began) }
}
