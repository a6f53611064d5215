// Package child runs this very program again as a child process that can be
// killed at any moment, and that never outlives its parent.
package child

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// startTimeout bounds how long a child may take until it is ready.
const startTimeout = 20 * time.Second

const ready = "ready "

// Process is a running child.
type Process struct {
	// Addr is what the child said it listens on.
	Addr string

	cmd    *exec.Cmd
	stdin  io.Closer
	exited chan struct{} // closed when the process has been reaped
	err    error         // of Wait, once exited is closed
}

// Start runs this program with args, adding env to its environment, and returns
// when the child has called Ready. What it writes to standard error goes to
// stderr.
func Start(ctx context.Context, stderr io.Writer, env []string, args ...string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	//nolint:noctx // the child is ended by Kill, Stop, or its standard input, and is reaped here
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, stdin: stdin, exited: make(chan struct{})}
	addr := make(chan string, 1)
	go func() { // ends with the child, whose standard output it drains
		defer close(p.exited)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if a, ok := strings.CutPrefix(lines.Text(), ready); ok && cap(addr) > len(addr) {
				addr <- a
			}
		}
		p.err = cmd.Wait()
	}()
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	select {
	case p.Addr = <-addr:
		return p, nil
	case <-p.exited:
		// It may have been ready and died at once.
		return p, fmt.Errorf("the child ended before it was ready: %w", errors.Join(p.err, ErrExited))
	case <-timeout.C:
		p.Kill()
		return nil, fmt.Errorf("the child was not ready within %v", startTimeout)
	case <-ctx.Done():
		p.Kill()
		return nil, context.Cause(ctx)
	}
}

// ErrExited says that a child ended while it was starting.
var ErrExited = errors.New("child exited")

// Exited returns a channel that is closed when the child has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Killed reports whether the child, which has ended, was ended by SIGKILL.
func (p *Process) Killed() bool {
	<-p.exited
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// Kill ends the child with SIGKILL, wherever it is, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// Stop asks the child to end, by closing its standard input, and waits; after
// grace it is killed.
func (p *Process) Stop(grace time.Duration) {
	_ = p.stdin.Close()
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-p.exited:
	case <-t.C:
		p.Kill()
	}
}

// Ready is called in the child: it tells the parent that addr is being listened
// on.
func Ready(addr string) { fmt.Println(ready + addr) }

// Context is called in the child: its context ends when the parent closes the
// child's standard input, or dies.
func Context() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() { // lives as long as the process, by design
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel(errors.New("the parent has gone"))
	}()
	return ctx
}
