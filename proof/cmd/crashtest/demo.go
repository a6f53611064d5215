package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/stet-go/stet/internal/demo"
)

// demoService is the hidden subcommand that serves until it is killed.
const demoService = "demo-service"

var (
	demoFlags  = flag.NewFlagSet("demo", flag.ExitOnError)
	demoConfig = demo.Config{Progress: os.Stderr}
)

func init() {
	demoFlags.IntVar(&demoConfig.Payments, "payments", 1000, "payments")
	demoFlags.IntVar(&demoConfig.Attempts, "attempts", 5, "clients that send each payment")
	demoFlags.IntVar(&demoConfig.Kills, "kills", demo.MaxKills, "SIGKILLs in each storm")
	demoFlags.Uint64Var(&demoConfig.Seed, "seed", 0, "of what the clients do; 0 picks one")
	demoFlags.BoolVar(&demoConfig.Async, "async", false, "have the service answer 202 and charge afterwards")
}

// runDemo has the storm of stet demo, without stet and with it.
func runDemo(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	demoConfig.Service = []string{self, demoService}
	rep, err := demo.Run(ctx, demoConfig)
	if err == nil {
		err = rep.WriteTable(os.Stdout)
	}
	if err != nil {
		return err
	}
	printFigures("demo", []figure{{"kills", rep.With.Kills, "kills"}, {"payments", rep.With.Operations, "payments"}, {"requests", rep.With.Attempts, "requests"},
		{"charged_twice_without", rep.Without.ExecutedTwice, "payments"}, {"charged_twice", rep.With.ExecutedTwice, "payments"},
		{"lost", rep.With.Lost, "payments"}, {"violations", len(rep.Violations), "violations"}}...)
	if len(rep.Violations) > 0 {
		return errors.New("promises broken: " + strings.Join(rep.Violations, "; ") + fmt.Sprintf(", with -seed %d", rep.Seed))
	}
	return nil
}
