package rig

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	startTimeout = 3 * time.Minute // crash recovery under load takes its time
	stopTimeout  = 30 * time.Second
	portTries    = 10
	logTail      = 4096 // bytes of a server's log that an error shows
)

// Server is what all servers of a rig have in common. Its methods may be called
// concurrently; they take turns.
type Server struct {
	rig    *Rig
	name   string
	dir    string
	spec   spec
	shared bool // by all tests of a binary: none may stop it
	port   int  // chosen by the first start, kept by all later ones

	mu     sync.Mutex
	proc   *process
	paused bool
}

// spec is what distinguishes one kind of server from another.
type spec struct {
	command func(port int) ([]string, error)
	ready   func(port, pid int) bool
	stop    syscall.Signal // ends it properly
	quit    syscall.Signal // ends it at once, its own way
	clear   func()         // removes what an unclean end left outside the directory; may be nil
}

type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has been reaped
}

func (p *process) alive() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Addr is host:port of the server; it stays the same when the server is started
// again.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// PIDs are the processes whose working directory is the server's. There are none
// where the system has no /proc.
func (s *Server) PIDs() []int { return processes(s.dir) }

// Log returns the last 4 KiB of what the server wrote to its log.
func (s *Server) Log() string { return s.log(0) }

func (s *Server) logFile() string { return filepath.Join(s.dir, s.name+".log") }

func (s *Server) log(from int) string {
	b, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return string(b[max(min(from, len(b)), len(b)-logTail):])
}

// Start starts a server that does not run, on its old port and files, and
// returns when it takes connections. It is nothing to a server that runs.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.start(ctx)
}

func (s *Server) start(ctx context.Context) error {
	if s.proc.alive() {
		return nil
	}
	if s.port != 0 {
		return s.launch(ctx, s.port)
	}
	var err error
	for range portTries {
		var port int
		if port, err = freePort(); err != nil {
			return err
		}
		if err = s.launch(ctx, port); err == nil {
			s.port = port
			return nil
		}
		if !strings.Contains(err.Error(), "already in use") {
			return err
		}
	}
	return err
}

// launch starts the process and waits until it is ready.
func (s *Server) launch(ctx context.Context, port int) error {
	argv, err := s.spec.command(port)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }() // the child has its own
	before, err := out.Stat()
	if err != nil {
		return err
	}
	cmd := s.rig.command(s.dir, out, argv...)
	cmd.SysProcAttr = s.rig.child(s.spec.quit)
	if err := s.rig.start(cmd); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	p := &process{cmd: cmd, exited: make(chan struct{})}
	go func() { // ends with the process
		defer close(p.exited)
		_ = cmd.Wait()
	}()
	s.proc, s.paused = p, false

	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready within %v", startTimeout))
	defer cancel()
	err = poll(ctx, func() bool { return !p.alive() || s.spec.ready(port, cmd.Process.Pid) })
	if err == nil && !p.alive() {
		err = errors.New("it ended: " + cmd.ProcessState.String())
	}
	if err != nil {
		tail := s.log(int(before.Size()))
		return fmt.Errorf("%s did not start: %w; its log says:\n%s", s.name, errors.Join(err, s.kill()), tail)
	}
	return nil
}

// FreeAddr returns an address of this host that is free, for processes
// that take it one after the other.
func FreeAddr() (string, error) {
	l, err := listenAnywhere()
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// freePort finds a port that is free.
func freePort() (int, error) {
	l, err := listenAnywhere()
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// listenAnywhere listens on a free port. It stays below the range that the
// kernel takes the ports of outgoing connections from: there, a client that
// dials a dead server again and again will sooner or later be connected to
// itself, or keep the server from getting its port back.
func listenAnywhere() (l net.Listener, err error) {
	const low, high = 12000, 32000
	for range 100 {
		port := low + rand.IntN(high-low)
		if l, err = listen(net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return l, nil
		}
	}
	return nil, fmt.Errorf("no free port from %d to %d: %w", low, high, err)
}

func listen(addr string) (net.Listener, error) {
	return net.Listen("tcp", addr) //nolint:noctx // a number, not a name: nothing to wait for
}

var errShared = errors.New("this server is shared by the tests of the binary: take one of your own, such as rig.NewPostgres")

// Stop ends the server properly. Its files stay.
func (s *Server) Stop() error {
	if s.shared {
		return errShared
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end(s.spec.stop)
}

// Restart stops the server properly and starts it.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(); err != nil {
		return err
	}
	return s.Start(ctx)
}

// Kill ends all processes of the server by SIGKILL, the main one first, and
// returns when all are gone. Its files stay as they are.
func (s *Server) Kill() error {
	if s.shared {
		return errShared
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kill()
}

// Pause stops all processes of the server with SIGSTOP: it still accepts TCP
// connections, as the kernel does that, and says nothing.
func (s *Server) Pause() error {
	if s.shared {
		return errShared
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.proc.alive() {
		return fmt.Errorf("%s does not run", s.name)
	}
	s.paused = true
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	// The main process first, so that it starts no others.
	return poll(ctx, func() bool { return freeze(s.proc.cmd.Process.Pid) && freeze(processes(s.dir)...) })
}

// Resume lets a paused server continue.
func (s *Server) Resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resume()
	return nil
}

func (s *Server) resume() {
	if s.paused {
		thaw(processes(s.dir)...)
		s.paused = false
	}
}

// Close ends the server at once. Its files go when the rig is closed.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.end(s.spec.quit)
	if s.spec.clear != nil {
		s.spec.clear()
	}
	return err
}

// end sends sig to the main process and waits until all have gone.
func (s *Server) end(sig syscall.Signal) error {
	if !s.proc.alive() {
		return s.kill() // some process of it may still be there
	}
	s.resume()
	_ = s.proc.cmd.Process.Signal(sig)
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-s.proc.exited:
		return s.kill()
	case <-timeout.C:
		return errors.Join(fmt.Errorf("%s did not stop within %v; its log says:\n%s", s.name, stopTimeout, s.log(0)), s.kill())
	}
}

func (s *Server) kill() error {
	if s.proc.alive() {
		_ = s.proc.cmd.Process.Kill()
		<-s.proc.exited
	}
	s.paused = false
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	return poll(ctx, func() bool {
		left := processes(s.dir)
		kill(left...)
		return len(left) == 0
	})
}
