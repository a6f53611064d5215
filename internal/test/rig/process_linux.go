package rig

import (
	"bytes"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// unprivileged finds whom servers run as, since they refuse to be root.
func unprivileged() (uid, gid int, err error) {
	if os.Geteuid() != 0 {
		return -1, -1, nil
	}
	for _, name := range []string{"postgres", "daemon"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		if uid, err = strconv.Atoi(u.Uid); err != nil {
			return 0, 0, err
		}
		gid, err = strconv.Atoi(u.Gid)
		return uid, gid, err
	}
	return 0, 0, fmt.Errorf("servers refuse to run as root, and there is neither a user postgres nor daemon: run the tests as another user")
}

// child are the attributes of a server, which the kernel sends sig when the
// thread that started it ends. Its process group is its own, so that an
// interrupt from the terminal meets the tests first.
func (r *Rig) child(sig syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: sig}
	if r.uid >= 0 {
		attr.Credential = &syscall.Credential{Uid: uint32(r.uid), Gid: uint32(r.gid)}
	}
	return attr
}

// detached are the attributes of a process that outlives this one.
func detached() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// processes finds those whose working directory is dir, or inside.
func processes(dir string) (pids []int) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		cwd, err := os.Readlink(link)
		if err != nil || cwd != dir && !strings.HasPrefix(cwd, dir+"/") {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(link, "/")[2]); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// freeze stops processes, and reports whether all of them had been stopped
// already.
func freeze(pids ...int) bool {
	all := true
	for _, pid := range pids {
		if state(pid) != 'T' {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
			all = false
		}
	}
	return all
}

// state is the letter that the kernel gives the state of a process.
func state(pid int) byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	name := bytes.LastIndexByte(stat, ')') // which may contain anything
	if err != nil || len(stat) < name+3 {
		return 'T' // gone
	}
	return stat[name+2]
}

func thaw(pids ...int) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}

func kill(pids ...int) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// dropSharedMemory removes the System V segment that a killed PostgreSQL leaves
// in the kernel; the file postmaster.pid, which only a killed one leaves, names it.
func dropSharedMemory(pidFile string) {
	const line = 6 // key and id
	b, _ := os.ReadFile(pidFile)
	lines := strings.Split(string(b), "\n")
	if len(lines) <= line {
		return
	}
	if fields := strings.Fields(lines[line]); len(fields) == 2 {
		if id, err := strconv.Atoi(fields[1]); err == nil {
			_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		}
	}
}
