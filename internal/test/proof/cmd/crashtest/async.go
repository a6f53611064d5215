package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/internal/test/proof/crashtest/async"
	"github.com/stet-go/stet/internal/test/rig"
)

var (
	asyncFlags = flag.NewFlagSet("async", flag.ExitOnError)

	flavours    = asyncFlags.String("flavours", strings.Join(async.Flavours(), ","), "flavours, separated by commas")
	most        = asyncFlags.Int("most", 20, "violations to print of each promise")
	asyncConfig = async.Config{Progress: progress}
)

func init() {
	asyncFlags.IntVar(&asyncConfig.Kills, "kills", 500, "processes to kill with SIGKILL, in each flavour")
	asyncFlags.IntVar(&asyncConfig.Restarts, "restarts", 2, "restarts of the broker, or of PostgreSQL where River is the queue")
	asyncFlags.Uint64Var(&asyncConfig.Seed, "seed", uint64(time.Now().UnixNano()), "of the schedule")
	asyncFlags.StringVar(&asyncConfig.Keep, "keep", "", "directory to leave the histories, ledgers and logs in")
}

// runAsync kills the processes that accept operations and the processes that run them, and
// restarts the queue between them.
func runAsync(ctx context.Context) error {
	return inTurn(ctx, strings.Split(*flavours, ","), func(ctx context.Context, r *rig.Rig, flavour string) error {
		cfg := asyncConfig
		cfg.Flavour = flavour
		fmt.Printf("%s, seed %d\n", flavour, cfg.Seed)
		began := time.Now()
		rep, err := async.Run(ctx, r, cfg)
		fmt.Printf("%d answers that the outcome is not known; %d expired runs were verified; in %v; deaths by point: %v\n",
			rep.TimesUnknown, rep.Verified, time.Since(began).Round(time.Second), rep.At)
		printFigures("async_"+strings.ReplaceAll(flavour, "-", "_"), []figure{
			{"kills", rep.Kills, "kills"}, {"kills_at_points", rep.AtPoints(), "kills_at_points"}, {"stops", rep.At[crashtest.Frozen], "stops"},
			{"restarts", rep.Restarts, "restarts"}, {"operations", rep.Operations, "operations"}, {"completed", rep.Completed, "operations"},
			{"attempts", rep.Attempts, "attempts"}, {"effects", rep.Effects, "effects"}, {"cancelled", rep.Cancelled, "cancelled"},
			{"open_steps", rep.Doubtful, "operations"}, {"violations", len(rep.Violations), "violations"}}...)
		return errors.Join(err, broken(rep.Summary(*most)))
	})
}
