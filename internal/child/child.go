// Package child runs a program, as a rule this very one, as a child process that
// can be killed at any moment, and that never outlives its parent.
package child

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	startTimeout = time.Minute // until a child is ready
	keptErrors   = 8 << 10     // bytes of a child's standard error
	ready        = "ready "    // goes before the address
)

// Command says how a child is started.
type Command struct {
	Path string   // default: this very program
	Args []string // after the path
	Env  []string // added to this program's environment
	// Listens reports whether a line of the output says that the program is ready. Stop kills
	// such a program. Default: the program calls Ready, and watches its standard input.
	Listens func(line string) bool
}

// Process is a running child.
type Process struct {
	// Addr is what the child said it listens on.
	Addr string

	cmd    *exec.Cmd
	stdin  io.Closer
	deaf   bool // it does not watch its standard input
	said   tail
	exited chan struct{} // closed when the process has been reaped
}

// Start starts a child and returns when it has called Ready. The child's end
// while it is starting is an error that wraps ErrExited and says what the child
// said; the Process is returned with it.
func Start(ctx context.Context, c Command) (*Process, error) {
	if c.Path == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		c.Path = self
	}
	// Not CommandContext: Kill and Stop end it, and its standard input does if
	// this process dies.
	cmd := exec.Command(c.Path, c.Args...) //nolint:noctx // see above
	cmd.Env = append(os.Environ(), c.Env...)
	p := &Process{cmd: cmd, deaf: c.Listens != nil, exited: make(chan struct{})}
	cmd.Stderr = &p.said
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if c.Listens != nil {
		cmd.Stderr = cmd.Stdout
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("the child cannot be started: %w", err)
	}
	addr := make(chan string, 1)
	go func() { // ends with the child, whose standard output it drains
		defer close(p.exited)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			a, ok := strings.CutPrefix(lines.Text(), ready)
			if c.Listens != nil {
				_, _ = fmt.Fprintln(&p.said, lines.Text())
				a, ok = "", c.Listens(lines.Text())
			}
			if ok && len(addr) == 0 {
				addr <- a
			}
		}
		_ = cmd.Wait() // ProcessState has it
	}()
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	select {
	case p.Addr = <-addr:
		return p, nil
	case <-p.exited:
		return p, fmt.Errorf("%w: %s", ErrExited, p.End())
	case <-timeout.C:
		err = fmt.Errorf("the child was not ready within %v", startTimeout)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	p.Kill()
	return nil, err
}

// ErrExited says that a child ended before it was ready.
var ErrExited = errors.New("the child ended before it was ready")

// PID is the child's number, which it keeps until it has ended.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited returns a channel that is closed when the child has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Killed reports whether the child, which has ended, was ended by SIGKILL.
func (p *Process) Killed() bool {
	<-p.exited
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// End says how the child ended, with its last output.
func (p *Process) End() string {
	<-p.exited
	return fmt.Sprintf("%v; it said: %s", p.cmd.ProcessState, p.said.String())
}

// Signal sends the child a signal.
func (p *Process) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// Kill ends the child with SIGKILL, where it is, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails only if it is gone already
	<-p.exited
	_ = p.stdin.Close()
}

// Stop asks the child to end, by closing its standard input, and waits; after
// grace it is killed.
func (p *Process) Stop(grace time.Duration) {
	if p.deaf {
		p.Kill()
		return
	}
	_ = p.stdin.Close()
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-p.exited:
	case <-t.C:
		p.Kill()
	}
}

// Ready is called in the child: it tells the parent, through the child's
// standard output, that addr is being listened on.
func Ready(stdout io.Writer, addr string) { fmt.Fprintln(stdout, ready+addr) }

// Order is the Command for this very program that Main finds the order of in the
// variable env.
func Order(env string, order any) (Command, error) {
	text, err := json.Marshal(order)
	return Command{Env: []string{env + "=" + string(text)}}, err
}

// Main is called first by programs that are their own children. In a child, which has
// an order in the variable env, it works until it is done, killed or told to end by
// its parent, and does not return.
func Main[O any](env string, work func(context.Context, O) error) {
	text := os.Getenv(env)
	if text == "" {
		return
	}
	var o O
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		ctx, cancel := WithParent(context.Background(), os.Stdin)
		err = work(ctx, o)
		cancel()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// WithParent is called in the child: the context ends when the parent closes
// the child's standard input, or dies.
func WithParent(ctx context.Context, stdin io.Reader) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with stdin, or with the process
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	return ctx, cancel
}

// tail keeps the last bytes written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if over := len(t.b) - keptErrors; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}

// String returns the stored text.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.b))
}
