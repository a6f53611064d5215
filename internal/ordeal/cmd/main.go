// Command cmd kills a payments service at every fault point, and its database
// server if it has one, and prints what the judge found. It exits with 1 if a
// promise was broken.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/internal/rig"
)

var (
	cycles      = flag.Int("cycles", 500, "children to kill, over all modes")
	serverKills = flag.Int("server-kills", 0, "times to kill the database server, over all modes (postgres only)")
	store       = flag.String("store", "sqlite", "sqlite or postgres")
	lost        = flag.Int("lost", 0, "COMMITs to lose on their way, and answers to them (postgres only)")
	zombies     = flag.Int("zombies", 0, "processes to stop past their lease, with another claim and without (postgres only)")
	modes       = flag.String("modes", "tx,park,verify", "modes, separated by commas")
	seed        = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the schedule")
)

func main() {
	crash.Main()
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, strings.Split(*modes, ","))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, modes []string) (err error) {
	fmt.Printf("seed %d\n", *seed)
	var server *rig.PostgresServer
	switch {
	case *store == "postgres":
		r, err := rig.New()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.Close()) }()
		if server, err = r.StartPostgres(ctx, rig.PostgresOptions{}); err != nil {
			return err
		}
	case *store != "sqlite" || *serverKills+*lost+*zombies != 0:
		return errors.New("-store is sqlite or postgres; -server-kills, -lost and -zombies need postgres")
	}
	var sum crash.Report
	for i, mode := range modes {
		cfg := crash.Config{Mode: crash.Mode(mode), Cycles: share(*cycles, len(modes), i), Seed: *seed + uint64(i), Timeout: 30 * time.Minute,
			Progress: func(line string) { fmt.Fprintln(os.Stderr, line) }}
		if server != nil {
			name, err := server.CreateDatabase(ctx)
			if err != nil {
				return err
			}
			cfg.Postgres = server.URL(name)
			cfg.ServerKills = share(*serverKills, len(modes), i)
			cfg.KillServer = func(ctx context.Context) error { return errors.Join(server.Kill(), server.Start(ctx)) }
		}
		rep, err := crash.Run(ctx, cfg)
		if err != nil {
			return fmt.Errorf("mode %s: %w", mode, err)
		}
		show(mode, rep)
		sum.Kills += rep.Kills
		sum.ServerKills += rep.ServerKills
		sum.Payments += rep.Payments
		sum.Violations = append(sum.Violations, rep.Violations...)
	}
	fmt.Printf("figure: crash_%s_kills = %d kills\n", *store, sum.Kills)
	fmt.Printf("figure: crash_%s_server_kills = %d kills\n", *store, sum.ServerKills)
	fmt.Printf("figure: crash_%s_payments = %d payments\n", *store, sum.Payments)
	fmt.Printf("figure: crash_%s_violations = %d violations\n", *store, len(sum.Violations))
	if server != nil {
		broken, err := others(ctx, server)
		if err != nil {
			return err
		}
		sum.Violations = append(sum.Violations, broken...)
	}
	if len(sum.Violations) > 0 {
		return fmt.Errorf("%d promises broken:\n  %s", len(sum.Violations), strings.Join(sum.Violations, "\n  "))
	}
	return nil
}

// others loses COMMITs and makes zombies.
func others(ctx context.Context, server *rig.PostgresServer) (broken []string, err error) {
	progress := func(line string) { fmt.Fprintln(os.Stderr, line) }
	if *lost > 0 {
		name, err := server.CreateDatabase(ctx)
		if err != nil {
			return nil, err
		}
		l, err := crash.RunLost(ctx, server, name, *lost, progress)
		if err != nil {
			return nil, err
		}
		fmt.Printf("figure: lost_commit_answers_resolved = %d of %d\n", l.Committed, *lost)
		fmt.Printf("figure: lost_commit_requests_resolved = %d of %d\n", l.RolledBack, *lost)
		broken = append(broken, l.Wrong...)
	}
	if *zombies > 0 {
		name, err := server.CreateDatabase(ctx)
		if err != nil {
			return nil, err
		}
		z, err := crash.RunZombies(ctx, server.URL(name), *zombies, progress)
		if err != nil {
			return nil, err
		}
		fmt.Printf("figure: zombie_settles_refused = %d of %d\n", z.Refused, *zombies)
		fmt.Printf("figure: late_settles_accepted = %d of %d\n", z.Accepted, *zombies)
		broken = append(broken, z.Wrong...)
	}
	return broken, nil
}

// share divides total into n parts, of which it returns the i-th.
func share(total, n, i int) int { return total*(i+1)/n - total*i/n }

func show(mode string, rep crash.Report) {
	fmt.Printf("%-7s %d kills (%d points missed), %d of the server, %d payments: %d charged once, %d unknown, %d violations\n",
		mode, rep.Kills, rep.Missed, rep.ServerKills, rep.Payments, rep.Once, rep.Unknown, len(rep.Violations))
	for _, p := range slices.Sorted(maps.Keys(rep.At)) {
		fmt.Printf("        %-18s %d\n", p, rep.At[p])
	}
}
