// Command cmd kills consumers of messages, restarts their broker, and prints
// what became of the messages. It exits with 1 if a promise was broken.
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

	"github.com/stet-go/stet/internal/ordeal/messages"
	"github.com/stet-go/stet/internal/rig"
)

var (
	brokers  = flag.String("brokers", "rabbitmq,jetstream", "brokers, separated by commas")
	count    = flag.Int("messages", 10_000, "distinct messages, each published 1 to 5 times")
	kills    = flag.Int("kills", 50, "consumers to kill with SIGKILL")
	restarts = flag.Int("restarts", 2, "restarts of the broker")
	seed     = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the schedule")
)

func main() {
	messages.Main()
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var err error
	for _, broker := range strings.Split(*brokers, ",") {
		err = errors.Join(err, run(ctx, broker))
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "messages:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, broker string) (err error) {
	r, err := rig.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	fmt.Printf("%s, seed %d\n", broker, *seed)
	began := time.Now()
	rep, err := messages.Run(ctx, r, messages.Config{Broker: broker, Messages: *count, Kills: *kills, Restarts: *restarts, Seed: *seed,
		Progress: func(line string) { fmt.Fprintln(os.Stderr, line) }})
	if err != nil {
		return fmt.Errorf("%s: %w", broker, err)
	}
	fmt.Printf("%d messages in %d copies, %d effects, %d unknown, %d dead, %d left, in %v; kills by point: %v\n",
		rep.Messages, rep.Copies, rep.Effects, rep.Unknown, rep.Dead, rep.Left, time.Since(began).Round(time.Second), rep.At)
	for name, n := range map[string]int{"messages": rep.Messages, "copies": rep.Copies, "effects": rep.Effects, "kills": rep.Kills,
		"restarts": rep.Restarts, "violations": len(rep.Violations)} {
		fmt.Printf("figure: messages_%s_%s = %d %s\n", broker, name, n, name)
	}
	if len(rep.Violations) > 0 {
		return fmt.Errorf("%s: promises broken: %s", broker, strings.Join(rep.Violations, "; "))
	}
	return nil
}
