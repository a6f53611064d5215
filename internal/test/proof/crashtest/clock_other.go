//go:build !linux

package crashtest

import "time"

// Now is the wall clock, which processes share until it is set.
func Now() int64 { return time.Now().UnixNano() }
