package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
)

// shared is the rig of a test binary.
var shared struct {
	mu       sync.Mutex
	main     bool // Main was called
	rig      *Rig
	postgres *PostgresServer
	err      error // of starting postgres; not tried again
	redis    *RedisServer
	redisErr error // of starting redis; not tried again
}

type runner struct{ m interface{ Run() int } }

// Main wraps m so that its Run ends all servers after the last test. It is to be
// used in TestMain, by itself as os.Exit(rig.Main(m).Run()), or together with
// goleak as goleak.VerifyTestMain(rig.Main(m)).
func Main(m *testing.M) interface{ Run() int } {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.main = true
	return runner{m}
}

func (r runner) Run() int {
	code := r.m.Run()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.rig == nil {
		return code
	}
	if err := shared.rig.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "rig:", err)
		code = max(code, 1)
	}
	shared.rig = nil
	return code
}

var errNoMain = errors.New("TestMain has to call rig.Main, so that servers end with the tests")

// ofBinary returns the rig of this test binary. The caller holds shared.mu.
func ofBinary() (_ *Rig, err error) {
	if !shared.main {
		return nil, errNoMain
	}
	if shared.rig == nil {
		shared.rig, err = New()
	}
	return shared.rig, err
}

// Postgres returns the PostgreSQL server that all tests of the binary share; the
// first call starts it. It cannot be stopped, killed or paused.
func Postgres(t testing.TB) *PostgresServer {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	r, err := ofBinary()
	if err != nil {
		t.Fatal(err)
	}
	if shared.postgres == nil && shared.err == nil {
		if shared.postgres, shared.err = r.StartPostgres(context.Background(), PostgresOptions{}); shared.err == nil {
			shared.postgres.shared = true
		}
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.postgres
}

// NewPostgres starts a PostgreSQL server for this test alone, which the test may
// stop, kill and pause. It ends with the test.
func NewPostgres(t testing.TB, o PostgresOptions) *PostgresServer {
	t.Helper()
	s, err := start(t, func(r *Rig) (*PostgresServer, error) { return r.StartPostgres(t.Context(), o) })
	if err != nil {
		t.Fatal(err)
	}
	end(t, s.Server)
	return s
}

// start calls a function with the rig of the binary.
func start[S any](t testing.TB, f func(*Rig) (S, error)) (s S, err error) {
	t.Helper()
	shared.mu.Lock()
	r, err := ofBinary()
	shared.mu.Unlock()
	if err != nil {
		return s, err
	}
	return f(r)
}

// end closes a server at the end of a test, and removes its files.
func end(t testing.TB, s *Server) {
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), os.RemoveAll(s.dir)); err != nil {
			t.Error(err)
		}
	})
}

// Database makes a new, empty database for this test and returns its connection
// URL. It is dropped at the end of the test, with its connections.
func (s *PostgresServer) Database(t testing.TB) string {
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
	return s.URL(name)
}
