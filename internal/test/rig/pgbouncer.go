package rig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// PgBouncerOptions say how a PgBouncer is to differ from the usual.
type PgBouncerOptions struct {
	// Settings are parameters of the section [pgbouncer], by name. Settings that are
	// not named have PgBouncer's own defaults, but for pool_mode, which is
	// transaction, and max_client_conn, which is 1000.
	Settings map[string]string
}

// PgBouncerServer is a PgBouncer in front of all databases of a PostgreSQL
// server.
type PgBouncerServer struct{ *Server }

// StartPgBouncer starts a PgBouncer in front of a server.
func (r *Rig) StartPgBouncer(ctx context.Context, of *PostgresServer, o PgBouncerOptions) (*PgBouncerServer, error) {
	pgbouncer, err := program("pgbouncer")
	if err != nil {
		return nil, err
	}
	s, err := r.add("pgbouncer")
	if err != nil {
		return nil, err
	}
	config := filepath.Join(s.dir, "pgbouncer.ini")
	users := filepath.Join(s.dir, "users.txt")
	s.spec = spec{
		command: func(port int) ([]string, error) {
			return []string{pgbouncer, config}, errors.Join(
				r.write(users, []byte("\"postgres\" \"\"\n")),
				r.write(config, bouncerConfig(of, o, port, users)))
		},
		ready: func(port, pid int) bool {
			// The log, and not a connection alone, says that it is this one.
			log, _ := os.ReadFile(s.logFile())
			return strings.Contains(string(log), fmt.Sprintf("[%d] LOG process up", pid)) && answers(port)
		},
		stop: syscall.SIGTERM,
		quit: syscall.SIGKILL, // it has nothing to lose
	}
	if err := s.Start(ctx); err != nil {
		return nil, err
	}
	return &PgBouncerServer{s}, nil
}

func bouncerConfig(of *PostgresServer, o PgBouncerOptions, port int, users string) []byte {
	all := map[string]string{
		"listen_addr":               "127.0.0.1",
		"unix_socket_dir":           "",
		"auth_type":                 "trust",
		"auth_file":                 users,
		"pool_mode":                 "transaction",
		"max_client_conn":           "1000",
		"ignore_startup_parameters": "extra_float_digits",
	}
	maps.Copy(all, o.Settings)
	all["listen_port"] = strconv.Itoa(port)
	var b strings.Builder
	fmt.Fprintf(&b, "[databases]\n* = host=127.0.0.1 port=%d\n[pgbouncer]\n", of.port)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s = %s\n", name, all[name])
	}
	return []byte(b.String())
}

// answers reports whether something accepts connections on port.
func answers(port int) bool {
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) //nolint:noctx // on this host it is at once
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// URL is the connection URL, through the PgBouncer, of a database of the server
// behind it.
func (s *PgBouncerServer) URL(database string) string { return postgresURL(s.Addr(), database) }

// PgBouncer starts a PgBouncer in front of a server. It ends with the test.
func PgBouncer(t testing.TB, of *PostgresServer, o PgBouncerOptions) *PgBouncerServer {
	t.Helper()
	return alone(t, func(r *Rig) (*PgBouncerServer, error) { return r.StartPgBouncer(t.Context(), of, o) })
}

// Through returns url, a connection URL of this package, with another host:port:
// the same database through a PgBouncer or a Proxy.
func Through(addr, url string) string {
	before, rest, _ := strings.Cut(url, "@")
	_, after, _ := strings.Cut(rest, "/")
	return before + "@" + addr + "/" + after
}
