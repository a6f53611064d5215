package rig

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// RabbitMQOptions say how a RabbitMQ server is to differ from the usual.
type RabbitMQOptions struct {
	// Settings are lines of rabbitmq.conf, by name. Settings that are not named
	// have RabbitMQ's own defaults.
	Settings map[string]string
}

// RabbitMQServer is a RabbitMQ server of one node, without plugins, whose user
// is guest with the password guest.
type RabbitMQServer struct{ *Server }

// rabbit starts Erlang's port mapper, which would otherwise become a daemon of
// the machine, and then is the server. $1 is the port mapper, $2 the server.
const rabbit = `
"$1" -address 127.0.0.1 -port "$ERL_EPMD_PORT" >/dev/null 2>&1 &
exec "$2" -noinput
`

// StartRabbitMQ starts a server. It takes some seconds.
func (r *Rig) StartRabbitMQ(ctx context.Context, o RabbitMQOptions) (*RabbitMQServer, error) {
	script, err := program("rabbitmq-server")
	if err != nil {
		return nil, err
	}
	// Debian's own one changes the user and the directory.
	if inner := "/usr/lib/rabbitmq/bin/rabbitmq-server"; exists(inner) {
		script = inner
	}
	epmd, err := program("epmd")
	if err != nil {
		return nil, err
	}
	s, err := r.add("rabbitmq")
	if err != nil {
		return nil, err
	}
	var began int64 // how much of the log is of earlier starts
	s.spec = spec{
		command: func(port int) ([]string, error) {
			began = size(s.logFile())
			env, err := r.rabbitEnv(s.dir, port, o)
			return slices.Concat([]string{"/usr/bin/env"}, env, []string{"/bin/sh", "-c", rabbit, "rabbitmq", epmd, script}), err
		},
		// The log, and not a connection alone, says that it is this one.
		ready: func(port, _ int) bool {
			log, _ := os.ReadFile(s.logFile())
			return strings.Contains(string(log[min(began, int64(len(log))):]), "Server startup complete") && answers(port)
		},
		stop: syscall.SIGTERM,
		quit: syscall.SIGKILL,
	}
	if err := s.Start(ctx); err != nil {
		return nil, err
	}
	return &RabbitMQServer{s}, nil
}

// rabbitEnv writes the configuration and returns the environment of a server.
// All servers have the same name, each with a port mapper of its own.
func (r *Rig) rabbitEnv(dir string, port int, o RabbitMQOptions) ([]string, error) {
	mapper, err := freePort()
	if err != nil {
		return nil, err
	}
	dist, err := freePort()
	if err != nil {
		return nil, err
	}
	var conf strings.Builder
	for _, name := range slices.Sorted(maps.Keys(o.Settings)) {
		fmt.Fprintf(&conf, "%s = %s\n", name, o.Settings[name])
	}
	if err := r.write(filepath.Join(dir, "rabbitmq.conf"), []byte(conf.String())); err != nil {
		return nil, err
	}
	if err := r.write(filepath.Join(dir, "plugins"), []byte("[].\n")); err != nil {
		return nil, err
	}
	return []string{
		"HOME=" + dir,
		fmt.Sprintf("ERL_EPMD_PORT=%d", mapper),
		"RABBITMQ_NODENAME=stet@localhost",
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		fmt.Sprintf("RABBITMQ_NODE_PORT=%d", port),
		fmt.Sprintf("RABBITMQ_DIST_PORT=%d", dist),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
		"RABBITMQ_MNESIA_BASE=" + filepath.Join(dir, "mnesia"),
		"RABBITMQ_LOG_BASE=" + dir,
		"RABBITMQ_LOGS=-",
		"RABBITMQ_CONFIG_FILE=" + filepath.Join(dir, "rabbitmq.conf"),
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(dir, "plugins"),
		"RABBITMQ_PID_FILE=" + filepath.Join(dir, "pid"),
		"RABBITMQ_ALLOW_INPUT=1", // the script becomes the server, and -noinput is said by us
	}, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// URL is the connection URL of the server.
func (s *RabbitMQServer) URL() string { return "amqp://guest:guest@" + s.Addr() + "/" }

// RabbitMQ returns the RabbitMQ server that all tests of the binary share; the
// first call starts it. It cannot be stopped, killed or paused. Tests tell their
// queues apart by name.
func RabbitMQ(t testing.TB) *RabbitMQServer {
	t.Helper()
	return shared.rabbitmq.get(t, func(r *Rig) (*RabbitMQServer, error) { return r.StartRabbitMQ(context.Background(), RabbitMQOptions{}) })
}

// NewRabbitMQ starts a RabbitMQ server for this test alone, which the test may
// stop, kill and pause. It ends with the test.
func NewRabbitMQ(t testing.TB, o RabbitMQOptions) *RabbitMQServer {
	t.Helper()
	return alone(t, func(r *Rig) (*RabbitMQServer, error) { return r.StartRabbitMQ(t.Context(), o) })
}
