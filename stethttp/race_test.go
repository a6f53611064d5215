//go:build race

package stethttp_test

// The most allocations in TestFirstRequestsAndReplaysCostFewAllocations, with the race detector.
const (
	maxFirst  = 40
	maxReplay = 25
)
