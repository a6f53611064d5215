package canonical_test

import (
	"runtime"
	"syscall"
	"time"
)

// stopwatch measures the processor time of the calling goroutine's thread: other
// processes have the processor at times.
func stopwatch() (elapsed func() time.Duration) {
	const thread = 1 // RUSAGE_THREAD
	runtime.LockOSThread()
	used := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(thread, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	began := used()
	return func() time.Duration {
		defer runtime.UnlockOSThread()
		return used() - began
	}
}
