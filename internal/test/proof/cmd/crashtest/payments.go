package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/internal/test/proof/crashtest/payments"
	"github.com/stet-go/stet/internal/test/rig"
)

var paymentFlags = flag.NewFlagSet("payments", flag.ExitOnError)

var (
	stores      = paymentFlags.String("store", "sqlite,postgres,redis", "stores, separated by commas")
	modes       = paymentFlags.String("modes", "tx,unknown,verify", "modes, separated by commas; Redis has no tx")
	kills       = paymentFlags.Int("kills", 1040, "processes to kill at fault points, in all")
	serverKills = paymentFlags.Int("server-kills", 60, "times to kill a database server, in all")
	network     = paymentFlags.Int("network", 120, "faults of the network between services and servers, in all")
	stops       = paymentFlags.Int("stops", 60, "processes to stop past their lease while customers pay, in all")
	fills       = paymentFlags.Int("fills", 20, "times to fill SQLite's disk, in all (root only)")
	herd        = paymentFlags.Int("herd", 10_000, "callers on one key, for each store; 0: no herd")
	lost        = paymentFlags.Int("lost", 100, "COMMITs of PostgreSQL to lose on their way, and as many answers to them")
	zombies     = paymentFlags.Int("zombies", 20, "processes to stop past their lease and let settle, with another claim and without, for each store")
	parallel    = paymentFlags.Int("parallel", runtime.GOMAXPROCS(0), "load tests at a time")
	seed        = paymentFlags.Uint64("seed", uint64(time.Now().UnixNano()), "of the schedules")
	keep        = paymentFlags.String("keep", "", "directory to leave the histories in")
	long        = paymentFlags.Bool("long", false, "10,000 kills and 1,000 of servers, and ten times the rest (hours)")
)

// session is one run of the command.
type session struct {
	rig   *rig.Rig
	began time.Time

	mu      sync.Mutex
	reports map[string]*crashtest.Report
	sum     crashtest.Report
	broken  []string
}

// runPayments puts a payments service to the test on every store.
func runPayments(ctx context.Context) (err error) {
	if *long {
		for _, n := range []*int{kills, network, stops, fills, lost, zombies} {
			*n *= 10
		}
		*serverKills = 1000
	}
	s := &session{began: time.Now(), reports: make(map[string]*crashtest.Report)}
	fmt.Fprintf(os.Stdout, "seed %d\n", *seed)
	if s.rig, err = rig.New(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.rig.Close()) }()
	todo, err := s.loadTests()
	if err != nil {
		return err
	}
	if err := s.inParallel(ctx, todo); err != nil {
		return err
	}
	for _, kind := range strings.Split(*stores, ",") {
		if err := s.others(ctx, kind); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	s.figures()
	for _, v := range s.sum.Violations {
		s.broken = append(s.broken, v.String())
	}
	return broken(s.broken)
}

// loadTests divides the faults among stores and modes.
func (s *session) loadTests() (todo []payments.Config, err error) {
	for _, kind := range strings.Split(*stores, ",") {
		if !slices.Contains([]string{crashtest.SQLite, crashtest.Postgres, crashtest.Redis}, kind) {
			return nil, fmt.Errorf("-store has %q; there are sqlite, postgres and redis", kind)
		}
		for _, mode := range strings.Split(*modes, ",") {
			m := payments.Mode(mode)
			if !slices.Contains([]payments.Mode{payments.Tx, payments.MarkUnknown, payments.Verify}, m) {
				return nil, fmt.Errorf("-modes has %q; there are tx, unknown and verify", mode)
			}
			if kind != crashtest.Redis || m != payments.Tx {
				todo = append(todo, payments.Config{Place: crashtest.Place{Kind: kind}, Mode: m, Keep: *keep, Timeout: 6 * time.Hour, Progress: progress})
			}
		}
	}
	s.share(todo, *kills, func(c *payments.Config) *int { return &c.Kills }, func(payments.Config) bool { return true })
	s.share(todo, *serverKills, func(c *payments.Config) *int { return &c.ServerKills }, onServer)
	s.share(todo, *network, func(c *payments.Config) *int { return &c.NetworkFaults }, onServer)
	s.share(todo, *stops, func(c *payments.Config) *int { return &c.Stops }, func(payments.Config) bool { return true })
	s.share(todo, *fills, func(c *payments.Config) *int { return &c.Fills }, func(c payments.Config) bool { return !onServer(c) })
	for i := range todo {
		todo[i].Seed = *seed + uint64(i)
	}
	return todo, nil
}

func onServer(c payments.Config) bool { return c.Place.Kind != crashtest.SQLite }

// share divides total evenly among the configurations that it is for.
func (s *session) share(todo []payments.Config, total int, field func(*payments.Config) *int, isFor func(payments.Config) bool) {
	var fit []*payments.Config
	for i := range todo {
		if isFor(todo[i]) {
			fit = append(fit, &todo[i])
		}
	}
	for i, c := range fit {
		*field(c) = total*(i+1)/len(fit) - total*i/len(fit)
	}
}

// inParallel runs the load tests, some at a time.
func (s *session) inParallel(ctx context.Context, todo []payments.Config) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan payments.Config)
	var all sync.WaitGroup
	for range max(1, *parallel) {
		all.Go(func() {
			for cfg := range next {
				if ctx.Err() != nil {
					continue
				}
				rep, err := s.loadTest(ctx, cfg)
				if err != nil {
					cancel(fmt.Errorf("%s: %w", cfg.Name(), err))
					continue
				}
				s.report(cfg.Name(), rep)
			}
		})
	}
	for _, cfg := range todo {
		next <- cfg
	}
	close(next)
	all.Wait()
	return context.Cause(ctx)
}

func (s *session) report(name string, rep crashtest.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rep.Print(os.Stdout, name)
	s.reports[name] = &rep
	s.sum.Add(rep)
}

// loadTest runs one load test, with its own server if it needs one.
func (s *session) loadTest(ctx context.Context, cfg payments.Config) (rep crashtest.Report, err error) {
	end, err := s.serve(ctx, &cfg)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, end()) }()
	return payments.Run(ctx, cfg)
}

// serve starts the server of a configuration.
func (s *session) serve(ctx context.Context, cfg *payments.Config) (end func() error, err error) {
	cfg.Place, cfg.Server, err = crashtest.StartServer(ctx, s.rig, cfg.Place.Kind)
	if cfg.Server == nil {
		return func() error { return nil }, err
	}
	return cfg.Server.Close, err
}

// others runs the other tests: herds, zombies and lost COMMITs.
func (s *session) others(ctx context.Context, kind string) (err error) {
	mode := payments.Tx
	if kind == crashtest.Redis {
		mode = payments.MarkUnknown
	}
	if *herd > 0 {
		one := payments.Herd{Callers: *herd, Keys: 1}
		many := payments.Herd{Callers: *herd / 20, Keys: *herd / 20, Pool: 2}
		for _, h := range []payments.Herd{one, many} {
			cfg := payments.Config{Place: crashtest.Place{Kind: kind}, Mode: mode, Timeout: time.Hour}
			if err := s.herd(ctx, cfg, h); err != nil {
				return err
			}
		}
	}
	cfg := payments.Config{Place: crashtest.Place{Kind: kind}}
	end, err := s.serve(ctx, &cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	if *zombies > 0 {
		z, err := payments.RunZombies(ctx, cfg.Place, *zombies, progress)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stdout, "figure: %s_zombie_settles_refused = %d of %d\n", kind, z.Refused, *zombies)
		fmt.Fprintf(os.Stdout, "figure: %s_late_settles_accepted = %d of %d\n", kind, z.Accepted, *zombies)
		s.broken = append(s.broken, z.Wrong...)
	}
	server, ok := cfg.Server.(*rig.PostgresServer)
	if *lost == 0 || !ok {
		return nil
	}
	name, err := server.CreateDatabase(ctx)
	if err != nil {
		return err
	}
	l, err := payments.RunLost(ctx, server, name, *lost, progress)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stdout, "figure: lost_commit_answers_resolved = %d of %d\n", l.Committed, *lost)
	fmt.Fprintf(os.Stdout, "figure: lost_commit_requests_resolved = %d of %d\n", l.RolledBack, *lost)
	s.broken = append(s.broken, l.Wrong...)
	return nil
}

func (s *session) herd(ctx context.Context, cfg payments.Config, h payments.Herd) (err error) {
	end, err := s.serve(ctx, &cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	began := time.Now()
	rep, err := payments.RunHerd(ctx, cfg, h)
	if err != nil {
		return fmt.Errorf("herd of %d on %d keys: %w", h.Callers, h.Keys, err)
	}
	fmt.Fprintf(os.Stdout, "%s: %d callers on %d keys, pool of %d, in %v: %d requests, %d charged once, %d unknown, %d violations\n", cfg.Name(),
		h.Callers, h.Keys, h.Pool, time.Since(began).Round(time.Millisecond), rep.Requests, rep.Once, rep.Unknown, len(rep.Violations))
	s.sum.Add(rep)
	return nil
}

func (s *session) figures() {
	byStore := make(map[string]*crashtest.Report)
	for name, rep := range s.reports {
		kind, _, _ := strings.Cut(name, "/")
		if byStore[kind] == nil {
			byStore[kind] = new(crashtest.Report)
		}
		byStore[kind].Add(*rep)
	}
	for _, kind := range slices.Sorted(maps.Keys(byStore)) {
		fmt.Fprintf(os.Stdout, "figure: crashtest_%s_process_kills = %d kills\n", kind, byStore[kind].Kills)
		fmt.Fprintf(os.Stdout, "figure: crashtest_%s_server_kills = %d kills\n", kind, byStore[kind].Restarts)
	}
	printFigures("crashtest", []figure{
		{"process_kills", s.sum.Kills, "kills"},
		{"server_kills", s.sum.Restarts, "kills"},
		{"network_faults", s.sum.NetworkFaults(), "faults"},
		{"stops", s.sum.Stops, "stops"},
		{"full_disks", s.sum.Fills, "times"},
		{"payments", s.sum.Operations, "payments"},
		{"requests", s.sum.Requests, "requests"},
		{"store_calls_judged", s.sum.Calls, "calls"},
		{"records_undecided", s.sum.Undecided, "records"},
		{"violations", len(s.sum.Violations) + len(s.broken), "violations"},
	}...)
	fmt.Fprintf(os.Stdout, "figure: crashtest_duration = %.0f s\n", time.Since(s.began).Seconds())
}
