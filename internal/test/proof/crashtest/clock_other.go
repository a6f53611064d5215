//go:build !linux

package crashtest

import "time"

// Now is the wall clock, which processes share as long as nobody sets it.
func Now() int64 { return time.Now().UnixNano() }
