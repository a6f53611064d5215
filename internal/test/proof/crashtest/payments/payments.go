// Package payments crashes a payments service the way production does: processes
// that are killed and stopped, over servers that crash and networks that lose and
// delay, with customers who retry.
package payments

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
)

// Config says what one load test is. Faults of all kinds happen at the same time.
type Config struct {
	Place crashtest.Place
	Mode  Mode
	Seed  uint64 // of the schedule
	Kills int    // processes to kill at fault points

	// Server is killed ServerKills times, and the network to it fails
	// NetworkFaults times. Not for SQLite.
	Server        crashtest.Server
	ServerKills   int
	NetworkFaults int

	Stops int // times to stop a process with SIGSTOP, past its lease
	Fills int // times to fill the disk, which is small then; SQLite only, needs root

	Flushes int // times to remove all records of Redis

	Keep     string        // a directory to leave the histories in; "": none
	Progress func(string)  // told now and then; may be nil
	Timeout  time.Duration // for the whole; default 30 min, or less if nothing moves

	herd    *Herd         // in place of customers and faults
	defect  string        // planted
	without []fault.Point // points that processes do not pass with the defect
}

const (
	services  = 3 // that share the store
	maxVisit  = 3
	tightPool = 2 // connections of every third process

	stall = 3 * time.Minute // for which nothing moves, before a load test is given up
)

// Name is store/mode.
func (c Config) Name() string { return c.Place.Kind + "/" + string(c.Mode) }

// check fills in the defaults.
func (c Config) check() (Config, error) {
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Minute
	}
	switch {
	case !slices.Contains(crashtest.Kinds, c.Place.Kind):
		return c, fmt.Errorf("payments: there is no store %q", c.Place.Kind)
	case c.Mode == Tx && !c.Place.Transactions():
		return c, fmt.Errorf("payments: %s has no transactions to run in; its modes are unknown and verify", c.Place.Kind)
	case c.Server == nil && c.ServerKills+c.NetworkFaults > 0:
		return c, errors.New("payments: ServerKills and NetworkFaults need a Server")
	case c.Fills > 0 && c.Place.Kind != crashtest.SQLite:
		return c, errors.New("payments: Fills is for SQLite")
	}
	return c, nil
}

// Points are the fault points that a service passes in a mode, on a store.
func Points(kind string, m Mode) []fault.Point {
	ps := []fault.Point{fault.ClaimBefore, fault.HandlerBefore, fault.HandlerAfter,
		fault.ResponseBefore, fault.ResponseAfter, fault.SweepBefore, fault.SweepAfter}
	if m == Tx || kind == crashtest.SQLite || kind == crashtest.MySQL || kind == crashtest.Tier || kind == crashtest.TierPostgres { // elsewhere the statements of the lease mode commit by themselves
		ps = append(ps, fault.CommitBefore, fault.CommitAfter)
	}
	if m == Tx {
		return ps
	}
	ps = append(ps, fault.ClaimAfter, fault.SettleBefore, fault.SettleAfter, fault.ReleaseBefore, fault.ReleaseAfter,
		fault.HeartbeatBefore, fault.HeartbeatAfter)
	if m == Verify {
		ps = append(ps, fault.TakeoverBefore, fault.TakeoverAfter)
	}
	return ps
}

func (c Config) plan() *crashtest.Plan {
	if c.herd != nil {
		return c.herd.plan(services)
	}
	var all []crashtest.Visit
	for _, point := range Points(c.Place.Kind, c.Mode) {
		if slices.Contains(c.without, point) {
			continue
		}
		for n := range maxVisit {
			all = append(all, crashtest.Visit{Point: point, N: n + 1})
		}
	}
	return crashtest.NewPlan(rand.New(rand.NewPCG(c.Seed, 0)), c.Kills, all, nil)
}

// loadTest is one run.
type loadTest struct {
	cfg     Config
	dir     string
	place   crashtest.Place // as the services see it: through the network, if that fails
	disk    *crashtest.Disk
	network *crashtest.Network
	clients *clients
	killer  *crashtest.Killer
}

// Run lets a load test rage until all faults of cfg have happened, and returns the
// judge's report.
func Run(ctx context.Context, cfg Config) (crashtest.Report, error) {
	return run(ctx, cfg, func(ctx context.Context, s *loadTest) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		enough := make(chan struct{})
		var customers sync.WaitGroup
		customers.Go(func() { s.clients.payUntil(ctx, enough, s.cfg.Seed) })
		if err := s.befall(ctx); err != nil {
			cancel(err)
		}
		close(enough)
		customers.Wait()
		s.clients.askAgain(ctx)
		return context.Cause(ctx)
	})
}

// run has the processes of a load test while something is done with them, and judges.
func run(ctx context.Context, cfg Config, do func(context.Context, *loadTest) error) (rep crashtest.Report, err error) {
	if cfg, err = cfg.check(); err != nil {
		return rep, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Timeout, fmt.Errorf("%s: not done within %v", cfg.Name(), cfg.Timeout))
	defer cancel()
	s, err := newLoadTest(ctx, cfg)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	err = s.killer.While(ctx, func(ctx context.Context) error { return s.whileItMoves(ctx, do) })
	if rep.Tally = s.killer.Tally(); err == nil {
		rep.Resolution, err = s.judge(ctx)
	}
	return rep, err
}

// whileItMoves calls do with a context that ends when nothing has been killed, and
// no customer has got an answer, for a long time.
func (s *loadTest) whileItMoves(ctx context.Context, do func(context.Context, *loadTest) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // ends with ctx
		last, since := -1, time.Now()
		for ctx.Err() == nil && time.Since(since) < stall {
			if n := s.killer.Moved() + int(s.clients.answered.Load()); n != last {
				last, since = n, time.Now()
			}
			_ = crash.Pause(ctx, time.Second)
		}
		cancel(fmt.Errorf("%s: nothing has moved for %v: %+v", s.cfg.Name(), stall, s.killer.Tally()))
	}()
	return do(ctx, s)
}

func newLoadTest(ctx context.Context, cfg Config) (s *loadTest, err error) {
	dir, err := os.MkdirTemp("", "stet-crashtest-")
	if err != nil {
		return nil, err
	}
	s = &loadTest{cfg: cfg, dir: dir, place: cfg.Place}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	s.place.Dir = dir
	if cfg.Fills > 0 {
		if s.disk, err = crashtest.NewDisk(filepath.Join(dir, "disk")); err != nil {
			return s, err
		}
		s.place.Dir = s.disk.Dir
	}
	s.cfg.Place = s.place // the judge goes there directly
	if cfg.NetworkFaults > 0 {
		if s.network, err = crashtest.NewNetwork(cfg.Server.Addr()); err != nil {
			return s, err
		}
		s.place = s.network.Through(s.place)
	}
	if err := s.cfg.Place.Prepare(ctx); err != nil {
		return s, err
	}
	h, err := crashtest.OpenHistory(dir, 0)
	if err != nil {
		return s, err
	}
	s.clients = newClients(h, cfg.Mode)
	s.killer = &crashtest.Killer{Command: s.order, AtPoints: true, Flaky: cfg.ServerKills+cfg.NetworkFaults+cfg.Fills > 0, Name: cfg.Name(), Progress: cfg.Progress}
	if cfg.herd != nil {
		s.killer.Reach = func(crashtest.Visit) time.Duration { return cfg.Timeout }
	}
	plan := cfg.plan()
	for range services {
		addr, err := rig.FreeAddr()
		if err != nil {
			return s, err
		}
		s.clients.services = append(s.clients.services, addr)
		s.killer.Lanes = append(s.killer.Lanes, &crashtest.Lane{Addr: addr, Plan: plan})
	}
	return s, nil
}

// order is the n-th process's.
func (s *loadTest) order(l *crashtest.Lane, v crashtest.Visit, n int) (child.Command, error) {
	o := order{Dir: s.dir, Process: n, Place: s.place, Addr: l.Addr, Mode: s.cfg.Mode, Visit: v, Defect: s.cfg.defect}
	o.Hasty = n%3 == 1 && v.Point != "" && s.cfg.herd == nil
	if s.cfg.herd != nil {
		o.Place.Pool = s.cfg.herd.Pool
	} else if n%3 == 0 {
		o.Place.Pool = tightPool
	}
	return child.Order(childEnv, o)
}

// close releases all that the load test made, but for the processes.
func (s *loadTest) close() (err error) {
	if s.clients != nil {
		s.clients.http.CloseIdleConnections()
		err = s.clients.h.Close()
	}
	if s.network != nil {
		s.network.Close()
	}
	if s.cfg.Keep != "" {
		to := filepath.Join(s.cfg.Keep, strings.ReplaceAll(s.cfg.Name(), "/", "-"))
		err = errors.Join(err, os.CopyFS(to, os.DirFS(s.dir)))
	}
	if s.disk != nil {
		err = errors.Join(err, s.disk.Close())
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// befall makes all faults happen.
func (s *loadTest) befall(ctx context.Context) error {
	rng := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(s.cfg.Seed, 1000+n)) }
	return s.killer.Befall(ctx,
		func(ctx context.Context) error {
			return s.killer.KillServer(ctx, rng(0), s.cfg.Server, s.cfg.ServerKills)
		},
		func(ctx context.Context) error {
			return s.killer.FailNetwork(ctx, rng(1), s.network, s.cfg.NetworkFaults)
		},
		func(ctx context.Context) error { return s.killer.StopSome(ctx, rng(2), serviceLease, s.cfg.Stops) },
		func(ctx context.Context) error { return s.killer.FillDisk(ctx, rng(3), s.disk, s.cfg.Fills) },
		func(ctx context.Context) error {
			return s.killer.FlushRedis(ctx, s.cfg.Place.Addr, s.clients.h, s.clients.answered.Load, s.cfg.Flushes)
		})
}

// judge looks at every record again, when leases have run out and been swept,
// and has everything judged.
func (s *loadTest) judge(ctx context.Context) (v crashtest.Resolution, err error) {
	site, err := s.cfg.Place.Open(ctx, nil)
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, site.Close()) }()
	if err := s.look(ctx, site.Store); err != nil {
		return v, err
	}
	events, err := crashtest.ReadHistory(s.dir)
	if err != nil {
		return v, err
	}
	effects, err := crashtest.ReadLedger(s.dir, crashtest.Happened)
	if s.cfg.Mode == Tx && err == nil {
		effects, err = site.Effects(ctx)
	}
	if err != nil {
		return v, err
	}
	return crashtest.Judge(crashtest.Trial{Events: events, Effects: effects}, crashtest.PaymentLaw(s.cfg.Mode == MarkUnknown)), nil
}

// settleWithin is how long after the last process a record may be running:
// lease and sweep, and what a busy machine adds.
const settleWithin = serviceLease + 20*sweepEvery + 5*time.Second

func (s *loadTest) look(ctx context.Context, st store.Store) error {
	engine, err := stet.New(st, stet.Options{SweepEvery: sweepEvery})
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }() // it never fails
	end := time.Now().Add(settleWithin)
	looked := make(map[store.ID]bool)
	for _, p := range s.clients.all() {
		id := engine.ID(p.scope, p.key)
		if looked[id] {
			continue
		}
		looked[id] = true
		for {
			rec, err := st.Read(ctx, id)
			if err != nil {
				return err
			}
			if rec.State == store.Running && time.Now().Before(end) {
				_ = crash.Pause(ctx, sweepEvery)
				continue
			}
			ev := crashtest.Seen(crashtest.Looked, rec)
			ev.ID = id.String()
			s.clients.h.Add(ev)
			break
		}
	}
	return nil
}
