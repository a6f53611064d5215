// Package cpu reads how much processor time processes have used, from /proc. It works on
// Linux.
package cpu

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
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
		b, err := os.ReadFile(filepath.Join(dir, "stat"))
		if os.IsNotExist(err) || errors.Is(err, syscall.ESRCH) {
			continue
		}
		if err != nil {
			return 0, err
		}
		p, err := parse(b)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", dir, err)
		}
		if exact, ok := scheduled(dir, p.threads); ok {
			p.self = exact
		}
		sum += p.self + p.children
	}
	return sum, nil
}

// stat is a process as /proc/PID/stat tells of it.
type stat struct {
	self, children time.Duration
	threads        int64
}

// parse reads fields 14 to 17 and 20 of proc_pid_stat(5). The second field is the program's
// name in parentheses, which may have blanks and parentheses itself.
func parse(b []byte) (stat, error) {
	const times, threads = 11, 17 // fields behind the name
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) <= threads {
		return stat{}, fmt.Errorf("%q has too few fields", b)
	}
	var n [threads - times + 1]int64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(string(fields[times+i]), 10, 64); err != nil {
			return stat{}, err
		}
	}
	return stat{self: time.Duration(n[0]+n[1]) * tick, children: time.Duration(n[2]+n[3]) * tick, threads: n[threads-times]}, nil
}

// scheduled reads the same to the nanosecond from the scheduler's own account of each thread,
// where the kernel keeps one. Threads that have ended are not in it: those of Go's programs
// and of Redis's stay, and PostgreSQL's have one.
func scheduled(dir string, threads int64) (sum time.Duration, ok bool) {
	files := []string{filepath.Join(dir, "schedstat")}
	if threads > 1 {
		files, _ = filepath.Glob(filepath.Join(dir, "task", "*", "schedstat"))
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		fields := bytes.Fields(b)
		if err != nil || len(fields) == 0 {
			continue // it has ended in the meantime
		}
		n, err := strconv.ParseInt(string(fields[0]), 10, 64)
		if err != nil {
			return 0, false
		}
		sum += time.Duration(n)
	}
	return sum, sum > 0
}
