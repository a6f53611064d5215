// Command crashtest kills services, consumers, workers and servers, and prints what
// the judge found. It exits with 1 if a promise was broken.
//
//	crashtest payments [flags]   a payments service, on every store
//	crashtest messages [flags]   consumers of brokers, and relays
//	crashtest async [flags]      accepted operations, by seven ways to run them
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/stet-go/stet/internal/test/proof/crashtest/async"
	"github.com/stet-go/stet/internal/test/proof/crashtest/messages"
	"github.com/stet-go/stet/internal/test/proof/crashtest/payments"
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
