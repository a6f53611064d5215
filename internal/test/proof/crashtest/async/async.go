// Package async kills the processes that accept operations and the processes that run
// them, again and again. It restarts the queue between
// them, and the judge compares the replies, the records and the effects.
package async

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	js "github.com/nats-io/nats.go/jetstream"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/internal/test/rig"
)

// Config says what to run.
type Config struct {
	Flavour  string // one of Flavours
	Kills    int    // of processes
	Restarts int    // of the broker, or of PostgreSQL where River is the queue
	Seed     uint64
	Keep     string       // a directory to leave histories, ledger, SQLite's file and the logs in; "": they are removed
	Progress func(string) // told now and then; may be nil
}

// Report is the result.
type Report struct {
	crashtest.Report
	Verified int // expired runs that a verifier was asked about
}

const (
	reachTimeout = 8 * time.Second // for a child to come by its point; then it is killed where it is
	drainTimeout = 5 * time.Minute
	maxVisit     = 5
	oneInStops   = 6 // processes that work
)

// loadTest is one run.
type loadTest struct {
	cfg     Config
	f       flavour
	place   crashtest.Place
	broker  string // URL
	killer  *crashtest.Killer
	clients *clients
	rep     Report
}

// Run runs it on servers of r: clients order while processes are killed, until
// they all have their outcomes.
func Run(ctx context.Context, r *rig.Rig, cfg Config) (Report, error) {
	return run(ctx, r, cfg, func(ctx context.Context, s *loadTest) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		enough := make(chan struct{})
		var customers sync.WaitGroup
		customers.Go(func() { s.clients.orderUntil(ctx, enough) })
		if err := s.killer.Befall(ctx); err != nil { // nothing but kills
			cancel(err)
		}
		close(enough)
		late := time.AfterFunc(drainTimeout, func() { cancel(errors.New("the clients did not get their outcomes in time")) })
		defer late.Stop()
		customers.Wait()
		return context.Cause(ctx)
	})
}

// run has processes while do runs, and until nothing more is in progress, and judges,
// also if something went wrong: it may say why.
func run(ctx context.Context, r *rig.Rig, cfg Config, do func(context.Context, *loadTest) error) (rep Report, err error) {
	i := slices.IndexFunc(flavours, func(f flavour) bool { return f.name == cfg.Flavour })
	if i < 0 {
		return rep, fmt.Errorf("the flavour is %q; it must be one of %s", cfg.Flavour, strings.Join(Flavours(), ", "))
	}
	dir, err := os.MkdirTemp(cfg.Keep, "crashtest-async-")
	if err != nil {
		return rep, err
	}
	if cfg.Keep == "" {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	s := &loadTest{cfg: cfg, f: flavours[i]}
	if err := s.newKiller(); err != nil {
		return rep, err
	}
	if err := s.startServers(ctx, r, dir); err != nil {
		return rep, err
	}
	h, err := crashtest.OpenHistory(dir, 0)
	if err != nil {
		return rep, err
	}
	s.clients = newClients(h, s.f)
	for _, l := range s.killer.Lanes {
		if l.Addr != "" {
			s.clients.addrs = append(s.clients.addrs, l.Addr)
		}
	}
	defer func() { err = errors.Join(err, s.clients.close()) }()
	site, err := s.place.Open(ctx, nil)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, site.Close()) }()
	engine, err := stet.New(site.Store, stet.Options{SweepEvery: -1})
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	err = s.killer.While(ctx, func(ctx context.Context) error {
		if err := do(ctx, s); err != nil {
			return err
		}
		return s.settle(ctx, site, engine)
	})
	s.rep.Tally = s.killer.Tally()
	err = errors.Join(err, s.judge(ctx, site, engine))
	return s.rep, err
}

// newKiller plans the kills for each role.
func (s *loadTest) newKiller() error {
	s.killer = &crashtest.Killer{Command: s.order, Flaky: true, Reach: func(crashtest.Visit) time.Duration { return reachTimeout }, Name: s.f.name, Progress: s.cfg.Progress}
	for i, role := range s.f.roles {
		var all []crashtest.Visit
		for _, p := range s.f.points(role) {
			all = append(all, crashtest.Visit{Point: p})
		}
		kills := s.cfg.Kills*(i+1)/len(s.f.roles) - s.cfg.Kills*i/len(s.f.roles)
		plan := crashtest.NewPlan(rand.New(rand.NewPCG(s.cfg.Seed, uint64(i))), kills, all, func(rng *rand.Rand, v *crashtest.Visit) {
			if v.N = 1; !rare[v.Point] {
				v.N += rng.IntN(maxVisit)
			}
			if role != serves && rng.IntN(oneInStops) == 0 {
				v.Point, v.Stop = stale[rng.IntN(len(stale))], stopFor
			}
		})
		for range processes {
			l := &crashtest.Lane{Role: role, Plan: plan}
			if role != works {
				addr, err := rig.FreeAddr()
				if err != nil {
					return err
				}
				l.Addr = addr
			}
			s.killer.Lanes = append(s.killer.Lanes, l)
		}
	}
	return nil
}

func (s *loadTest) order(l *crashtest.Lane, v crashtest.Visit, _ int) (child.Command, error) {
	return child.Order(childEnv, order{Flavour: s.f.name, Role: l.Role, Addr: l.Addr, Place: s.place, Broker: s.broker, Visit: v})
}

// startServers starts the servers of the flavour, and creates their contents.
func (s *loadTest) startServers(ctx context.Context, r *rig.Rig, dir string) (err error) {
	var server crashtest.Server
	if s.place, server, err = crashtest.StartServer(ctx, r, s.f.store); err != nil {
		return err
	}
	if s.place.Dir = dir; s.f.store == crashtest.Postgres {
		s.place.Pool = 24
	}
	if err := s.place.Prepare(ctx); err != nil {
		return err
	}
	if s.f.store == crashtest.MySQL {
		s.killer.Restart = func(ctx context.Context) error { return errors.Join(server.Kill(), server.Start(ctx)) }
	}
	switch s.f.queue {
	case byRiver:
		s.killer.Restart = func(ctx context.Context) error { return errors.Join(server.Kill(), server.Start(ctx)) }
		err = migrateRiver(ctx, s.place.URL)
	case byRabbitMQ:
		var server *rig.RabbitMQServer
		if server, err = crashtest.StartRabbitMQ(ctx, r, workQueue); err == nil {
			s.broker, s.killer.Restart = server.URL(), server.Restart
		}
	case byJetStream:
		var server *rig.NATSServer
		server, err = crashtest.StartNATS(ctx, r, js.StreamConfig{Name: workQueue, Subjects: []string{workQueue}}, js.StreamConfig{Name: deadQueue, Subjects: []string{deadQueue}})
		if err == nil {
			s.broker = server.URL()
			s.killer.Restart = func(ctx context.Context) error { return errors.Join(server.Kill(), server.Start(ctx)) }
		}
	}
	if s.killer.Restart != nil {
		s.killer.Restarts = s.cfg.Restarts
	}
	return err
}

func migrateRiver(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err == nil {
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	return err
}
