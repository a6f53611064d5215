// Package ordeal runs a payments service the way production does, in processes
// that are killed and stopped, over servers that crash and networks that lose
// and delay, with customers who retry. Everything is in histories, and a judge
// who has seen nothing else compares them with a ledger of what was charged.
package ordeal

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
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/rig"
)

// Server is a database server that can be killed.
type Server interface {
	Addr() string // host:port
	Kill() error
	Start(context.Context) error
}

// Config says what one storm is. Faults of all kinds happen at the same time.
type Config struct {
	Place Place
	Mode  Mode
	Seed  uint64 // of the schedule
	Kills int    // processes to kill at fault points
	// Services is how many processes share the store. Default 3, and 1 with
	// Verify, whose verifier needs it so.
	Services int

	// Server is killed ServerKills times, and the network to it fails
	// NetworkFaults times. Not for SQLite.
	Server        Server
	ServerKills   int
	NetworkFaults int

	Stops int // times to stop a process with SIGSTOP, past its lease
	Fills int // times to fill the disk, which is small then; SQLite only, needs root

	Keep     string        // a directory to leave the histories in; "": none
	Progress func(string)  // told now and then; may be nil
	Timeout  time.Duration // for the whole; default 30 min
}

// Name is store/mode.
func (c Config) Name() string { return c.Place.Kind + "/" + string(c.Mode) }

// check fills in the defaults.
func (c Config) check() (Config, error) {
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Minute
	}
	if c.Services == 0 {
		c.Services = 3
	}
	if c.Mode == Verify {
		c.Services = 1
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	switch {
	case c.Place.Kind != SQLite && c.Place.Kind != Postgres && c.Place.Kind != Redis:
		return c, errNoStore(c.Place.Kind)
	case c.Place.Kind == Redis && c.Mode == Tx:
		return c, errors.New("ordeal: Redis has no transactions to run in; its modes are park and verify")
	case c.Server == nil && c.ServerKills+c.NetworkFaults > 0:
		return c, errors.New("ordeal: ServerKills and NetworkFaults need a Server")
	case c.Fills > 0 && c.Place.Kind != SQLite:
		return c, errors.New("ordeal: Fills is for SQLite")
	case c.Mode == Verify && c.Stops+c.NetworkFaults > 0:
		// The verifier takes every claim from before its process began for
		// dead. A claim that arrives late would be younger, and so unknown
		// until the next process.
		return c, errors.New("ordeal: the verifier's services are neither stopped nor cut off")
	}
	return c, nil
}

// Points are the fault points that a service passes in a mode, on a store.
func Points(kind string, m Mode) []fault.Point {
	ps := []fault.Point{fault.ClaimBefore, fault.HandlerBefore, fault.HandlerAfter,
		fault.ResponseBefore, fault.ResponseAfter, fault.SweepBefore, fault.SweepAfter}
	if m == Tx || kind == SQLite { // elsewhere the statements of the lease mode commit by themselves
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

// storm is one run.
type storm struct {
	cfg       Config
	dir       string
	place     Place // as the services see it: through the network, if that fails
	disk      *disk
	network   *network
	clients   *clients
	lanes     []*lane
	processes atomic.Int64

	mu  sync.Mutex
	rep *Report
}

// Run lets a storm rage until all faults of cfg have happened, and returns the
// judge's report.
func Run(ctx context.Context, cfg Config) (rep Report, err error) {
	if cfg, err = cfg.check(); err != nil {
		return rep, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Timeout, fmt.Errorf("%s: not done within %v", cfg.Name(), cfg.Timeout))
	defer cancel()
	s, err := newStorm(ctx, cfg, &rep)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, s.close()) }()

	enough := make(chan struct{})
	var customers sync.WaitGroup
	customers.Go(func() { s.clients.payUntil(ctx, enough, cfg.Seed) })
	err = s.rage(ctx)
	close(enough)
	if err = errors.Join(err, s.calm(ctx)); err != nil {
		cancel()
		customers.Wait()
		s.stopAll()
		return rep, err
	}
	err = s.await(ctx, &customers)
	if err == nil {
		s.clients.askAgain(ctx)
	}
	s.stopAll()
	if err = errors.Join(err, context.Cause(ctx)); err != nil {
		return rep, err
	}
	rep.Verdict, err = s.judge(ctx)
	return rep, err
}

func newStorm(ctx context.Context, cfg Config, rep *Report) (s *storm, err error) {
	dir, err := os.MkdirTemp("", "stet-ordeal-")
	if err != nil {
		return nil, err
	}
	s = &storm{cfg: cfg, dir: dir, rep: rep, place: cfg.Place}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	s.rep.init()
	if s.place.Kind == SQLite {
		s.place.Dir = dir
	}
	if cfg.Fills > 0 {
		if s.disk, err = newDisk(filepath.Join(dir, "disk")); err != nil {
			return s, err
		}
		s.place.Dir = s.disk.dir
	}
	s.cfg.Place = s.place // the judge goes there directly
	if cfg.NetworkFaults > 0 {
		if s.network, err = newNetwork(cfg.Server.Addr()); err != nil {
			return s, err
		}
		s.place = s.network.through(s.place)
	}
	if err := s.cfg.Place.prepare(ctx); err != nil {
		return s, err
	}
	var services []string
	for range cfg.Services {
		addr, err := rig.FreeAddr()
		if err != nil {
			return s, err
		}
		services = append(services, addr)
		s.lanes = append(s.lanes, &lane{storm: s, addr: addr})
	}
	h, err := OpenHistory(dir, 0)
	if err != nil {
		return s, err
	}
	s.clients = newClients(h, cfg.Mode, services)
	return s, nil
}

// close lets go of all that the storm made, but for the processes.
func (s *storm) close() (err error) {
	if s.clients != nil {
		s.clients.http.CloseIdleConnections()
		err = s.clients.h.Close()
	}
	if s.network != nil {
		s.network.close()
	}
	if s.cfg.Keep != "" {
		to := filepath.Join(s.cfg.Keep, strings.ReplaceAll(s.cfg.Name(), "/", "-"))
		err = errors.Join(err, os.CopyFS(to, os.DirFS(s.dir)))
	}
	if s.disk != nil {
		err = errors.Join(err, s.disk.close())
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// rage makes all faults happen. The processes go on until those that befall them
// from outside have happened, too.
func (s *storm) rage(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	do := func(all *sync.WaitGroup, f func(context.Context) error) {
		all.Go(func() {
			if err := f(ctx); err != nil {
				cancel(err)
			}
		})
	}
	var deaths, outside sync.WaitGroup
	plan, over := newPlan(s.cfg), make(chan struct{})
	for _, l := range s.lanes {
		do(&deaths, func(ctx context.Context) error {
			return errors.Join(l.cycles(ctx, plan), l.linger(ctx, over))
		})
	}
	rng := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(s.cfg.Seed, 1000+n)) }
	do(&outside, func(ctx context.Context) error { return s.killServer(ctx, rng(0)) })
	do(&outside, func(ctx context.Context) error { return s.failNetwork(ctx, rng(1)) })
	do(&outside, func(ctx context.Context) error { return s.stopServices(ctx, rng(2)) })
	do(&outside, func(ctx context.Context) error { return s.fillDisk(ctx, rng(3)) })
	outside.Wait()
	close(over)
	deaths.Wait()
	return context.Cause(ctx)
}

// calm starts the services for the last time, without any orders to die.
func (s *storm) calm(ctx context.Context) error {
	for _, l := range s.lanes {
		l.end()
		if err := l.start(ctx, s.order(visit{})); err != nil {
			return err
		}
	}
	return nil
}

// patience is how long customers may take after the faults before the services
// are started anew.
const patience = 20 * time.Second

// await waits for the customers. A claim of a process that was killed may reach
// the store late, when its successor runs already; only the next successor's
// verifier knows that its owner is dead.
func (s *storm) await(ctx context.Context, customers *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() { // ends with the customers, who end with ctx
		defer close(done)
		customers.Wait()
	}()
	for {
		t := time.NewTimer(patience)
		select {
		case <-done:
			t.Stop()
			return context.Cause(ctx)
		case <-t.C:
		}
		s.cfg.Progress(s.cfg.Name() + ": customers still wait; the services are started anew")
		if err := s.calm(ctx); err != nil {
			return err
		}
	}
}

func (s *storm) stopAll() {
	for _, l := range s.lanes {
		l.stop()
	}
}

// judge looks at every record once more, when leases have run out and been swept,
// and has everything judged.
func (s *storm) judge(ctx context.Context) (v Verdict, err error) {
	back, err := s.cfg.Place.open(ctx, nil)
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, back.close()) }()
	if err := s.look(ctx, back.store); err != nil {
		return v, err
	}
	events, err := ReadHistory(s.dir)
	if err != nil {
		return v, err
	}
	ledger, err := ReadLedger(s.dir)
	if s.cfg.Mode == Tx && err == nil {
		ledger, err = back.entries(ctx)
	}
	if err != nil {
		return v, err
	}
	return Judge(events, ledger, s.cfg.Mode == Park), nil
}

// settleWithin is how long after the last process a record may be running:
// lease and sweep, and what a busy machine adds.
const settleWithin = serviceLease + 20*sweepEvery + 5*time.Second

func (s *storm) look(ctx context.Context, store stet.Store) error {
	engine, err := stet.New(store, stet.Options{SweepEvery: sweepEvery})
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }() // it never fails
	end := time.Now().Add(settleWithin)
	s.clients.mu.Lock()
	paid := slices.Clone(s.clients.paid)
	s.clients.mu.Unlock()
	looked := make(map[stet.ID]bool, len(paid))
	for _, p := range paid {
		id := engine.ID(p.scope, p.key)
		if looked[id] {
			continue
		}
		looked[id] = true
		for {
			rec, err := store.Read(ctx, id)
			if err != nil {
				return err
			}
			if rec.State == stet.Running && time.Now().Before(end) {
				pause(ctx, sweepEvery)
				continue
			}
			ev := seen(Looked, rec)
			ev.ID = id.String()
			s.clients.h.Add(ev)
			break
		}
	}
	return nil
}
