//go:build race

package stethttp_test

// What is allocated at most, with the race detector: it takes lent memory away, and lets
// more escape.
const (
	maxFirst  = 14
	maxReplay = 9
	maxSlack  = 1 << 20
)
