//go:build !linux

package rig

import (
	"errors"
	"syscall"
)

func unprivileged() (uid, gid int, err error) {
	return 0, 0, errors.New("servers for tests need Linux: run the tests in a container")
}

func (r *Rig) child(syscall.Signal) *syscall.SysProcAttr { return nil }

func detached() *syscall.SysProcAttr { return nil }

func processes(string) []int { return nil }

func freeze(...int) bool { return true }

func thaw(...int) {}

func kill(...int) {}

func dropSharedMemory(string) {}
