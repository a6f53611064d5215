//go:build !race

package stethttp_test

// The most allocations in TestFirstRequestsAndReplaysCostFewAllocations.
const (
	maxFirst  = 36
	maxReplay = 21
)
