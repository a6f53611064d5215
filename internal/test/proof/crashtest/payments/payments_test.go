package payments

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/internal/test/rig"
)

func TestMain(m *testing.M) {
	Main() // in a child
	os.Exit(rig.Main(m).Run())
}

// TestNoFaultBreaksAPromise is the smallest load test: every fault point once or
// twice, and some of each other fault that needs no privileges.
func TestNoFaultBreaksAPromise(t *testing.T) {
	for _, cfg := range []Config{
		{Place: crashtest.Place{Kind: crashtest.SQLite}, Mode: Tx, Stops: 3},
		{Place: crashtest.Place{Kind: crashtest.SQLite}, Mode: MarkUnknown, Stops: 3},
		{Place: crashtest.Place{Kind: crashtest.SQLite}, Mode: Verify, Stops: 3},
		{Place: crashtest.Place{Kind: crashtest.Postgres}, Mode: Tx, ServerKills: 2, NetworkFaults: 6, Stops: 2},
		{Place: crashtest.Place{Kind: crashtest.Redis}, Mode: MarkUnknown, ServerKills: 2, NetworkFaults: 6, Stops: 2},
	} {
		t.Run(strings.ReplaceAll(cfg.Name(), "/", " "), func(t *testing.T) {
			t.Parallel()
			withServer(t, &cfg)
			cfg.Seed = 1
			cfg.Kills = len(Points(cfg.Place.Kind, cfg.Mode)) + 5
			rep, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			judged(t, cfg, rep)
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
	for name, h := range map[string]Herd{
		"one key":               {Callers: 300, Keys: 1},
		"many keys, small pool": {Callers: 60, Keys: 60, Pool: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Place: crashtest.Place{Kind: crashtest.SQLite}, Mode: Tx}
			rep, err := RunHerd(t.Context(), cfg, h)
			if err != nil {
				t.Fatal(err)
			}
			judged(t, cfg, rep)
			if rep.Operations != h.Keys || rep.Once != h.Keys || rep.Kills < 1 {
				t.Errorf("%d payments, %d once, %d kills", rep.Operations, rep.Once, rep.Kills)
			}
		})
	}
}

func TestZombiesAreFencedOff(t *testing.T) {
	t.Parallel()
	const trials = 2
	z, err := RunZombies(t.Context(), crashtest.Place{Kind: crashtest.SQLite}, trials, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if z.Refused != trials || z.Accepted != trials || len(z.Wrong) > 0 {
		t.Errorf("got %+v; want z.Refused == trials, z.Accepted == trials, len(z.Wrong) <= 0", z)
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
		t.Errorf("got %+v; want l.Committed == trials, l.RolledBack == trials, len(l.Wrong) <= 0", l)
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
		"Redis has no transactions": {Place: crashtest.Place{Kind: crashtest.Redis}, Mode: Tx},
		"need a Server":             {Place: crashtest.Place{Kind: crashtest.SQLite}, Mode: Tx, ServerKills: 1},
		"Fills is for SQLite":       {Place: crashtest.Place{Kind: crashtest.Redis}, Mode: MarkUnknown, Fills: 1},
		"there is no store":         {Place: crashtest.Place{Kind: "etcd"}, Mode: MarkUnknown},
	} {
		if _, err := Run(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("the error is %v; want it to say %q", err, what)
		}
	}
}
