package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/stet-go/stet/internal/test/proof/crashtest/messages"
	"github.com/stet-go/stet/internal/test/rig"
)

var (
	messageFlags = flag.NewFlagSet("messages", flag.ExitOnError)

	msgBrokers = messageFlags.String("brokers", strings.Join(messages.Brokers, ","), "brokers, separated by commas; kafka is a stand-in for it, kfake")
	msgStores  = messageFlags.String("stores", strings.Join(messages.Stores, ","), "stores, separated by commas")
	msgConfig  = messages.Config{Progress: progress}
)

func init() {
	messageFlags.IntVar(&msgConfig.Messages, "messages", 10_000, "distinct messages, each published 1 to 5 times")
	messageFlags.IntVar(&msgConfig.Kills, "kills", 50, "consumers to kill with SIGKILL")
	messageFlags.IntVar(&msgConfig.RelayKills, "relay-kills", 200, "relays to kill with SIGKILL")
	messageFlags.IntVar(&msgConfig.Restarts, "restarts", 2, "restarts of the broker")
	messageFlags.Uint64Var(&msgConfig.Seed, "seed", uint64(time.Now().UnixNano()), "of the schedule")
}

// runMessages kills consumers of messages and relays of their messages, and
// restarts their broker.
func runMessages(ctx context.Context) error {
	var pairs []string
	for _, broker := range strings.Split(*msgBrokers, ",") {
		for _, store := range strings.Split(*msgStores, ",") {
			pairs = append(pairs, broker+" "+store)
		}
	}
	return inTurn(ctx, pairs, func(ctx context.Context, r *rig.Rig, pair string) error {
		cfg := msgConfig
		cfg.Broker, cfg.Store, _ = strings.Cut(pair, " ")
		fmt.Printf("%s, seed %d\n", pair, cfg.Seed)
		began := time.Now()
		rep, err := messages.Run(ctx, r, cfg)
		if err != nil {
			return err
		}
		fmt.Printf("%d messages in %d copies, %d effects, %d dead, %d left, in %v; %d kills %v, %d restarts\n",
			rep.Operations, rep.Copies, rep.Effects, rep.Dead, rep.Left, time.Since(began).Round(time.Second), rep.Kills, rep.At, rep.Restarts)
		fmt.Printf("expired runs: %d had had their effect, %d had not; %d stale effects refused; %d unknown in the end\n",
			rep.Happened, rep.Voided, rep.Refused, rep.Doubtful)
		fmt.Printf("emitted with %d outcomes, arrived %d times, %d more than once; %d kills of relays %v\n",
			rep.Emitted, rep.Arrived, rep.Repeated, rep.Relays.Kills, rep.Relays.At)
		printFigures("messages_"+cfg.Broker+"_"+cfg.Store, []figure{
			{"messages", rep.Operations, "messages"}, {"copies", rep.Copies, "copies"}, {"effects", rep.Effects, "effects"}, {"kills", rep.Kills, "kills"},
			{"restarts", rep.Restarts, "restarts"}, {"emitted", rep.Emitted, "emitted"}, {"arrived", rep.Arrived, "arrived"},
			{"relay_kills", rep.Relays.Kills, "relay_kills"}, {"unknown", rep.Doubtful, "unknown"}, {"violations", len(rep.Violations), "violations"}}...)
		return broken(rep.Summary(1))
	})
}
