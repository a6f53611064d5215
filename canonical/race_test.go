//go:build race

package canonical_test

// slowness is how much slower everything is.
const slowness = 16
