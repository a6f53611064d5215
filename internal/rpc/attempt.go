package rpc

import (
	"context"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
)

// TimedOut reports whether an attempt that failed with this code has reached a deadline of
// its own, which is earlier than the caller's. The server has a copy of that deadline. If
// its timer fires first, the code arrives while the attempt's context has not ended.
func TimedOut(caller, attempt context.Context, c code.Code) bool {
	own, ok := attempt.Deadline()
	if limit, has := caller.Deadline(); !ok || has && !own.Before(limit) {
		return false
	}
	switch c {
	case code.Code_DEADLINE_EXCEEDED:
		return true
	case code.Code_CANCELLED: // the server reset the stream
		return !time.Now().Before(own)
	default:
		return false
	}
}
