// Command cmd kills consumers of messages and relays of what they emit, restarts
// their broker, and prints what became of the messages. It exits with 1 if a
// promise was broken.
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
	brokers    = flag.String("brokers", strings.Join(messages.Brokers, ","), "brokers, separated by commas; kafka is a stand-in for it, kfake")
	stores     = flag.String("stores", strings.Join(messages.Stores, ","), "stores, separated by commas")
	count      = flag.Int("messages", 10_000, "distinct messages, each published 1 to 5 times")
	kills      = flag.Int("kills", 50, "consumers to kill with SIGKILL")
	relayKills = flag.Int("relay-kills", 200, "relays to kill with SIGKILL")
	restarts   = flag.Int("restarts", 2, "restarts of the broker")
	seed       = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the schedule")
)

func main() {
	messages.Main()
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var err error
	for _, broker := range strings.Split(*brokers, ",") {
		for _, store := range strings.Split(*stores, ",") {
			err = errors.Join(err, run(ctx, broker, store))
		}
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "messages:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, broker, store string) (err error) {
	r, err := rig.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	fmt.Printf("%s, %s, seed %d\n", broker, store, *seed)
	began := time.Now()
	rep, err := messages.Run(ctx, r, messages.Config{Broker: broker, Store: store, Messages: *count, Kills: *kills, RelayKills: *relayKills,
		Restarts: *restarts, Seed: *seed, Progress: func(line string) { fmt.Fprintln(os.Stderr, line) }})
	if err != nil {
		return fmt.Errorf("%s, %s: %w", broker, store, err)
	}
	fmt.Printf("%d messages in %d copies, %d effects, %d dead, %d left, in %v; %d kills %v, %d restarts\n",
		rep.Messages, rep.Copies, rep.Effects, rep.Dead, rep.Left, time.Since(began).Round(time.Second), rep.Kills, rep.At, rep.Restarts)
	fmt.Printf("dead runs: %d had had their effect, %d had not; %d stale effects refused; %d unknown in the end\n",
		rep.Happened, rep.Voided, rep.Refused, rep.Unknown)
	fmt.Printf("emitted with %d outcomes, arrived %d times, %d more than once; %d kills of relays %v\n",
		rep.Emitted, rep.Arrived, rep.Repeated, rep.RelayKills, rep.RelayAt)
	for _, f := range []struct {
		name string
		n    int
	}{
		{"messages", rep.Messages}, {"copies", rep.Copies}, {"effects", rep.Effects}, {"kills", rep.Kills}, {"restarts", rep.Restarts},
		{"emitted", rep.Emitted}, {"arrived", rep.Arrived}, {"relay_kills", rep.RelayKills}, {"unknown", rep.Unknown}, {"violations", len(rep.Violations)},
	} {
		fmt.Printf("figure: messages_%s_%s_%s = %d %s\n", broker, store, f.name, f.n, f.name)
	}
	if len(rep.Violations) > 0 {
		return fmt.Errorf("%s, %s: promises broken: %s", broker, store, strings.Join(rep.Violations, "; "))
	}
	return nil
}
