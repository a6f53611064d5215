package rig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// ElasticMQServer is a server with the protocol of Amazon SQS, and its limits. It keeps queues in memory.
type ElasticMQServer struct{ *Server }

// StartElasticMQ starts a server.
func (r *Rig) StartElasticMQ(ctx context.Context) (*ElasticMQServer, error) {
	java, err := program("java")
	if err != nil {
		return nil, err
	}
	jars, err := classPath("elasticmq")
	if err != nil {
		return nil, err
	}
	s, err := r.add("elasticmq")
	if err != nil {
		return nil, err
	}
	var began int64 // size of the log before this start
	s.spec = spec{
		command: func(port int) ([]string, error) {
			began = size(s.logFile())
			file := filepath.Join(s.dir, "elasticmq.conf")
			conf := fmt.Sprintf("include classpath(\"application.conf\")\nnode-address { host = \"127.0.0.1\", port = %[1]d }\nrest-sqs { bind-hostname = \"127.0.0.1\", bind-port = %[1]d, sqs-limits = strict }\nrest-stats { enabled = false }\n", port)
			return slices.Concat([]string{java}, javaOptions(s.dir), []string{"-Dconfig.file=" + file, "-cp", jars, "org.elasticmq.server.Main"}), r.write(file, []byte(conf))
		},
		// The log, because a connection can be that of another server.
		ready: func(port, _ int) bool {
			log, _ := os.ReadFile(s.logFile())
			return strings.Contains(string(log[min(began, int64(len(log))):]), "=== ElasticMQ server (") && answers(port)
		},
		stop: syscall.SIGTERM,
		quit: syscall.SIGKILL,
	}
	if err := s.Start(ctx); err != nil {
		return nil, err
	}
	return &ElasticMQServer{s}, nil
}

// URL is the endpoint of the server.
func (s *ElasticMQServer) URL() string { return "http://" + s.Addr() }

// ElasticMQ returns the server that all tests of the binary share; the first call starts it. It cannot be
// stopped, killed or paused. Tests tell their queues apart by name.
func ElasticMQ(t testing.TB) *ElasticMQServer {
	t.Helper()
	return shared.elasticmq.get(t, func(r *Rig) (*ElasticMQServer, error) { return r.StartElasticMQ(context.Background()) })
}
