//go:build !race

package stethttp_test

// What is allocated at most, of what TestFirstRequestsAndReplaysCostFewAllocations and
// TestLargeContentIsAllocatedOnce count.
const (
	maxFirst  = 8
	maxReplay = 4
	maxSlack  = 20 << 10
)
