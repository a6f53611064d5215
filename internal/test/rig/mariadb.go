package rig

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// MariaDBOptions say how a MariaDB server differs from the usual.
type MariaDBOptions struct {
	// Settings are options of mariadbd, by name. Settings that are not named have MariaDB's
	// own defaults, except max_connections, which is 400.
	Settings map[string]string
}

// MariaDBServer is a MariaDB server with the user root, who needs no password.
type MariaDBServer struct {
	*Server
	databases atomic.Int64
}

// StartMariaDB makes a data directory and starts its server.
func (r *Rig) StartMariaDB(ctx context.Context, o MariaDBOptions) (*MariaDBServer, error) {
	install, err := program("mariadb-install-db")
	if err != nil {
		return nil, err
	}
	server, err := program("mariadbd")
	if err != nil {
		return nil, err
	}
	s, err := r.add("mariadb")
	if err != nil {
		return nil, err
	}
	data := filepath.Join(s.dir, "data")
	var out bytes.Buffer
	cmd := r.command(s.dir, &out, install, "--no-defaults", "--datadir="+data, "--tmpdir="+s.dir, "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")
	cmd.SysProcAttr = r.child(syscall.SIGKILL)
	if err := r.start(cmd); err != nil {
		return nil, fmt.Errorf("mariadb-install-db: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("mariadb-install-db: %w: %s", err, out.Bytes())
	}
	var began int64 // how much of the log is of earlier starts
	s.spec = spec{
		command: func(port int) ([]string, error) {
			began = size(s.logFile())
			return append([]string{server, "--no-defaults", "--datadir=" + data}, mariadbSettings(o, port, s.dir)...), nil
		},
		// The log, and not a connection alone, says that it is this one.
		ready: func(port, _ int) bool {
			log, _ := os.ReadFile(s.logFile())
			return strings.Contains(string(log[min(began, int64(len(log))):]), "ready for connections") && answers(port)
		},
		stop: syscall.SIGTERM,
		quit: syscall.SIGKILL,
	}
	if err := s.Start(ctx); err != nil {
		return nil, err
	}
	return &MariaDBServer{Server: s}, nil
}

// mariadbSettings are the arguments of mariadbd.
func mariadbSettings(o MariaDBOptions, port int, dir string) (args []string) {
	all := map[string]string{
		"bind-address":    "127.0.0.1",
		"socket":          "sock", // in the data directory
		"pid-file":        filepath.Join(dir, "pid"),
		"tmpdir":          dir,
		"max_connections": "400",
	}
	maps.Copy(all, o.Settings)
	all["port"] = strconv.Itoa(port)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		args = append(args, "--"+name+"="+all[name])
	}
	return args
}

// DSN is the data source name of a database of this server, for go-sql-driver/mysql.
func (s *MariaDBServer) DSN(database string) string { return "root@tcp(" + s.Addr() + ")/" + database }

// URL is the connection URL of a database of this server.
func (s *MariaDBServer) URL(database string) string {
	return "mysql://root@" + s.Addr() + "/" + database
}

// CreateDatabase makes a new, empty database and returns its name.
func (s *MariaDBServer) CreateDatabase(ctx context.Context) (string, error) {
	name := fmt.Sprintf("test_%d", s.databases.Add(1))
	return name, s.exec(ctx, "CREATE DATABASE "+name)
}

// DropDatabase removes a database of CreateDatabase.
func (s *MariaDBServer) DropDatabase(ctx context.Context, name string) error {
	return s.exec(ctx, "DROP DATABASE IF EXISTS "+name)
}

func (s *MariaDBServer) exec(ctx context.Context, statement string) error {
	client, err := program("mariadb")
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, client, "--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--port="+strconv.Itoa(s.port), "--user=root", "-e", statement).CombinedOutput()
	if err != nil {
		return fmt.Errorf("mariadb: %s: %w: %s", statement, err, out)
	}
	return nil
}

// MariaDB returns the MariaDB server that all tests of the binary share; the first call
// starts it. It cannot be stopped, killed or paused.
func MariaDB(t testing.TB) *MariaDBServer {
	t.Helper()
	return shared.mariadb.get(t, func(r *Rig) (*MariaDBServer, error) { return r.StartMariaDB(context.Background(), MariaDBOptions{}) })
}

// NewMariaDB starts a MariaDB server for this test alone, which the test may stop, kill
// and pause. It ends with the test.
func NewMariaDB(t testing.TB, o MariaDBOptions) *MariaDBServer {
	t.Helper()
	return alone(t, func(r *Rig) (*MariaDBServer, error) { return r.StartMariaDB(t.Context(), o) })
}

// Database makes a new, empty database for this test and returns its data source name. It
// is dropped at the end of the test.
func (s *MariaDBServer) Database(t testing.TB) string {
	t.Helper()
	name, err := s.CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !s.shared {
			return // it goes with its server, which may not even run now
		}
		if err := s.DropDatabase(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
	return s.DSN(name)
}
