package ordeal

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/rig"
)

func TestMain(m *testing.M) {
	Main() // in a child
	os.Exit(rig.Main(m).Run())
}

// TestNoFaultBreaksAPromise is the smallest ordeal: every fault point once or
// twice, and some of each other fault that needs no privileges.
func TestNoFaultBreaksAPromise(t *testing.T) {
	for _, cfg := range []Config{
		{Place: Place{Kind: SQLite}, Mode: Tx, Stops: 3},
		{Place: Place{Kind: SQLite}, Mode: Park, Stops: 3},
		{Place: Place{Kind: SQLite}, Mode: Verify},
		{Place: Place{Kind: Postgres}, Mode: Tx, ServerKills: 2, NetworkFaults: 6, Stops: 2},
		{Place: Place{Kind: Redis}, Mode: Park, ServerKills: 2, NetworkFaults: 6, Stops: 2},
	} {
		t.Run(strings.ReplaceAll(cfg.Name(), "/", " "), func(t *testing.T) {
			t.Parallel()
			withServer(t, &cfg)
			cfg.Seed, cfg.Timeout = 1, 4*time.Minute
			cfg.Kills = len(Points(cfg.Place.Kind, cfg.Mode)) + 5
			rep, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			judged(t, cfg, rep)
			if rep.Kills < cfg.Kills || rep.ServerKills < cfg.ServerKills || rep.NetworkFaults() < cfg.NetworkFaults || rep.Stops < cfg.Stops {
				t.Error("not all faults of the schedule happened")
			}
			if rep.Once < 10 {
				t.Errorf("%d payments prove too little", rep.Once)
			}
		})
	}
}

// judged requires that a report have no violations.
func judged(t *testing.T, cfg Config, rep Report) {
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
	switch cfg.Place.Kind {
	case Postgres:
		server := rig.NewPostgres(t, rig.PostgresOptions{})
		cfg.Server, cfg.Place.URL = server, server.Database(t)
	case Redis:
		server := rig.NewRedis(t, rig.RedisOptions{Settings: map[string]string{"appendonly": "yes", "appendfsync": "always"}})
		cfg.Server, cfg.Place.Addr = server, server.Addr()
	}
}

func TestAHerdMakesOneCharge(t *testing.T) {
	for name, h := range map[string]Herd{
		"one key":               {Callers: 300, Keys: 1},
		"many keys, small pool": {Callers: 60, Keys: 60, Pool: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Place: Place{Kind: SQLite}, Mode: Tx}
			rep, err := RunHerd(t.Context(), cfg, h)
			if err != nil {
				t.Fatal(err)
			}
			judged(t, cfg, rep)
			if rep.Payments != h.Keys || rep.Once != h.Keys || rep.Kills < 1 {
				t.Errorf("%d payments, %d once, %d kills", rep.Payments, rep.Once, rep.Kills)
			}
		})
	}
}

func TestZombiesAreFencedOff(t *testing.T) {
	t.Parallel()
	const trials = 2
	z, err := RunZombies(t.Context(), Place{Kind: SQLite}, trials, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if z.Refused != trials || z.Accepted != trials || len(z.Wrong) > 0 {
		t.Errorf("%+v", z)
	}
}

func TestLostCommitsAreResolved(t *testing.T) {
	t.Parallel()
	const trials = 3
	server := rig.NewPostgres(t, rig.PostgresOptions{})
	name, err := server.CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l, err := RunLost(t.Context(), server, name, trials, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if l.Committed != trials || l.RolledBack != trials || len(l.Wrong) > 0 {
		t.Errorf("%+v", l)
	}
}

func TestEveryFaultPointIsDiedAt(t *testing.T) {
	visited := make(map[fault.Point]bool)
	for _, kind := range []string{SQLite, Postgres, Redis} {
		for _, mode := range []Mode{Tx, Park, Verify} {
			for _, p := range Points(kind, mode) {
				visited[p] = true
			}
		}
	}
	for _, p := range fault.Points {
		if !visited[p] {
			t.Errorf("nobody dies at %s", p)
		}
	}
}

func TestWrongConfigurationsAreRefused(t *testing.T) {
	for what, cfg := range map[string]Config{
		"Redis has no transactions": {Place: Place{Kind: Redis}, Mode: Tx},
		"need a Server":             {Place: Place{Kind: SQLite}, Mode: Tx, ServerKills: 1},
		"Fills is for SQLite":       {Place: Place{Kind: Redis}, Mode: Park, Fills: 1},
		"neither stopped":           {Place: Place{Kind: SQLite}, Mode: Verify, Stops: 1},
		"there is no store":         {Place: Place{Kind: "etcd"}, Mode: Park},
	} {
		if _, err := Run(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("the error is %v; want it to say %q", err, what)
		}
	}
}
