package network

import (
	"runtime"
	"syscall"
	"time"
)

// precise makes the sleeps of this goroutine exact to some 10 µs: its thread is its own, which
// ends with it, and the kernel does not delay its timers to join them with others (prctl
// PR_SET_TIMERSLACK). Go's own timers wait for whole milliseconds where a program is idle,
// as those of epoll do.
func precise() {
	const setTimerSlack, nanosecond = 29, 1
	runtime.LockOSThread()
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setTimerSlack, nanosecond, 0)
}

func sleepUntil(due time.Time) {
	for left := time.Until(due); left > 0; left = time.Until(due) {
		t := syscall.NsecToTimespec(int64(left))
		_ = syscall.Nanosleep(&t, nil) // a signal may end it early
	}
}
