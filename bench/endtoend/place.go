package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/bench/internal/cpu"
	"github.com/stet-go/stet/bench/internal/post"
	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store/postgres"
)

// place is the stores that all services of a run share.
type place struct {
	settings
	rig      *rig.Rig
	postgres *rig.PostgresServer
	redis    *rig.RedisServer
	files    string // of the services
	database string
	pool     *pgxpool.Pool            // of the command itself, without the network
	firsts   map[string]*atomic.Int64 // requests with a new key that were answered, by contender
	next     atomic.Int64             // of new keys
	warm     map[string]bool          // contenders whose keys for replays are there
}

func newPlace(ctx context.Context, s settings) (_ *place, err error) {
	r, err := rig.New()
	if err != nil {
		return nil, err
	}
	p := &place{settings: s, rig: r, firsts: map[string]*atomic.Int64{}, warm: map[string]bool{}}
	for _, c := range contenders {
		p.firsts[c.name] = new(atomic.Int64)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.files, err = os.MkdirTemp("", "stet-bench-"); err != nil {
		return nil, err
	}
	progress("starting PostgreSQL and Redis")
	most := fmt.Sprint((len(s.compare) + 4) * (connections + 10))
	if p.postgres, err = r.StartPostgres(ctx, rig.PostgresOptions{Settings: map[string]string{"max_connections": most}}); err != nil {
		return nil, err
	}
	if p.redis, err = r.StartRedis(ctx, rig.RedisOptions{Settings: map[string]string{"appendonly": "yes", "appendfsync": "always"}}); err != nil {
		return nil, err
	}
	if p.database, err = p.postgres.CreateDatabase(ctx); err != nil {
		return nil, err
	}
	if p.pool, err = pgxpool.New(ctx, p.postgres.URL(p.database)); err != nil {
		return nil, err
	}
	if err := postgres.Migrate(ctx, p.pool, postgres.Options{}); err != nil {
		return nil, err
	}
	_, err = p.pool.Exec(ctx, schema())
	return p, err
}

func (p *place) close() error {
	if p.pool != nil {
		p.pool.Close()
	}
	return errors.Join(p.rig.Close(), os.RemoveAll(p.files))
}

var started = time.Now()

// progress tells people how far a run is.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%3.0fs %s\n", time.Since(started).Seconds(), fmt.Sprintf(format, args...))
}

// neighbourhood is a service of each contender, behind a network.
type neighbourhood struct {
	*place
	trip     time.Duration
	order    order // of services: where the stores are
	services map[string]*target
}

// target is a service that runs.
type target struct {
	contender
	process *child.Process
	addr    string
}

// at starts the network, and calls f.
func (p *place) at(ctx context.Context, trip time.Duration, f func(*neighbourhood) error) error {
	n := &neighbourhood{place: p, trip: trip, services: map[string]*target{}}
	n.order = order{Postgres: p.postgres.URL(p.database), Redis: p.redis.Addr(), Files: p.files}
	if trip > 0 {
		process, err := start(ctx, order{Targets: []string{p.postgres.Addr(), p.redis.Addr()}, Delay: trip / 2})
		if err != nil {
			return err
		}
		defer process.Kill()
		toPostgres, toRedis, _ := strings.Cut(process.Addr, ",")
		n.order.Postgres, n.order.Redis = rig.Through(toPostgres, n.order.Postgres), toRedis
	}
	defer n.close()
	if err := n.ping(); err != nil {
		return err
	}
	return f(n)
}

// ping tells what a round trip takes in truth.
func (n *neighbourhood) ping() error {
	conn, err := net.Dial("tcp", n.order.Redis) //nolint:noctx // it is this machine
	if err != nil {
		return err
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	_, took, err := rounds.Load(1, 100*time.Millisecond, func(int) error {
		if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
			return err
		}
		_, err := answers.ReadSlice('\n')
		return err
	})
	if err == nil && len(took) > 0 {
		rounds.Figure("endtoend_network_"+tripName(n.trip), milliseconds(took[len(took)/2]), "ms")
	}
	return err
}

func (n *neighbourhood) close() {
	for _, t := range n.services {
		t.process.Kill()
	}
}

// service returns the service of a contender, which it starts if need be.
func (n *neighbourhood) service(ctx context.Context, c contender) (*target, error) {
	if t := n.services[c.name]; t != nil {
		return t, nil
	}
	t, err := n.another(ctx, c)
	if err == nil {
		n.services[c.name] = t
	}
	return t, err
}

// another starts a service.
func (n *neighbourhood) another(ctx context.Context, c contender) (*target, error) {
	o := n.order
	o.Kind = c.name
	process, err := start(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	return &target{contender: c, process: process, addr: process.Addr}, nil
}

// start starts a child process.
func start(ctx context.Context, o order) (*child.Process, error) {
	command, err := child.Order(childEnv, o)
	if err != nil {
		return nil, err
	}
	return child.Start(ctx, command)
}

// used is what processes have used: the service, PostgreSQL, Redis.
type used [3]time.Duration

// used looks for the processes anew each time, as a pool may open connections in the meantime.
func (n *neighbourhood) used(t *target) (u used, err error) {
	for i, pids := range [3][]int{{t.process.PID()}, n.postgres.PIDs(), n.redis.PIDs()} {
		if u[i], err = cpu.Used(pids...); err != nil {
			return u, err
		}
	}
	return u, nil
}

// warmUp makes the operations that replays of a contender go round, once in a run.
func (n *neighbourhood) warmUp(t *target) error {
	if !t.keeps || n.warm[t.name] {
		return nil
	}
	n.warm[t.name] = true
	conn, err := post.Dial(t.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	for i := range n.kept {
		if err := n.pay(conn, old(t, int64(i))); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		n.firsts[t.name].Add(1)
	}
	return nil
}

func old(t *target, i int64) string { return fmt.Sprint(t.name, "-old-", i) }

// pay sends one request.
func (n *neighbourhood) pay(conn *post.Conn, key string) error {
	status, content, err := conn.Post(path, key, "", body)
	if err == nil && status != 201 {
		err = fmt.Errorf("status %d: %s", status, content)
	}
	return err
}
