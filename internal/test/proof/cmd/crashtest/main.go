// Command crashtest kills services, consumers, workers and servers, and prints what
// the judge found. It exits with 1 if a promise was broken.
//
//	crashtest payments [flags]   a payments service, on every store
//	crashtest messages [flags]   consumers of brokers, and relays
//	crashtest async [flags]      accepted operations, by seven ways to run them
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/stet-go/stet/internal/test/proof/crashtest/async"
	"github.com/stet-go/stet/internal/test/proof/crashtest/messages"
	"github.com/stet-go/stet/internal/test/proof/crashtest/payments"
	"github.com/stet-go/stet/internal/test/rig"
)

// command is a subcommand.
type command struct {
	flags *flag.FlagSet
	run   func(context.Context) error
}

func main() {
	payments.Main() // in a child, like the following ones
	messages.Main()
	async.Main()
	commands := map[string]command{
		"async":    {asyncFlags, runAsync},
		"messages": {messageFlags, runMessages},
		"payments": {paymentFlags, runPayments},
	}
	name, args := "", os.Args[1:]
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	c, ok := commands[name]
	if !ok {
		fmt.Fprintln(os.Stderr, "crashtest: say what to crash: payments, messages or async")
		os.Exit(2)
	}
	_ = c.flags.Parse(args) // it exits
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := c.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "crashtest %s: %v\n", name, err)
		os.Exit(1)
	}
}

func progress(line string) { fmt.Fprintln(os.Stderr, line) }

// inTurn runs the test of each name, each with servers of its own, and joins the errors.
func inTurn(ctx context.Context, names []string, run func(ctx context.Context, r *rig.Rig, name string) error) (err error) {
	for _, name := range names {
		e := func() (err error) {
			r, err := rig.New()
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, r.Close()) }()
			return run(ctx, r, name)
		}()
		if e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, e))
		}
	}
	return err
}

// broken is the error for broken promises, nil if there are none.
func broken(promises []string) error {
	if len(promises) == 0 {
		return nil
	}
	return fmt.Errorf("%d promises broken:\n  %s", len(promises), strings.Join(promises, "\n  "))
}

// figure is a number that a run has come to.
type figure struct {
	name string
	n    int
	unit string
}

func printFigures(prefix string, figures ...figure) {
	for _, f := range figures {
		fmt.Printf("figure: %s_%s = %d %s\n", prefix, f.name, f.n, f.unit)
	}
}
