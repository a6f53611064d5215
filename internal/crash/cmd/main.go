// Command cmd kills a payments service at every fault point and prints what the
// judge found. It exits with 1 if a promise was broken.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/stet-go/stet/internal/crash"
)

func main() {
	crash.Main()
	cycles := flag.Int("cycles", 500, "children to kill, over all modes")
	modes := flag.String("modes", "tx,park,verify", "modes, separated by commas")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the schedule")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, strings.Split(*modes, ","), *cycles, *seed)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, modes []string, cycles int, seed uint64) error {
	fmt.Printf("seed %d\n", seed)
	var sum crash.Report
	var broken []string
	for i, mode := range modes {
		each := cycles / len(modes)
		if i < cycles%len(modes) {
			each++
		}
		rep, err := crash.Run(ctx, crash.Config{Mode: crash.Mode(mode), Cycles: each, Seed: seed + uint64(i),
			Progress: func(line string) { fmt.Fprintln(os.Stderr, line) }})
		if err != nil {
			return fmt.Errorf("mode %s: %w", mode, err)
		}
		fmt.Printf("%-7s %d kills (%d points missed), %d payments: %d charged once, %d unknown, %d violations\n",
			mode, rep.Kills, rep.Missed, rep.Payments, rep.Once, rep.Unknown, len(rep.Violations))
		for p, n := range rep.At {
			fmt.Printf("        %-18s %d\n", p, n)
		}
		broken = append(broken, rep.Violations...)
		sum.Kills += rep.Kills
		sum.Payments += rep.Payments
	}
	fmt.Printf("figure: crash_kills = %d kills\n", sum.Kills)
	fmt.Printf("figure: crash_payments = %d payments\n", sum.Payments)
	fmt.Printf("figure: crash_violations = %d violations\n", len(broken))
	if len(broken) > 0 {
		return fmt.Errorf("%d promises broken:\n  %s", len(broken), strings.Join(broken, "\n  "))
	}
	return nil
}
