package rig

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
)

// StartStandby makes a copy of the server and starts it as a standby that follows
// it by streaming, under that name (application_name), by which
// synchronous_standby_names may call it.
func (r *Rig) StartStandby(ctx context.Context, of *PostgresServer, name string) (*PostgresServer, error) {
	basebackup, err := program("pg_basebackup")
	if err != nil {
		return nil, err
	}
	postgres, err := program("postgres")
	if err != nil {
		return nil, err
	}
	s, err := r.add("standby")
	if err != nil {
		return nil, err
	}
	data := filepath.Join(s.dir, "data")
	from := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres", of.port)
	o := PostgresOptions{Settings: map[string]string{"primary_conninfo": from + " application_name=" + name}}
	s.spec = postgresSpec(postgres, data, s.dir, o)
	var out bytes.Buffer
	cmd := r.command(s.dir, &out, basebackup, "-D", data, "-d", from, "-X", "stream", "-c", "fast", "--no-sync")
	cmd.SysProcAttr = r.child(syscall.SIGKILL)
	if err := r.start(cmd); err != nil {
		return nil, fmt.Errorf("pg_basebackup: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("pg_basebackup: %w: %s", err, out.Bytes())
	}
	if err := r.write(filepath.Join(data, "standby.signal"), nil); err != nil {
		return nil, err
	}
	if err := s.Start(ctx); err != nil {
		return nil, err
	}
	return &PostgresServer{Server: s}, nil
}

// Standby starts a standby of a server. It ends with the test.
func Standby(t testing.TB, of *PostgresServer, name string) *PostgresServer {
	t.Helper()
	return alone(t, func(r *Rig) (*PostgresServer, error) { return r.StartStandby(t.Context(), of, name) })
}
