//go:build !race

package stethttp_test

// What is allocated at most, of what TestFirstRequestsAndReplaysCostFewAllocations and
// TestLargeContentIsAllocatedOnce count.
const (
	maxFirst  = 10
	maxReplay = 5
	maxSlack  = 20 << 10
)
