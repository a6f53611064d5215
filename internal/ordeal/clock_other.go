//go:build !linux

package ordeal

import "time"

// now is the wall clock, which processes share as long as nobody sets it.
func now() int64 { return time.Now().UnixNano() }
