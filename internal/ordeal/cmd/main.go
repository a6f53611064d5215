// Command cmd puts a payments service to the ordeal on every store, and prints
// what the judge found. It exits with 1 if a promise was broken.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stet-go/stet/internal/ordeal"
	"github.com/stet-go/stet/internal/rig"
)

var (
	stores      = flag.String("store", "sqlite,postgres,redis", "stores, separated by commas")
	modes       = flag.String("modes", "tx,park,verify", "modes, separated by commas; Redis has no tx")
	kills       = flag.Int("kills", 1040, "processes to kill at fault points, in all")
	serverKills = flag.Int("server-kills", 60, "times to kill a database server, in all")
	network     = flag.Int("network", 120, "faults of the network between services and servers, in all")
	stops       = flag.Int("stops", 60, "processes to stop past their lease while customers pay, in all")
	fills       = flag.Int("fills", 20, "times to fill SQLite's disk, in all (root only)")
	herd        = flag.Int("herd", 10_000, "callers on one key, for each store; 0: no herd")
	lost        = flag.Int("lost", 100, "COMMITs of PostgreSQL to lose on their way, and as many answers to them")
	zombies     = flag.Int("zombies", 20, "processes to stop past their lease and let settle, with another claim and without, for each store")
	parallel    = flag.Int("parallel", runtime.GOMAXPROCS(0), "storms at a time")
	seed        = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the schedules")
	keep        = flag.String("keep", "", "directory to leave the histories in")
	table       = flag.Bool("table", false, "print the fates as a Markdown table, too")
	long        = flag.Bool("long", false, "10,000 kills and 1,000 of servers, and ten times the rest (hours)")
)

func main() {
	ordeal.Main()
	flag.Parse()
	if *long {
		for _, n := range []*int{kills, network, stops, fills, lost, zombies} {
			*n *= 10
		}
		*serverKills = 1000
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ordeal:", err)
		os.Exit(1)
	}
}

func progress(line string) { fmt.Fprintln(os.Stderr, line) }

// session is one run of the command.
type session struct {
	out   io.Writer
	rig   *rig.Rig
	began time.Time

	mu      sync.Mutex
	names   []string
	reports map[string]*ordeal.Report
	sum     ordeal.Report
	broken  []string
}

func run(ctx context.Context) (err error) {
	s := &session{out: os.Stdout, began: time.Now(), reports: make(map[string]*ordeal.Report)}
	fmt.Fprintf(s.out, "seed %d\n", *seed)
	if s.rig, err = rig.New(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.rig.Close()) }()
	todo, err := s.storms()
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
	if len(s.broken) > 0 {
		return fmt.Errorf("%d promises broken, seed %d:\n  %s", len(s.broken), *seed, strings.Join(s.broken, "\n  "))
	}
	return nil
}

// storms divides the faults among stores and modes.
func (s *session) storms() (todo []ordeal.Config, err error) {
	for _, kind := range strings.Split(*stores, ",") {
		if !slices.Contains([]string{ordeal.SQLite, ordeal.Postgres, ordeal.Redis}, kind) {
			return nil, fmt.Errorf("-store has %q; there are sqlite, postgres and redis", kind)
		}
		for _, mode := range strings.Split(*modes, ",") {
			m := ordeal.Mode(mode)
			if !slices.Contains([]ordeal.Mode{ordeal.Tx, ordeal.Park, ordeal.Verify}, m) {
				return nil, fmt.Errorf("-modes has %q; there are tx, park and verify", mode)
			}
			if kind != ordeal.Redis || m != ordeal.Tx {
				todo = append(todo, ordeal.Config{Place: ordeal.Place{Kind: kind}, Mode: m, Keep: *keep, Timeout: 6 * time.Hour, Progress: progress})
			}
		}
	}
	s.share(todo, *kills, func(c *ordeal.Config) *int { return &c.Kills }, func(ordeal.Config) bool { return true })
	s.share(todo, *serverKills, func(c *ordeal.Config) *int { return &c.ServerKills }, onServer)
	s.share(todo, *network, func(c *ordeal.Config) *int { return &c.NetworkFaults },
		func(c ordeal.Config) bool { return onServer(c) && c.Mode != ordeal.Verify })
	s.share(todo, *stops, func(c *ordeal.Config) *int { return &c.Stops }, func(c ordeal.Config) bool { return c.Mode != ordeal.Verify })
	s.share(todo, *fills, func(c *ordeal.Config) *int { return &c.Fills },
		func(c ordeal.Config) bool { return !onServer(c) && c.Mode != ordeal.Verify })
	for i := range todo {
		todo[i].Seed = *seed + uint64(i)
		s.names = append(s.names, todo[i].Name())
	}
	return todo, nil
}

func onServer(c ordeal.Config) bool { return c.Place.Kind != ordeal.SQLite }

// share divides total evenly among the configurations that it is for.
func (s *session) share(todo []ordeal.Config, total int, field func(*ordeal.Config) *int, isFor func(ordeal.Config) bool) {
	var fit []*ordeal.Config
	for i := range todo {
		if isFor(todo[i]) {
			fit = append(fit, &todo[i])
		}
	}
	for i, c := range fit {
		*field(c) = total*(i+1)/len(fit) - total*i/len(fit)
	}
}

// inParallel runs the storms, some at a time.
func (s *session) inParallel(ctx context.Context, todo []ordeal.Config) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan ordeal.Config)
	var all sync.WaitGroup
	for range max(1, *parallel) {
		all.Go(func() {
			for cfg := range next {
				if ctx.Err() != nil {
					continue
				}
				rep, err := s.storm(ctx, cfg)
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

func (s *session) report(name string, rep ordeal.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rep.Print(s.out, name)
	s.reports[name] = &rep
	s.sum.Add(rep)
}

// storm runs one storm, with a server of its own if it needs one.
func (s *session) storm(ctx context.Context, cfg ordeal.Config) (rep ordeal.Report, err error) {
	end, err := s.serve(ctx, &cfg)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, end()) }()
	return ordeal.Run(ctx, cfg)
}

// serve starts the server of a configuration.
func (s *session) serve(ctx context.Context, cfg *ordeal.Config) (end func() error, err error) {
	switch cfg.Place.Kind {
	case ordeal.Postgres:
		server, err := s.rig.StartPostgres(ctx, rig.PostgresOptions{})
		if err != nil {
			return nil, err
		}
		name, err := server.CreateDatabase(ctx)
		cfg.Server, cfg.Place.URL = server, server.URL(name)
		return server.Close, err
	case ordeal.Redis:
		server, err := s.rig.StartRedis(ctx, rig.RedisOptions{Settings: map[string]string{"appendonly": "yes", "appendfsync": "always"}})
		if err != nil {
			return nil, err
		}
		cfg.Server, cfg.Place.Addr = server, server.Addr()
		return server.Close, nil
	}
	return func() error { return nil }, nil
}

// others runs what is no storm: herds, zombies and lost COMMITs.
func (s *session) others(ctx context.Context, kind string) (err error) {
	mode := ordeal.Tx
	if kind == ordeal.Redis {
		mode = ordeal.Park
	}
	if *herd > 0 {
		one := ordeal.Herd{Callers: *herd, Keys: 1}
		many := ordeal.Herd{Callers: *herd / 20, Keys: *herd / 20, Pool: 2}
		for _, h := range []ordeal.Herd{one, many} {
			cfg := ordeal.Config{Place: ordeal.Place{Kind: kind}, Mode: mode, Timeout: time.Hour}
			if err := s.herd(ctx, cfg, h); err != nil {
				return err
			}
		}
	}
	cfg := ordeal.Config{Place: ordeal.Place{Kind: kind}}
	end, err := s.serve(ctx, &cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	if *zombies > 0 {
		z, err := ordeal.RunZombies(ctx, cfg.Place, *zombies, progress)
		if err != nil {
			return err
		}
		fmt.Fprintf(s.out, "figure: %s_zombie_settles_refused = %d of %d\n", kind, z.Refused, *zombies)
		fmt.Fprintf(s.out, "figure: %s_late_settles_accepted = %d of %d\n", kind, z.Accepted, *zombies)
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
	l, err := ordeal.RunLost(ctx, server, name, *lost, progress)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "figure: lost_commit_answers_resolved = %d of %d\n", l.Committed, *lost)
	fmt.Fprintf(s.out, "figure: lost_commit_requests_resolved = %d of %d\n", l.RolledBack, *lost)
	s.broken = append(s.broken, l.Wrong...)
	return nil
}

func (s *session) herd(ctx context.Context, cfg ordeal.Config, h ordeal.Herd) (err error) {
	end, err := s.serve(ctx, &cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	began := time.Now()
	rep, err := ordeal.RunHerd(ctx, cfg, h)
	if err != nil {
		return fmt.Errorf("herd of %d on %d keys: %w", h.Callers, h.Keys, err)
	}
	fmt.Fprintf(s.out, "%s: %d callers on %d keys, pool of %d, in %v: %d requests, %d charged once, %d unknown, %d violations\n", cfg.Name(),
		h.Callers, h.Keys, h.Pool, time.Since(began).Round(time.Millisecond), rep.Requests, rep.Once, rep.Unknown, len(rep.Violations))
	s.sum.Add(rep)
	return nil
}

func (s *session) figures() {
	if *table {
		ordeal.PrintTable(s.out, s.names, s.reports)
	}
	byStore := make(map[string]*ordeal.Report)
	for name, rep := range s.reports {
		kind, _, _ := strings.Cut(name, "/")
		if byStore[kind] == nil {
			byStore[kind] = new(ordeal.Report)
		}
		byStore[kind].Add(*rep)
	}
	for _, kind := range slices.Sorted(maps.Keys(byStore)) {
		fmt.Fprintf(s.out, "figure: ordeal_%s_process_kills = %d kills\n", kind, byStore[kind].Kills)
		fmt.Fprintf(s.out, "figure: ordeal_%s_server_kills = %d kills\n", kind, byStore[kind].ServerKills)
	}
	for _, f := range []struct {
		name string
		n    int
		unit string
	}{
		{"process_kills", s.sum.Kills, "kills"},
		{"server_kills", s.sum.ServerKills, "kills"},
		{"network_faults", s.sum.NetworkFaults(), "faults"},
		{"stops", s.sum.Stops, "stops"},
		{"full_disks", s.sum.Fills, "times"},
		{"payments", s.sum.Payments, "payments"},
		{"requests", s.sum.Requests, "requests"},
		{"store_calls_judged", s.sum.Calls, "calls"},
		{"records_undecided", s.sum.Undecided, "records"},
		{"violations", len(s.sum.Violations) + len(s.broken), "violations"},
	} {
		fmt.Fprintf(s.out, "figure: ordeal_%s = %d %s\n", f.name, f.n, f.unit)
	}
	fmt.Fprintf(s.out, "figure: ordeal_duration = %.0f s\n", time.Since(s.began).Seconds())
}
