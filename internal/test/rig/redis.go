package rig

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// RedisOptions say how a Redis server is to differ from the usual.
type RedisOptions struct {
	// Settings are parameters of redis.conf, by name. Settings that are not named
	// have Redis's own defaults, but for save, which is off: nothing is written
	// to disk unless appendonly is set; and for repl-diskless-sync, which is off,
	// so that replicas are in step sooner.
	Settings map[string]string
	// ReplicaOf makes the server a replica of another, with which it is in step
	// when it has started.
	ReplicaOf *RedisServer
}

// RedisServer is a Redis server without a password.
type RedisServer struct{ *Server }

// StartRedis starts a Redis server.
func (r *Rig) StartRedis(ctx context.Context, o RedisOptions) (*RedisServer, error) {
	server, err := program("redis-server")
	if err != nil {
		return nil, err
	}
	s, err := r.add("redis")
	if err != nil {
		return nil, err
	}
	redis := &RedisServer{s}
	s.spec = spec{
		command: func(port int) ([]string, error) {
			return append([]string{server}, redisSettings(o, port, s.dir)...), nil
		},
		// On this port, another server may answer.
		ready: func(port, pid int) bool {
			info, err := redisCLI(ctx, port, "INFO")
			return err == nil && strings.Contains(info, "process_id:"+strconv.Itoa(pid)+"\r") && strings.Contains(info, "loading:0") && inStep(ctx, o.ReplicaOf, port)
		},
		stop: syscall.SIGTERM,
		quit: syscall.SIGKILL,
	}
	return redis, s.Start(ctx)
}

// inStep reports whether a server with a port is a replica that a master, if there
// is one, sends its writes to.
func inStep(ctx context.Context, master *RedisServer, port int) bool {
	if master == nil {
		return true
	}
	info, err := master.CLI(ctx, "INFO", "replication")
	return err == nil && strings.Contains(info, ",port="+strconv.Itoa(port)+",state=online,")
}

// redisSettings are the arguments of redis-server.
func redisSettings(o RedisOptions, port int, dir string) (args []string) {
	all := map[string]string{"bind": "127.0.0.1", "save": "", "dir": dir, "daemonize": "no", "repl-diskless-sync": "no"}
	maps.Copy(all, o.Settings)
	all["port"] = strconv.Itoa(port)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		args = append(args, "--"+name, all[name])
	}
	if o.ReplicaOf != nil {
		args = append(args, "--replicaof", "127.0.0.1", strconv.Itoa(o.ReplicaOf.port))
	}
	return args
}

// CLI runs a command with redis-cli and returns its output. A reply that is
// an error is an error.
func (s *RedisServer) CLI(ctx context.Context, args ...string) (string, error) {
	return redisCLI(ctx, s.port, args...)
}

func redisCLI(ctx context.Context, port int, args ...string) (string, error) {
	cli, err := program("redis-cli")
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, cli, append([]string{"-h", "127.0.0.1", "-p", strconv.Itoa(port), "-e"}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("redis-cli %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimRight(string(out), "\n"), nil
}

// Redis returns the Redis server that all tests of the binary share; the first
// call starts it. It cannot be stopped, killed or paused, and keeps nothing on
// disk. Tests use different prefixes.
func Redis(t testing.TB) *RedisServer {
	t.Helper()
	return shared.redis.get(t, func(r *Rig) (*RedisServer, error) { return r.StartRedis(context.Background(), RedisOptions{}) })
}

// NewRedis starts a Redis server for this test alone, which the test may stop,
// kill and pause. It ends with the test.
func NewRedis(t testing.TB, o RedisOptions) *RedisServer {
	t.Helper()
	return alone(t, func(r *Rig) (*RedisServer, error) { return r.StartRedis(t.Context(), o) })
}
