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
	mu   sync.Mutex
	main bool // Main was called
	rig  *Rig

	postgres  once[*PostgresServer]
	redis     once[*RedisServer]
	rabbitmq  once[*RabbitMQServer]
	nats      once[*NATSServer]
	mariadb   once[*MariaDBServer]
	moto      once[*MotoServer]
	elasticmq once[*ElasticMQServer]
}

// once is a server that is started when a test first asks for it. shared.mu guards it.
type once[S served] struct {
	server S
	err    error // of starting it; not tried again
	asked  bool
}

// served is *Server, and the types that embed it.
type served interface{ base() *Server }

func (s *Server) base() *Server { return s }

type runner struct{ m interface{ Run() int } }

// Main wraps m so that its Run ends all servers after the last test. It must be
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

// get returns the server, which it starts with f if no test has asked before.
func (o *once[S]) get(t testing.TB, f func(*Rig) (S, error)) S {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	r, err := ofBinary()
	if err != nil {
		t.Fatal(err)
	}
	if !o.asked {
		o.asked = true
		if o.server, o.err = f(r); o.err == nil {
			o.server.base().shared = true
		}
	}
	if o.err != nil {
		t.Fatal(o.err)
	}
	return o.server
}

// start calls f with the rig of the binary.
func start[S any](t testing.TB, f func(*Rig) (S, error)) S {
	t.Helper()
	shared.mu.Lock()
	r, err := ofBinary()
	shared.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	s, err := f(r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// alone starts a server with f, and closes it and removes its files at the end of
// the test.
func alone[S served](t testing.TB, f func(*Rig) (S, error)) S {
	t.Helper()
	s := start(t, f)
	end(t, s.base())
	return s
}

func end(t testing.TB, s *Server) {
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), os.RemoveAll(s.dir)); err != nil {
			t.Error(err)
		}
	})
}

// Postgres returns the PostgreSQL server that all tests of the binary share; the
// first call starts it. It cannot be stopped, killed or paused.
func Postgres(t testing.TB) *PostgresServer {
	t.Helper()
	return shared.postgres.get(t, func(r *Rig) (*PostgresServer, error) { return r.StartPostgres(context.Background(), PostgresOptions{}) })
}

// NewPostgres starts a PostgreSQL server for this test alone, which the test may
// stop, kill and pause. It ends with the test.
func NewPostgres(t testing.TB, o PostgresOptions) *PostgresServer {
	t.Helper()
	return alone(t, func(r *Rig) (*PostgresServer, error) { return r.StartPostgres(t.Context(), o) })
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

// Folder makes a folder that tests of the binary share. It is removed after the last test.
func Folder(t testing.TB, name string) string {
	t.Helper()
	shared.mu.Lock()
	r, err := ofBinary()
	shared.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(r.dir, name+"-")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
