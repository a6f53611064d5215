//go:build !linux

package stettest

import "os/exec"

// group needs nothing: only the process itself is killed.
func group(*exec.Cmd) {}

func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
