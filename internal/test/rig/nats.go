package rig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// NATSServer is a NATS server with JetStream, which keeps streams in files.
type NATSServer struct {
	*Server
	name string
}

// StartNATS starts a server.
func (r *Rig) StartNATS(ctx context.Context) (*NATSServer, error) {
	s, err := r.addNATS()
	if err != nil {
		return nil, err
	}
	return s, s.Start(ctx)
}

// StartNATSCluster starts a cluster of n servers, named nats-1 to nats-n. It has a leader some seconds later.
func (r *Rig) StartNATSCluster(ctx context.Context, n int) ([]*NATSServer, error) {
	routes := make([]string, n)
	for i := range routes {
		addr, err := FreeAddr()
		if err != nil {
			return nil, err
		}
		routes[i] = "nats://" + addr
	}
	servers := make([]*NATSServer, n)
	for i := range servers {
		s, err := r.addNATS("-n", fmt.Sprintf("nats-%d", i+1), "-cluster_name", "stet", "-cluster", routes[i], "-routes", strings.Join(routes, ","))
		if err != nil {
			return nil, err
		}
		s.name = fmt.Sprintf("nats-%d", i+1)
		servers[i] = s
		if err := s.Start(ctx); err != nil {
			return nil, err
		}
	}
	return servers, nil
}

// addNATS makes a server with more arguments.
func (r *Rig) addNATS(more ...string) (*NATSServer, error) {
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
			return append([]string{server, "-a", "127.0.0.1", "-p", strconv.Itoa(port), "-js", "-sd", filepath.Join(s.dir, "jetstream")}, more...), nil
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
	return &NATSServer{Server: s}, nil
}

// Name is the name of the server in its cluster.
func (s *NATSServer) Name() string { return s.name }

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

// NewNATSCluster starts a cluster of n servers for this test alone. It ends with the test.
func NewNATSCluster(t testing.TB, n int) []*NATSServer {
	t.Helper()
	servers := start(t, func(r *Rig) ([]*NATSServer, error) { return r.StartNATSCluster(t.Context(), n) })
	for _, s := range servers {
		end(t, s.Server)
	}
	return servers
}
