package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"time"
)

const (
	startWithin = 10 * time.Second
	healthPause = 5 * time.Millisecond
	keptErrors  = 8 << 10 // bytes of a child's standard error
)

// server is the payments service as a process of its own, which can be killed
// and started again at the same address.
type server struct {
	command []string // starts ServiceMain
	flags   []string
	addr    string // once started

	cmd    *exec.Cmd
	stdin  io.Closer
	exited chan struct{} // closed when the process is gone
	errors tail
}

// start starts the service and waits until it answers.
func (s *server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	args := append(append([]string{}, s.command[1:]...), s.flags...)
	if s.addr != "" {
		args = append(args, "-addr", s.addr)
	}
	// Not CommandContext: stop and kill end it, and the end of the pipe does
	// if this process dies.
	cmd := exec.Command(s.command[0], args...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = &s.errors
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("the payments service cannot be started: %w", err)
	}
	s.cmd, s.stdin, s.exited = cmd, stdin, make(chan struct{})
	said := make(chan string, 1)
	go func(exited chan struct{}) { // ends with the process
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		said <- strings.TrimSpace(line)
		_, _ = io.Copy(io.Discard, stdout)
		_ = cmd.Wait()
		close(exited)
	}(s.exited)
	select {
	case s.addr = <-said:
	case <-ctx.Done():
		return s.failed(context.Cause(ctx))
	}
	if s.addr == "" {
		return s.failed(errors.New("it ended at once"))
	}
	return s.healthy(ctx)
}

// healthy waits until the service answers.
func (s *server) healthy(ctx context.Context) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addr+"/healthz", nil)
		if err != nil {
			return err
		}
		if res, err := client.Do(req); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		if err := pause(ctx, healthPause); err != nil {
			return s.failed(err)
		}
	}
}

// failed ends a service that did not start, and says what it said.
func (s *server) failed(cause error) error {
	s.kill()
	if said := s.errors.String(); said != "" {
		cause = fmt.Errorf("%w; it said: %s", cause, said)
	}
	return fmt.Errorf("the payments service did not start: %w", cause)
}

// kill ends the process with SIGKILL and waits until it is gone.
func (s *server) kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // fails only if it is gone already
	<-s.exited
	_ = s.stdin.Close()
	s.cmd = nil
}

// stop lets the process end by itself, and kills it if it does not.
func (s *server) stop() {
	if s.cmd == nil {
		return
	}
	_ = s.stdin.Close()
	t := time.NewTimer(closeWithin + time.Second)
	defer t.Stop()
	select {
	case <-s.exited:
		s.cmd = nil
	case <-t.C:
		s.kill()
	}
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

// String returns what was kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.b))
}
