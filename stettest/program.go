package stettest

import (
	"bytes"
	"net"
	"os/exec"
	"runtime"
	"testing"
	"time"
)

// program is a service that is killed and started again.
type program struct {
	t        testing.TB
	start    func(addr string) *exec.Cmd
	patience time.Duration
	cmd      *exec.Cmd
	ended    chan struct{} // closed when the process has been waited for
	out      bytes.Buffer  // of the process, if its command has no other place for it; read after its end
}

// run starts the program, waits until it accepts connections, and returns its URL.
func (p *program) run() string {
	p.t.Helper()
	for range 3 { // another process can take the port
		addr, err := freeAddr()
		if err != nil {
			p.t.Fatalf("stettest: no port of 127.0.0.1 is free: %v", err)
		}
		if err := p.launch(addr); err != nil {
			p.t.Fatalf("stettest: the program cannot be started: %v", err)
		}
		if p.listens(addr) {
			return "http://" + addr
		}
		p.kill()
	}
	p.t.Fatalf("stettest: the program does not accept connections at the address that start received; its output: %s", p.out.String())
	return ""
}

// launch starts the process on a thread of its own: the kernel kills it when that thread ends.
func (p *program) launch(addr string) error {
	cmd := p.start(addr)
	p.out.Reset()
	if cmd.Stdout == nil && cmd.Stderr == nil {
		cmd.Stdout, cmd.Stderr = &p.out, &p.out
	}
	cmd.WaitDelay = 10 * time.Second
	group(cmd)
	p.cmd, p.ended = cmd, make(chan struct{})
	started := make(chan error)
	go func() { // ends with the process
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed
		}
	}()
	return <-started
}

// listens waits until the program accepts connections. It returns false if the program ends before.
func (p *program) listens(addr string) bool {
	for end := time.Now().Add(p.patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("tcp", addr); err == nil { //nolint:noctx // to this machine
			_ = conn.Close()
			return true
		}
		select {
		case <-p.ended:
			return false
		default:
		}
	}
	return false
}

// kill kills the process group, and waits for the end of the process.
func (p *program) kill() {
	if p.cmd == nil || p.cmd.Process == nil {
		return
	}
	killGroup(p.cmd)
	<-p.ended
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // on this machine
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// killed kills the program at a moment of a request, starts it again, and retries.
func (c *checker) killed(name string, moment func(n int, answered <-chan answer)) {
	c.t.Helper()
	op := c.begin()
	moment(op.n, c.start(c.t.Context(), op))
	c.program.kill()
	c.base = c.program.run()
	c.count(name, op, c.final(name, op))
}

// visible waits until operation n has an effect, or its response.
func (c *checker) visible(n int, answered <-chan answer) {
	for end := time.Now().Add(c.Patience); len(answered) == 0 && time.Now().Before(end); {
		if c.effects(&operation{n: n}) > 0 {
			return
		}
		time.Sleep(time.Millisecond) // between two queries
	}
}
