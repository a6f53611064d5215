// Command cmd kills the processes that accept operations and those that run them,
// restarts what is between them, and prints what became of the operations. It
// exits with 1 if a promise was broken.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/stet-go/stet/internal/ordeal/async"
	"github.com/stet-go/stet/internal/rig"
)

var (
	flavours = flag.String("flavours", strings.Join(async.Flavours(), ","), "flavours, separated by commas")
	kills    = flag.Int("kills", 500, "processes to kill with SIGKILL, in each flavour")
	restarts = flag.Int("restarts", 2, "restarts of the broker, or of PostgreSQL where River is the queue")
	seed     = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the schedule")
	keep     = flag.String("keep", "", "directory to leave the ledgers and logs in")
	most     = flag.Int("most", 20, "violations to print of each flavour")
)

func main() {
	async.Main()
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var err error
	for _, flavour := range strings.Split(*flavours, ",") {
		err = errors.Join(err, run(ctx, flavour))
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "async:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, flavour string) (err error) {
	r, err := rig.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	fmt.Printf("%s, seed %d\n", flavour, *seed)
	began := time.Now()
	rep, err := async.Run(ctx, r, async.Config{Flavour: flavour, Kills: *kills, Restarts: *restarts, Seed: *seed, Keep: *keep,
		Progress: func(line string) { fmt.Fprintln(os.Stderr, line) }})
	fmt.Printf("%d operations, %d completed, %d cancelled, %d in doubt, %d attempts, %d effects; %d answers that the outcome is not known; %d dead runs were verified; in %v; deaths by point: %v\n",
		rep.Operations, rep.Completed, rep.Cancelled, rep.Unknown, rep.Attempts, rep.Effects, rep.Told, rep.Verified, time.Since(began).Round(time.Second), rep.At)
	atPoints := 0
	for _, n := range rep.At {
		atPoints += n
	}
	name := strings.ReplaceAll(flavour, "-", "_")
	for _, f := range []struct {
		what string
		n    int
	}{{"kills", rep.Kills}, {"kills_at_points", atPoints}, {"stops", rep.Stops}, {"restarts", rep.Restarts}, {"operations", rep.Operations}, {"attempts", rep.Attempts}, {"effects", rep.Effects},
		{"cancelled", rep.Cancelled}, {"in_doubt", rep.Unknown}, {"violations", len(rep.Violations)}} {
		fmt.Printf("figure: async_%s_%s = %d %s\n", name, f.what, f.n, f.what)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", flavour, err)
	}
	if n := len(rep.Violations); n > 0 {
		err = errors.Join(err, fmt.Errorf("%s: %d promises broken:\n%s", flavour, n, strings.Join(rep.Violations[:min(n, *most)], "\n")))
	}
	return err
}
