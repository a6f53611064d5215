package rig

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/stet-go/stet/internal/child"
)

const childEnv = "STET_RIG_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		asChild()
		return
	}
	goleak.VerifyTestMain(Main(m))
}

// asChild is a program that has a server until its standard input ends.
func asChild() {
	ctx, cancel := child.WithParent(context.Background(), os.Stdin)
	defer cancel()
	r, err := New()
	if err != nil {
		panic(err)
	}
	s, err := r.StartPostgres(ctx, PostgresOptions{})
	if err != nil {
		panic(err)
	}
	if os.Getenv(childEnv) == "paused" {
		if err := s.Pause(); err != nil {
			panic(err)
		}
	}
	child.Ready(os.Stdout, r.dir+" "+s.Addr()+" "+strconv.Itoa(r.reaper.Process.Pid))
	<-ctx.Done()
	if err := r.Close(); err != nil {
		panic(err)
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func do(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func ask[T any](t *testing.T, conn *pgx.Conn, sql string) (v T) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// eventually waits for what another process does.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if poll(ctx, done) != nil {
		t.Fatal("never: ", what)
	}
}

func gone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}

func TestEveryTestHasItsOwnDatabase(t *testing.T) {
	s := Postgres(t)
	a, b := s.Database(t), s.Database(t)
	if a == b || s != Postgres(t) {
		t.Fatal("databases are to differ, and the server must be one")
	}
	for _, url := range []string{a, b} {
		do(t, connect(t, url), "CREATE TABLE same_name ()")
	}
}

func TestServerIsDurable(t *testing.T) {
	conn := connect(t, Postgres(t).URL("postgres"))
	for _, setting := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		if v := ask[string](t, conn, "SHOW "+setting); v != "on" {
			t.Errorf("%s is %s", setting, v)
		}
	}
}

func TestSharedServerCannotBeStopped(t *testing.T) {
	s := Postgres(t)
	for name, f := range map[string]func() error{
		"Stop": s.Stop, "Kill": s.Kill, "Pause": s.Pause, "Restart": func() error { return s.Restart(t.Context()) },
	} {
		if err := f(); !errors.Is(err, errShared) {
			t.Errorf("%s: %v", name, err)
		}
	}
	connect(t, s.URL("postgres"))
}

func TestMissingProgramErrorNamesTheInstallCommand(t *testing.T) {
	if _, err := program("no-such-server"); err == nil || !strings.Contains(err.Error(), "make services") {
		t.Fatal(err)
	}
}

// TestServerEndsAndStartsAnew is one test of all ways to end, because making a
// server takes a second or two.
func TestServerEndsAndStartsAnew(t *testing.T) {
	s := NewPostgres(t, PostgresOptions{Settings: map[string]string{"max_connections": "20"}})
	addr, url := s.Addr(), s.Database(t)
	conn := connect(t, url)
	if v := ask[string](t, conn, "SHOW max_connections"); v != "20" {
		t.Errorf("max_connections is %s", v)
	}
	do(t, conn, "CREATE TABLE kept (n int)")
	for i, end := range []func() error{s.Stop, s.Kill, s.Stop, s.Kill} {
		do(t, conn, "INSERT INTO kept VALUES (1)")
		if i == 3 { // also from this state
			if err := s.Pause(); err != nil {
				t.Fatal(err)
			}
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if left := processes(s.dir); len(left) > 0 {
			t.Fatalf("processes %v are left", left)
		}
		if conn.Ping(t.Context()) == nil {
			t.Fatal("a server that has ended answers")
		}
		begun := time.Now()
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Log("started again after", time.Since(begun))
		if s.Addr() != addr {
			t.Fatalf("it was at %s and is at %s", addr, s.Addr())
		}
		conn = connect(t, url)
		if n := ask[int](t, conn, "SELECT count(*) FROM kept"); n != i+1 {
			t.Fatalf("%d rows of %d are there", n, i+1)
		}
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestPausedServerSendsNothingUntilItIsResumed(t *testing.T) {
	s := NewPostgres(t, PostgresOptions{})
	conn := connect(t, s.URL("postgres"))
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	answer := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT 1")
		answer <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if c, err := pgx.Connect(ctx, s.URL("postgres")); err == nil {
		_ = c.Close(ctx)
		t.Error("a paused server takes a connection")
	}
	select {
	case err := <-answer:
		t.Error("a paused server answers: ", err)
	default:
	}
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; err != nil {
		t.Error("after Resume: ", err)
	}
}

func TestServerOnATakenPortIsReported(t *testing.T) {
	s := Postgres(t)
	r, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	bouncer, err := r.StartPgBouncer(t.Context(), s, PgBouncerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	own, err := r.StartPostgres(t.Context(), PostgresOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []*Server{bouncer.Server, own.Server} {
		if err := o.Stop(); err != nil {
			t.Fatal(err)
		}
		// This text is what a first start takes for a reason to try another port.
		if err := o.launch(t.Context(), s.port); err == nil || !strings.Contains(err.Error(), "already in use") {
			t.Errorf("%s: %v", o.name, err)
		}
		if err := o.Start(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestServersOfTwoProgramsDoNotCollide(t *testing.T) {
	const programs = 2
	started := make(chan *child.Process, programs)
	for range programs {
		go func() {
			p, err := child.Start(t.Context(), child.Command{Env: []string{childEnv + "=running"}})
			if err != nil {
				t.Error(err)
			}
			started <- p
		}()
	}
	seen := map[string]bool{Postgres(t).Addr(): true}
	for range programs {
		p := <-started
		if p == nil {
			continue
		}
		dir, addr, _ := told(p)
		if seen[addr] {
			t.Error("two servers at ", addr)
		}
		seen[addr] = true
		connect(t, postgresURL(addr, "postgres"))
		p.Stop(30 * time.Second)
		if p.Killed() {
			t.Error("it did not end by itself")
		}
		if left := processes(dir); len(left) > 0 || !gone(dir) {
			t.Errorf("left: processes %v, directory %v", left, !gone(dir))
		}
	}
}

// told is what a child said when it was ready.
func told(p *child.Process) (dir, addr string, reaper int) {
	f := strings.Fields(p.Addr)
	reaper, _ = strconv.Atoi(f[2])
	return f[0], f[1], reaper
}

func segments(t *testing.T, dir string) (ids []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "postgres-1", "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(strings.Split(string(b), "\n")[6])[1:]
}

func segmentExists(t *testing.T, id string) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		if f := strings.Fields(string(line)); len(f) > 1 && f[1] == id {
			return true
		}
	}
	return false
}

func TestNothingIsLeftWhenTheProgramIsKilled(t *testing.T) {
	for _, state := range []string{"running", "paused"} {
		t.Run(state, func(t *testing.T) {
			p, err := child.Start(t.Context(), child.Command{Env: []string{childEnv + "=" + state}})
			if err != nil {
				t.Fatal(err)
			}
			dir, _, _ := told(p)
			segment := segments(t, dir)[0]
			if len(processes(dir)) == 0 || !segmentExists(t, segment) {
				t.Fatal("there is no server to begin with")
			}
			p.Kill()
			begun := time.Now()
			eventually(t, "the processes end", func() bool { return len(processes(dir)) == 0 })
			eventually(t, "the directory goes", func() bool { return gone(dir) })
			t.Log("all gone after", time.Since(begun))
			if segmentExists(t, segment) {
				t.Error("its shared memory is left")
			}
		})
	}
}

// TestKernelEndsServers_ReaperKilled shows that servers do not depend on
// the reaper.
func TestKernelEndsServers_ReaperKilled(t *testing.T) {
	p, err := child.Start(t.Context(), child.Command{Env: []string{childEnv + "=running"}})
	if err != nil {
		t.Fatal(err)
	}
	dir, _, reaper := told(p)
	kill(reaper)
	p.Kill()
	eventually(t, "the processes end", func() bool { return len(processes(dir)) == 0 })
	if err := os.RemoveAll(dir); err != nil { // the test has killed what would do it
		t.Fatal(err)
	}
}

func TestKilledServerLeavesNothingInAClosedRig(t *testing.T) {
	r, err := New()
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.StartPostgres(t.Context(), PostgresOptions{})
	if err != nil {
		t.Fatal(err)
	}
	segment := segments(t, r.dir)[0]
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if segmentExists(t, segment) || !gone(r.dir) {
		t.Errorf("left: shared memory %v, directory %v", segmentExists(t, segment), !gone(r.dir))
	}
	if err := s.Start(t.Context()); err == nil {
		t.Error("a server of a closed rig starts")
	}
}
