package rig

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// NATSServer is a NATS server with JetStream, which keeps streams in files.
type NATSServer struct{ *Server }

// StartNATS starts a server.
func (r *Rig) StartNATS(ctx context.Context) (*NATSServer, error) {
	server, err := program("nats-server")
	if err != nil {
		return nil, err
	}
	s, err := r.add("nats")
	if err != nil {
		return nil, err
	}
	s.spec = spec{
		command: func(port int) ([]string, error) {
			return []string{server, "-a", "127.0.0.1", "-p", strconv.Itoa(port), "-js", "-sd", filepath.Join(s.dir, "jetstream")}, nil
		},
		// The log, and not a connection alone, says that it is this one.
		ready: func(port, pid int) bool {
			log, _ := os.ReadFile(s.logFile())
			_, after, found := strings.Cut(string(log), "["+strconv.Itoa(pid)+"]")
			return found && strings.Contains(after, "Server is ready") && answers(port)
		},
		stop: syscall.SIGTERM,
		quit: syscall.SIGKILL,
	}
	if err := s.Start(ctx); err != nil {
		return nil, err
	}
	return &NATSServer{s}, nil
}

// URL is the connection URL of the server.
func (s *NATSServer) URL() string { return "nats://" + s.Addr() }

// NATS returns the NATS server that all tests of the binary share; the first
// call starts it. It cannot be stopped, killed or paused. Tests tell their
// streams apart by name.
func NATS(t testing.TB) *NATSServer {
	t.Helper()
	return shared.nats.get(t, func(r *Rig) (*NATSServer, error) { return r.StartNATS(context.Background()) })
}

// NewNATS starts a NATS server for this test alone, which the test may stop,
// kill and pause. It ends with the test.
func NewNATS(t testing.TB) *NATSServer {
	t.Helper()
	return alone(t, func(r *Rig) (*NATSServer, error) { return r.StartNATS(t.Context()) })
}
