//go:build race

package stethttp_test

// What is allocated at most, with the race detector: it takes lent memory away, and lets
// more escape.
const (
	maxFirst  = 12
	maxReplay = 8
	maxSlack  = 1 << 20
)
