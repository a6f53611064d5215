// Package rig starts private servers for tests (PostgreSQL, PgBouncer, MariaDB, Redis, RabbitMQ, NATS, Kafka, ElasticMQ, ZooKeeper, Prometheus) as
// direct children of the test binary, on free ports of 127.0.0.1, with
// everything they write under one temporary directory. It never uses a server
// that the machine runs. It works on Linux.
//
// A test package says in its TestMain
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(rig.Main(m)) }
//
// and then starts the servers that it needs:
//
//	url := rig.Postgres(t).Database(t) // one server for the whole binary, a fresh database for this test
//	server := rig.NewPostgres(t, rig.PostgresOptions{}) // a server of its own, which the test may kill
//
// A command makes a Rig with New and closes it at the end.
//
// Nothing outlives the program, however it ends: servers are signalled by the
// kernel when their parent dies, and a small shell process, which waits for the
// same event, ends the remaining processes (servers stopped by SIGSTOP, for
// instance) and removes the directory.
package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"
)

// Rig is a set of servers under one directory.
type Rig struct {
	dir    string
	uid    int // the user that servers run as, when this process is root; else -1
	gid    int
	reaper *exec.Cmd
	leash  io.Closer     // the reaper acts when this is closed
	forks  chan func()   // run on the thread that is the servers' parent
	done   chan struct{} // closed to end that thread
	joined chan struct{} // closed when it has ended

	mu      sync.Mutex
	closed  bool
	servers []*Server
	numbers map[string]int
}

// New makes a rig without servers. The caller closes it.
func New() (*Rig, error) {
	// Not testing.TB.TempDir: servers may run as another user, and must be able
	// to walk into it.
	dir, err := os.MkdirTemp("", "stet-rig-")
	if err != nil {
		return nil, err
	}
	// Processes are found by their working directory, which the kernel tells
	// without symbolic links.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	r := &Rig{dir: dir, forks: make(chan func()), done: make(chan struct{}), joined: make(chan struct{}), numbers: map[string]int{}}
	err = os.Chmod(dir, 0o755)
	if err == nil {
		r.uid, r.gid, err = unprivileged()
	}
	if err == nil {
		err = r.startReaper()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	go r.parent()
	return r, nil
}

// parent starts all servers. The kernel's parent-death signal is sent when the
// thread that started a child ends, not when the process does; so one thread is
// kept for it, as long as the rig lives.
func (r *Rig) parent() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(r.joined)
	for {
		select {
		case fork := <-r.forks:
			fork()
		case <-r.done:
			return
		}
	}
}

// start starts cmd on the parent thread.
func (r *Rig) start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	select {
	case r.forks <- func() { result <- cmd.Start() }:
		return <-result
	case <-r.done:
		return errClosed
	}
}

// reap waits until its standard input ends, which is when this process has
// ended in any way, and then removes processes and files. Processes are known
// by their working directory: PostgreSQL's leave the process group, and their
// parent may be gone.
const reap = `
trap '' HUP INT TERM QUIT
cd /
read -r _
n=0
while [ -d "$1" ]; do
	pids=$(find /proc/[0-9]*/cwd -maxdepth 0 -lname "$1/*" 2>/dev/null | cut -d/ -f3)
	if [ -z "$pids" ]; then rm -rf "$1"; exit; fi
	case $n in
	0) kill -CONT $pids; kill -QUIT $pids ;;
	50) kill -KILL $pids; n=49 ;;
	esac
	n=$((n + 1))
	sleep 0.1
done
`

func (r *Rig) startReaper() error {
	//nolint:noctx // it has to outlive everything
	r.reaper = exec.Command("/bin/sh", "-c", reap, "stet-rig-reaper", r.dir)
	r.reaper.SysProcAttr = detached()
	leash, err := r.reaper.StdinPipe()
	if err != nil {
		return err
	}
	r.leash = leash
	return r.reaper.Start()
}

// Close ends all servers, at once and whatever their state, and removes all
// their files.
func (r *Rig) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	servers := r.servers
	r.mu.Unlock()

	var errs []error
	for i := len(servers) - 1; i >= 0; i-- { // a server may depend on earlier ones
		errs = append(errs, servers[i].Close())
	}
	close(r.done)
	<-r.joined
	errs = append(errs, os.RemoveAll(r.dir), r.leash.Close(), r.reaper.Wait())
	return errors.Join(errs...)
}

var errClosed = errors.New("the rig is closed")

// add makes the directory of a new server.
func (r *Rig) add(name string) (*Server, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errClosed
	}
	r.numbers[name]++
	s := &Server{rig: r, name: name, dir: filepath.Join(r.dir, fmt.Sprintf("%s-%d", name, r.numbers[name]))}
	if err := os.Mkdir(s.dir, 0o755); err != nil {
		return nil, err
	}
	if err := r.give(s.dir); err != nil {
		return nil, err
	}
	r.servers = append(r.servers, s)
	return s, nil
}

// give makes the user that servers run as the owner of path.
func (r *Rig) give(path string) error {
	if r.uid < 0 {
		return nil
	}
	return os.Chown(path, r.uid, r.gid)
}

// write makes a file that servers can read.
func (r *Rig) write(path string, content []byte) error {
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return err
	}
	return r.give(path)
}

// command is a command that runs in dir, as the user of servers, with none of
// this process's environment: variables such as PGPORT would change servers.
func (r *Rig) command(dir string, out io.Writer, argv ...string) *exec.Cmd {
	//nolint:noctx // servers of tests; a Server ends them
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	cmd.Stdout, cmd.Stderr = out, out
	return cmd
}

// poll calls done every few milliseconds until it says yes.
func poll(ctx context.Context, done func() bool) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
