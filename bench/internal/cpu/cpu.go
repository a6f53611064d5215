// Package cpu reads how much processor time processes have used, from /proc. It works on
// Linux.
package cpu

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// tick is the unit of /proc/PID/stat, which is the same on all of Linux's architectures.
const tick = 10 * time.Millisecond

// Used returns what processes and all their threads have used so far, in user and in kernel
// mode, with what children that they have waited for had used. A process that is gone has
// used nothing, so Used can decrease where a process ends whose parent is not asked for.
func Used(pids ...int) (time.Duration, error) {
	var sum time.Duration
	for _, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return 0, err
		}
		threads, children, err := parse(stat)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", dir, err)
		}
		if exact, ok := scheduled(dir); ok {
			threads = exact
		}
		sum += threads + children
	}
	return sum, nil
}

// parse reads the times of a process and of its children from /proc/PID/stat: fields 14 to 17
// of proc_pid_stat(5). The second field is the program's name in parentheses, which may have
// blanks and parentheses itself.
func parse(stat []byte) (threads, children time.Duration, err error) {
	const before = 11 // fields between the name and utime
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < before+4 {
		return 0, 0, fmt.Errorf("%q has too few fields", stat)
	}
	var times [4]time.Duration
	for i := range times {
		n, err := strconv.ParseInt(string(fields[before+i]), 10, 64)
		if err != nil {
			return 0, 0, err
		}
		times[i] = time.Duration(n) * tick
	}
	return times[0] + times[1], times[2] + times[3], nil
}

// scheduled reads the same to the nanosecond from the scheduler's own account of each thread,
// where the kernel keeps one. Threads that have ended are not in it: those of Go's programs,
// of PostgreSQL's and of Redis's stay.
func scheduled(dir string) (sum time.Duration, ok bool) {
	files, _ := filepath.Glob(filepath.Join(dir, "task", "*", "schedstat"))
	for _, file := range files {
		b, err := os.ReadFile(file)
		fields := bytes.Fields(b)
		if err != nil || len(fields) == 0 {
			continue // it has ended meanwhile
		}
		n, err := strconv.ParseInt(string(fields[0]), 10, 64)
		if err != nil {
			return 0, false
		}
		sum += time.Duration(n)
	}
	return sum, sum > 0
}
