package payments

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/internal/test/rig"
)

// The defaults are the smallest load test: every fault point once or twice, and some of each other
// fault that needs no privileges.
var (
	everywhere  = flag.Bool("everywhere", false, "test every store in every mode")
	kills       = flag.Int("kills", 0, "processes to kill at fault points, for each store and mode; 0: each point, and five more")
	serverKills = flag.Int("server-kills", 2, "times to kill each database server")
	network     = flag.Int("network", 6, "faults of the network between services and each server")
	stops       = flag.Int("stops", 3, "processes to stop past their lease, for each store and mode")
	fills       = flag.Int("fills", 0, "times to fill SQLite's disk, in each mode (root only)")
	callers     = flag.Int("callers", 300, "callers of a herd on one key, and a fifth, at most 500, on as many keys")
	lost        = flag.Int("lost", 3, "COMMITs of PostgreSQL to lose on their way, and as many answers to them")
	zombies     = flag.Int("zombies", 2, "processes to stop past their lease and let settle, with another claim and without")
	seed        = flag.Uint64("seed", 1, "of the schedules")
	keep        = flag.String("keep", "", "directory to leave the histories in")
)

// places are the configurations of -everywhere, or some.
func places() (all []Config) {
	for _, kind := range crashtest.Kinds {
		for _, mode := range []Mode{Tx, MarkUnknown, Verify} {
			transactions := crashtest.Place{Kind: kind}.Transactions()
			if !transactions && mode == Tx {
				continue
			}
			one := transactions && mode == Tx || !transactions && mode == MarkUnknown
			if one || kind == crashtest.SQLite || *everywhere {
				all = append(all, Config{Place: crashtest.Place{Kind: kind}, Mode: mode, Seed: *seed, Keep: *keep, Timeout: 6 * time.Hour})
			}
		}
	}
	return all
}

func TestMain(m *testing.M) {
	Main() // in a child
	os.Exit(rig.Main(m).Run())
}

func TestNoFaultBreaksAPromise(t *testing.T) {
	for _, cfg := range places() {
		cfg.Kills, cfg.Stops = cmp.Or(*kills, len(Points(cfg.Place.Kind, cfg.Mode))+5), *stops
		if cfg.Place.Kind == crashtest.SQLite {
			cfg.Fills = *fills
		} else {
			cfg.ServerKills, cfg.NetworkFaults = *serverKills, *network
		}
		t.Run(strings.ReplaceAll(cfg.Name(), "/", " "), func(t *testing.T) {
			t.Parallel()
			withServer(t, &cfg)
			rep, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			judged(t, cfg, rep)
			for name, n := range map[string]int{"process_kills": rep.Kills, "server_kills": rep.Restarts, "network_faults": rep.NetworkFaults(), "stops": rep.Stops,
				"full_disks": rep.Fills, "payments": rep.Operations, "requests": rep.Requests, "violations": len(rep.Violations) + rep.Undecided} {
				fmt.Printf("figure: crashtest_%s_%s = %d\n", strings.ReplaceAll(cfg.Name(), "/", "_"), name, n)
			}
			if rep.Kills < cfg.Kills || rep.Restarts < cfg.ServerKills || rep.NetworkFaults() < cfg.NetworkFaults || rep.Stops < cfg.Stops {
				t.Error("not all faults of the schedule happened")
			}
			if rep.Once < 10 {
				t.Errorf("%d payments prove too little", rep.Once)
			}
		})
	}
}

// judged requires that a report have no violations.
func judged(t *testing.T, cfg Config, rep crashtest.Report) {
	t.Helper()
	var b strings.Builder
	rep.Print(&b, cfg.Name())
	t.Log(b.String())
	if len(rep.Violations) > 0 || rep.Undecided > 0 {
		t.Errorf("%d violations, %d records undecided; the seed is %d", len(rep.Violations), rep.Undecided, cfg.Seed)
	}
}

// withServer gives a configuration the server that it needs.
func withServer(t *testing.T, cfg *Config) {
	t.Helper()
	r, err := rig.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	if cfg.Place, cfg.Server, err = crashtest.StartServer(t.Context(), r, cfg.Place.Kind); err != nil {
		t.Fatal(err)
	}
}

func TestAHerdMakesOneCharge(t *testing.T) {
	for _, cfg := range places() {
		if cfg.Mode != Tx && (cfg.Place.Kind != crashtest.Redis || cfg.Mode != MarkUnknown || !*everywhere) || (cfg.Place.Kind == crashtest.Postgres || cfg.Place.Kind == crashtest.MySQL) && !*everywhere {
			continue
		}
		for name, h := range map[string]Herd{
			"one key":               {Callers: *callers, Keys: 1},
			"many keys, small pool": {Callers: min(*callers/5, 500), Keys: min(*callers/5, 500), Pool: 2},
		} {
			t.Run(cfg.Place.Kind+" "+name, func(t *testing.T) {
				t.Parallel()
				cfg := cfg
				withServer(t, &cfg)
				rep, err := RunHerd(t.Context(), cfg, h)
				if err != nil {
					t.Fatal(err)
				}
				judged(t, cfg, rep)
				if rep.Operations != h.Keys || cfg.Mode == Tx && rep.Once != h.Keys || rep.Kills < 1 {
					t.Errorf("%d payments, %d once, %d kills", rep.Operations, rep.Once, rep.Kills)
				}
			})
		}
	}
}

// A flush of Redis endangers claims in flight, and no settled operation (docs/tier.md). Redis alone
// runs settled operations again, so that the judge must find them.
func TestFlushOfRedisEndangersOnlyClaimsInFlight(t *testing.T) {
	for _, kind := range []string{crashtest.Tier, crashtest.Redis} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Place: crashtest.Place{Kind: kind}, Mode: MarkUnknown, Seed: *seed, Kills: 6, Flushes: 3, Timeout: 6 * time.Hour}
			withServer(t, &cfg)
			rep, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if rep.Flushes != cfg.Flushes || rep.Outlived < 10 {
				t.Errorf("%d flushes of %d, which %d settled operations have outlived, prove too little", rep.Flushes, cfg.Flushes, rep.Outlived)
			}
			if kind == crashtest.Tier {
				judged(t, cfg, rep)
			} else if !slices.ContainsFunc(rep.Violations, func(v crashtest.Violation) bool { return v.Promise == crashtest.OneEffect }) {
				t.Error("the judge has not found that settled operations ran again")
			}
		})
	}
}

func TestZombiesAreFencedOff(t *testing.T) {
	kinds := []string{crashtest.SQLite}
	if *everywhere {
		kinds = append(kinds, crashtest.Postgres, crashtest.MySQL, crashtest.Redis, crashtest.ZooKeeper)
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Place: crashtest.Place{Kind: kind}}
			withServer(t, &cfg)
			z, err := RunZombies(t.Context(), cfg.Place, *zombies, func(string) {})
			if err != nil {
				t.Fatal(err)
			}
			fmt.Printf("figure: crashtest_%s_zombie_settles_refused = %d of %d\n", kind, z.Refused, *zombies)
			if z.Refused != *zombies || z.Accepted != *zombies || len(z.Wrong) > 0 {
				t.Errorf("got %+v; want %d refused, as many accepted late, and none wrong", z, *zombies)
			}
		})
	}
}

func TestLostCommitsAreResolved(t *testing.T) {
	t.Parallel()
	server := rig.NewPostgres(t, rig.PostgresOptions{})
	name, err := server.CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l, err := RunLost(t.Context(), server, name, *lost, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("figure: lost_commits_resolved = %d of %d\n", l.Committed+l.RolledBack, 2**lost)
	if l.Committed != *lost || l.RolledBack != *lost || len(l.Wrong) > 0 {
		t.Errorf("got %+v; want %d committed, as many rolled back, and none wrong", l, *lost)
	}
}

func TestEveryFaultPointIsDiedAt(t *testing.T) {
	visited := make(map[fault.Point]bool)
	for _, kind := range []string{crashtest.SQLite, crashtest.Postgres, crashtest.Redis} {
		for _, mode := range []Mode{Tx, MarkUnknown, Verify} {
			for _, p := range Points(kind, mode) {
				visited[p] = true
			}
		}
	}
	for _, p := range fault.Points {
		if !visited[p] {
			t.Errorf("no process dies at %s", p)
		}
	}
}

func TestWrongConfigurationsAreRefused(t *testing.T) {
	for what, cfg := range map[string]Config{
		"redis has no transactions": {Place: crashtest.Place{Kind: crashtest.Redis}, Mode: Tx},
		"need a Server":             {Place: crashtest.Place{Kind: crashtest.SQLite}, Mode: Tx, ServerKills: 1},
		"Fills is for SQLite":       {Place: crashtest.Place{Kind: crashtest.Redis}, Mode: MarkUnknown, Fills: 1},
		"there is no store":         {Place: crashtest.Place{Kind: "etcd"}, Mode: MarkUnknown},
	} {
		if _, err := Run(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("the error is %v; want it to say %q", err, what)
		}
	}
}
