package rig

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// PostgresOptions say how a PostgreSQL server is to differ from the usual.
type PostgresOptions struct {
	// Settings are parameters of postgresql.conf, by name. Settings that are not
	// named have PostgreSQL's own defaults, full durability included, but for
	// max_connections, which is 300.
	Settings map[string]string
}

// PostgresServer is a PostgreSQL server with the superuser postgres, who needs
// no password. Its locale is C, its encoding UTF-8.
type PostgresServer struct {
	*Server
	databases atomic.Int64
}

// StartPostgres makes a database cluster and starts its server.
func (r *Rig) StartPostgres(ctx context.Context, o PostgresOptions) (*PostgresServer, error) {
	initdb, err := program("initdb")
	if err != nil {
		return nil, err
	}
	postgres, err := program("postgres")
	if err != nil {
		return nil, err
	}
	s, err := r.add("postgres")
	if err != nil {
		return nil, err
	}
	data := filepath.Join(s.dir, "data")
	s.spec = postgresSpec(postgres, data, s.dir, o)
	var out bytes.Buffer
	cmd := r.command(s.dir, &out, initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
	cmd.SysProcAttr = r.child(syscall.SIGKILL)
	if err := r.start(cmd); err != nil {
		return nil, fmt.Errorf("initdb: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, out.Bytes())
	}
	if err := s.Start(ctx); err != nil {
		return nil, err
	}
	return &PostgresServer{Server: s}, nil
}

// postgresSpec is that of a server on the files in data.
func postgresSpec(postgres, data, dir string, o PostgresOptions) spec {
	pidFile := filepath.Join(data, "postmaster.pid")
	return spec{
		command: func(port int) ([]string, error) {
			return append([]string{postgres, "-D", data}, settings(o, port, dir)...), nil
		},
		// Not by a connection: on this port, another server may answer.
		ready: func(_, pid int) bool { return postmasterReady(pidFile, pid) },
		stop:  syscall.SIGINT,  // "fast"
		quit:  syscall.SIGQUIT, // "immediate"
		clear: func() { dropSharedMemory(pidFile) },
	}
}

// settings are the arguments of postgres.
func settings(o PostgresOptions, port int, dir string) (args []string) {
	all := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": dir,
		"max_connections":         "300",
		// In a file of the data directory, so that nothing of it stays in
		// /dev/shm when the server is killed.
		"dynamic_shared_memory_type": "mmap",
	}
	if len(dir) > 80 { // a path of a Unix socket has at most 107 bytes
		all["unix_socket_directories"] = ""
	}
	maps.Copy(all, o.Settings)
	all["port"] = strconv.Itoa(port)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		args = append(args, "-c", name+"="+all[name])
	}
	return args
}

// postmasterReady reports whether postmaster.pid is of the process pid, and
// says that it takes connections.
func postmasterReady(file string, pid int) bool {
	const status = 7
	b, err := os.ReadFile(file)
	lines := strings.Split(string(b), "\n")
	return err == nil && len(lines) > status && lines[0] == strconv.Itoa(pid) && strings.TrimSpace(lines[status]) == "ready"
}

// URL is the connection URL of a database of this server; "postgres" always
// exists.
func (s *PostgresServer) URL(database string) string { return postgresURL(s.Addr(), database) }

func postgresURL(addr, database string) string {
	return "postgres://postgres@" + addr + "/" + database + "?sslmode=disable"
}

// CreateDatabase makes a new, empty database and returns its name.
func (s *PostgresServer) CreateDatabase(ctx context.Context) (string, error) {
	name := fmt.Sprintf("test_%d", s.databases.Add(1))
	return name, s.exec(ctx, "CREATE DATABASE "+name)
}

// DropDatabase removes a database of CreateDatabase, and ends the connections
// to it.
func (s *PostgresServer) DropDatabase(ctx context.Context, name string) error {
	return s.exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
}

func (s *PostgresServer) exec(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, sql)
	return err
}
