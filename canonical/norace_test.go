//go:build !race

package canonical_test

// slowness is how much slower everything is under the race detector.
const slowness = 1
